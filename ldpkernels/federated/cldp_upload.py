# SPDX-License-Identifier: Apache-2.0
"""What a client of LDP-Fed sends: randomised integers in as few whole bytes as their public bound allows.

Nothing in the header or in the length depends on a weight. The digest finds accidents, not forgers: authenticate the
channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
import torch

from ldpkernels.calls.cldp import cldp_sample
from ldpkernels.common.arrays import Integers
from ldpkernels.common.keys import Generator, key
from ldpkernels.laws.ordinal_cldp import OrdinalCLDP
from ldpkernels.laws.ordinal_cldp_integers import Noise
from ldpkernels.wire.envelope import decode, encode
from ldpkernels.wire.locks import shared_lock

KIND = "cldp-upload"


@dataclass(frozen=True)
class Terms:
    """The terms that server and clients of a round agree on: which values are sent, their grid, and the mechanism."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    c: float
    rho: int
    mechanism: Noise

    @cached_property
    def agreed(self) -> dict[str, object]:
        """The terms as the header of an upload has them."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @cached_property
    def sizes(self) -> list[int]:
        """The number of values of each tensor."""
        return [math.prod(shape) for shape in self.shapes]


@dataclass(frozen=True)
class Upload:
    """One client's randomised integers, under an alpha for each value that is the client's own choice.

    >>> import ldpkernels
    >>> terms = Terms(("w",), ((3,),), c=1.0, rho=10, mechanism="laplace")
    >>> sent = Upload.of({"w": torch.zeros(3)}, terms, alpha=1e-6, key=ldpkernels.key(0)).to_bytes()
    >>> Upload.from_bytes(sent, terms).to_bytes() == sent
    True
    """

    terms: Terms
    alpha: float
    integers: Integers  # flat, tensor after tensor

    @classmethod
    def of(cls, update: Mapping[str, torch.Tensor], terms: Terms, alpha: float, key: Generator) -> Upload:
        """Clip to [-c, c], round to rho digits, and sample: every value of the terms' tensors, and no other tensor."""
        parts = [update[name] for name in terms.names]
        if tuple(tuple(p.shape) for p in parts) != terms.shapes:
            raise ValueError(f"the update has shapes {[tuple(p.shape) for p in parts]}: send {list(terms.shapes)}")
        alpha = float(alpha)
        M = _law(alpha, terms).M
        exact = integers_of(torch.cat([p.detach().reshape(-1) for p in parts]), M, terms.rho)
        sent = cldp_sample(exact, alpha, M, mechanism=terms.mechanism, generator=key).cpu().numpy()
        bound = _bound(alpha, terms)
        return cls(terms, alpha, np.clip(sent, -bound, bound))

    def to_bytes(self) -> bytes:
        """The upload as bytes, for the wire."""
        bound = _bound(self.alpha, self.terms)
        raised = self.integers.astype("<i8").view("<u8") + np.uint64(bound)  # from 0 to 2 bound; wraps as intended
        payload = raised.view(np.uint8).reshape(-1, 8)[:, : _width(bound)].tobytes()
        return encode({"kind": KIND, "alpha": self.alpha, **self.terms.agreed}, payload)

    @classmethod
    def from_bytes(cls, data: bytes, terms: Terms) -> Upload:
        """Read an upload of these terms; anything else is a ValueError."""
        header, payload = decode(data, KIND)
        alpha = header.pop("alpha", None)
        agreed = terms.agreed
        if header != agreed:
            wrong = next(name for name in sorted({*header, *agreed}) if header.get(name) != agreed.get(name))
            raise ValueError(f"the upload's {wrong} is not what this round agreed on: refuse its sender")
        if type(alpha) is not float:
            raise ValueError("the upload does not say its alpha")
        bound = _bound(alpha, terms)
        width, values = _width(bound), sum(terms.sizes)
        if len(payload) != width * values:
            raise ValueError(f"the upload has {len(payload)} bytes, not {values} integers of {width} bytes")
        wide = np.zeros((values, 8), np.uint8)
        wide[:, :width] = np.frombuffer(payload, np.uint8).reshape(values, width)
        raised = wide.view("<u8").reshape(-1)
        if values and int(raised.max()) > 2 * bound:
            raise ValueError(f"the upload has an integer beyond {bound}, which its mechanism never sends")
        return cls(terms, alpha, (raised - np.uint64(bound)).view(np.int64))


class UploadMean:
    """The sum of uploads as integers, and their mean, decoded once and in fp64. Threads may add to it.

    A client that says a tiny alpha may send integers so large that few of them fit 64 bits: uploads of less than
    `least_alpha` are refused. It is for a value, as an upload has it.
    """

    def __init__(self, terms: Terms, least_alpha: float = 0.0) -> None:
        self.terms, self.least_alpha = terms, least_alpha
        self._lock = shared_lock()
        self.clients = 0
        self._sum = np.zeros(sum(terms.sizes), np.int64)
        self._reach = 0  # no sum is larger than this

    def expect(self, alphas: Sequence[float]) -> None:
        """Refuse alphas of which no upload can be made, or whose uploads could not all be added."""
        for alpha in dict.fromkeys(alphas):
            M, mechanism = _law(alpha, self.terms).M, self.terms.mechanism
            cldp_sample(torch.zeros(1, dtype=torch.int64), alpha, M, mechanism=mechanism, generator=key(0))
        self._reaching(self.clients + len(alphas), sum(_bound(alpha, self.terms) for alpha in alphas))

    def add(self, data: bytes) -> None:
        """Add an upload's bytes; what cannot be read, or would overflow, changes nothing."""
        upload = Upload.from_bytes(data, self.terms)
        if upload.alpha < self.least_alpha:
            raise ValueError(f"the upload's alpha is {upload.alpha}, below {self.least_alpha}: refuse its sender")
        with self._lock:
            reach = self._reaching(self.clients + 1, _bound(upload.alpha, self.terms))
            self._sum += upload.integers
            self._reach, self.clients = reach, self.clients + 1

    def _reaching(self, clients: int, more: int) -> int:
        """How far the sum of so many uploads may reach."""
        if self._reach + more >= 2**63:
            raise ValueError(f"the sum of {clients} uploads may not fit 64 bits: lower rho, or raise alpha")
        return self._reach + more

    def mean(self) -> dict[str, torch.Tensor]:
        """The mean update in fp64, by name; nothing where nothing was added."""
        with self._lock:
            if not self.clients:
                return {}
            values = torch.from_numpy(self._sum / (self.clients * 10.0**self.terms.rho))
        parts = values.split(self.terms.sizes)
        return {n: p.reshape(s) for n, p, s in zip(self.terms.names, parts, self.terms.shapes, strict=True)}


def integers_of(values: torch.Tensor, M: int, rho: int) -> torch.Tensor:
    """Each value in steps of 10^-rho, to the nearest, ties to even, within [-M, M]; a NaN counts as 0."""
    scaled = (values.double() * 10.0**rho).nan_to_num(nan=0.0).clamp(-M, M).round()
    return scaled.to(torch.int64).clamp(-M, M)  # again: M itself may be no double


def terms_of(shapes: Mapping[str, Sequence[int]], c: float, rho: int, mechanism: Noise) -> Terms:
    """The terms for tensors of these shapes."""
    return Terms(tuple(shapes), tuple(tuple(s) for s in shapes.values()), float(c), rho, mechanism)


@lru_cache(maxsize=64)
def _law(alpha: float, terms: Terms) -> OrdinalCLDP:
    return OrdinalCLDP(alpha, terms.c, terms.rho, terms.mechanism)


@lru_cache(maxsize=64)
def _bound(alpha: float, terms: Terms) -> int:
    """What no integer passes: M, or for laplace, whose noise has no end, where it goes with probability e^-64.

    It depends on public numbers only, so that cutting off there costs no privacy.
    """
    M = _law(alpha, terms).M
    return M if terms.mechanism == "exponential" else M + math.ceil(64 / Fraction(alpha))


def _width(bound: int) -> int:
    return max(1, ((2 * bound).bit_length() + 7) // 8)


def _plain(value: object) -> object:
    """The value as JSON gives it back, with lists for tuples."""
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
