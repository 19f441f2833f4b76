# SPDX-License-Identifier: Apache-2.0
"""What a client releases in a round: bytes of each weight's report, or of one vector's. Knows no framework."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, cast, get_args

import numpy as np

import ldpkernels
from ldpkernels.accounting import Event
from ldpkernels.arrays import Array, Floats
from ldpkernels.inputs.containers import Numbers, collect
from ldpkernels.inputs.modules import Buffers
from ldpkernels.keys import Generator
from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.registry import MECHANISMS, MechanismName, mechanism_named
from ldpkernels.laws.vector_gaussian import VectorGaussian
from ldpkernels.reports import Aggregate
from ldpkernels.vector import Sampled, VectorMechanism, vector_mechanism
from ldpkernels.wire.envelope import Header, encode, header_in, opened

Arrays = dict[str, Array]
Ranges = tuple[Numbers, Numbers]

VECTORS: tuple[VectorMechanism, ...] = get_args(VectorMechanism)
CODES = ("code", "codes", "projected-code", "projected_code", "ProjectedCode")
_LONGEST_HEADER = 1024  # of a vector's report: six numbers
_REASONS = 16
_UNLIKELY = 60.0  # a bound on a norm refuses an honest report once in e^60


class Total(Protocol):
    """The sum of a round's reports. It counts what it could not take, and says why."""

    skipped: int
    reasons: dict[str, int]

    @property
    def clients(self) -> int:
        """How many reports were added."""

    def add(self, *reports: bytes) -> None:
        """Add reports; what is none of this round's is skipped."""

    def mean(self) -> Arrays:
        """The clients' mean, by name."""


class Release(Protocol):
    """A mechanism with its settings: the client and the server each have one, and they must be equal."""

    @property
    def terms(self) -> dict[str, float | str]:
        """The settings that client and server compare."""

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """What one report of tensors of these sizes costs: an event, and how many of them."""

    def report(self, update: Arrays, ranges: Ranges, generator: Generator) -> bytes:
        """The report of one client."""

    def total(self, like: Arrays, ranges: Ranges) -> Total:
        """An empty sum for reports of arrays like these."""


@dataclass(frozen=True)
class EachWeight:
    """Every weight under eps, in its range: a bit or a byte each (`ldpkernels.report`)."""

    eps: float
    mechanism: MechanismName

    @property
    def terms(self) -> dict[str, float | str]:
        """The settings that client and server compare."""
        return {"eps": self.eps, "mechanism": self.mechanism}

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """An event for one weight's report, and the number of weights."""
        return mechanism_named(self.mechanism, self.eps).event, sum(sizes)

    def report(self, update: Arrays, ranges: Ranges, generator: Generator) -> bytes:
        """The report of one client."""
        return self.reported(update, ranges, generator).to_bytes()

    def reported(self, update: Arrays, ranges: Ranges, generator: Generator) -> ldpkernels.Report:
        """The report of one client, before it is bytes."""
        c, r = ranges
        return ldpkernels.report(
            update, c, r, self.eps, mechanism=self.mechanism, generator=generator, buffers="perturb"
        )

    def total(self, like: Arrays, ranges: Ranges) -> Aggregate[Arrays]:
        """Counters of this round's model, ranges and eps."""
        return Aggregate(self.expected(like, ranges), on_bad="skip")

    def expected(self, like: Arrays, ranges: Ranges) -> ldpkernels.Expected[Arrays]:
        """What a server takes from a client: names, shapes, ranges and settings of a report."""
        c, r = ranges
        # `leaving` has decided about statistics already
        found = ldpkernels.expected(dict(like), c, r, self.eps, mechanism=self.mechanism, buffers="perturb")  # type: ignore[call-overload]
        return cast("ldpkernels.Expected[Arrays]", found)


@dataclass(frozen=True)
class WholeVector:
    """One eps for a whole update, clipped to a norm (`ldpkernels.perturb_vector`): fp32 numbers."""

    eps: float
    mechanism: VectorMechanism
    norm: float
    bound: float | None = None
    delta: float | None = None  # that eps excludes; of "gaussian"

    @property
    def terms(self) -> dict[str, float | str]:
        """The settings that client and server compare."""
        given = {name: value for name in ("bound", "delta") if (value := getattr(self, name)) is not None}
        return {"eps": self.eps, "mechanism": self.mechanism, "norm": self.norm, **given}

    def sampler(self, dimension: int) -> Sampled:
        """The mechanism for vectors of so many numbers."""
        return vector_mechanism(self.mechanism, self.eps, dimension, self.norm, self.bound, delta=self.delta)

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """An event for the whole vector, once."""
        return self.sampler(sum(sizes)).event, 1

    def report(self, update: Arrays, ranges: Ranges, generator: Generator) -> bytes:
        """The report of one client: rounding to fp32 is done to what was randomised, and costs nothing."""
        sent = ldpkernels.perturb_vector(
            update, self.eps, mechanism=self.mechanism, norm=self.norm, bound=self.bound, delta=self.delta,
            generator=generator, buffers="perturb",
        )  # fmt: skip
        flat = np.concatenate([array.ravel() for array in sent.values()]).astype("<f4")
        return encode(self.header(flat.size), flat.tobytes())

    def header(self, dimension: int) -> Header:
        """What a report says of itself."""
        return {"kind": "vector", "dimension": dimension, **self.terms}

    def total(self, like: Arrays, ranges: Ranges) -> VectorTotal:
        """A sum for vectors of these arrays."""
        return VectorTotal(self, like)

    def longest(self, dimension: int) -> float:
        """A length that no honest report passes; what a liar can add is bounded by it."""
        return _longest(self.sampler(dimension))


class VectorTotal:
    """The sum of whole-vector reports in fp64. A report longer than an honest one can be is skipped."""

    def __init__(self, release: WholeVector, like: Arrays) -> None:
        self.skipped = 0
        self.reasons: dict[str, int] = {}
        self.clients = 0
        self._like = {name: (array.shape, array.dtype) for name, array in like.items()}
        self._header = release.header(sum(array.size for array in like.values()))
        self._sum: Floats = np.zeros(sum(array.size for array in like.values()))
        self._longest = release.longest(self._sum.size)
        self._lock = threading.Lock()

    def add(self, *reports: bytes) -> None:
        """Add reports; what is none of this round's is skipped."""
        for one in reports:
            try:
                vector = self._read(one)
            except ValueError as error:
                with self._lock:
                    self.skipped += 1
                    reason = str(error)
                    if reason in self.reasons or len(self.reasons) < _REASONS:
                        self.reasons[reason] = self.reasons.get(reason, 0) + 1
            else:
                with self._lock:
                    self._sum += vector
                    self.clients += 1

    def mean(self) -> Arrays:
        """The clients' mean, by name: fp64 where the model is, else fp32."""
        if not self.clients:
            raise ValueError("nothing to average: add at least one report")
        means, start = {}, 0
        for name, (shape, dtype) in self._like.items():
            end = start + math.prod(shape)
            mean = self._sum[start:end] / self.clients
            means[name] = mean.astype(np.float64 if dtype == np.float64 else np.float32).reshape(shape)
            start = end
        return means

    def _read(self, data: bytes) -> Floats:
        text, payload = opened(data, "vector", _LONGEST_HEADER)
        header = {"kind": "vector", **header_in(text, "vector")}
        if header != self._header or list(map(type, header.values())) != list(map(type, self._header.values())):
            raise ValueError("this is not what is expected: a vector of another mechanism, eps, norm or dimension")
        if len(payload) != 4 * self._sum.size:
            raise ValueError(f"{len(payload)} bytes are no {self._sum.size} numbers")
        with np.errstate(over="ignore", invalid="ignore"):  # of any bits that a stranger sends
            vector = np.frombuffer(payload, "<f4").astype(np.float64)
            length = float(np.linalg.norm(vector))
        if not length <= self._longest:  # NaN too
            raise ValueError("a vector longer than an honest report can be")
        return vector


def release_of(
    eps: float, mechanism: str, norm: float | None = None, bound: float | None = None, delta: float = 1e-5
) -> EachWeight | WholeVector:
    """The release that these settings name; refuses what is none. `delta` is of "gaussian" alone.

    >>> release_of(4.0, "two-point").terms
    {'eps': 4.0, 'mechanism': 'two-point'}
    """
    if mechanism in VECTORS:
        if norm is None:
            raise ValueError(f"mechanism={mechanism!r} needs norm: the length to which an update is clipped")
        excluded = float(delta) if mechanism == "gaussian" else None
        whole = WholeVector(float(eps), mechanism, float(norm), bound, excluded)
        whole.sampler(1)  # it refuses what is no eps, norm or bound
        return whole
    if mechanism in CODES:
        raise ValueError(
            f"mechanism={mechanism!r} reports a number to whose meaning client and server hold a key for each client "
            "and round, which no message here carries: use 'privunitg', or ldpkernels.updates.report_code by itself"
        )
    if mechanism not in MECHANISMS:
        raise ValueError(f"mechanism={mechanism!r} must be one of {', '.join([*MECHANISMS, *VECTORS])}")
    if norm is not None or bound is not None:
        raise ValueError(f"norm and bound are for {' and '.join(VECTORS)}: leave them out with {mechanism!r}")
    each = EachWeight(float(eps), cast(MechanismName, mechanism))
    mechanism_named(each.mechanism, each.eps)
    return each


def leaving(arrays: Mapping[str, Array], buffers: Buffers | None) -> Arrays:
    """The arrays that are reported: all, but for statistics that stay where they are with buffers="keep".

    Arrays of integers are refused by name: noise that is rounded to them is none.

    >>> list(leaving({"w": np.zeros(2), "bn.running_mean": np.zeros(2)}, "keep"))
    ['w']
    """
    tensors, _ = collect(dict(arrays), buffers)
    for name, array in zip(tensors.names, tensors.values, strict=True):
        if array.dtype.kind != "f":
            raise ValueError(
                f"array {name!r} has dtype {array.dtype}, and only floating-point numbers are perturbed: leave it "
                "out of what is sent, or pass buffers='keep' if it counts batches"
            )
    return dict(zip(tensors.names, tensors.values, strict=True))


@lru_cache(maxsize=64)
def _longest(sampler: Sampled) -> float:
    rounding = 1 + 2**-20  # of the numbers to fp32
    if isinstance(sampler, KOfD):
        law = sampler.coordinate
        largest = max(abs(float(value)) for value in law.outputs(0.0, sampler.bound))
        return rounding * sampler.dimension / sampler.k * largest * math.sqrt(sampler.k)
    if isinstance(sampler, VectorGaussian):  # discrete Gaussians are sub-Gaussian: Hsu, Kakade and Zhang (2012)
        d = sampler.dimension
        noise = sampler.sigma * math.sqrt(d + 2 * math.sqrt(d * _UNLIKELY) + 2 * _UNLIKELY)
        return rounding * (sampler.norm + sampler.unit * math.sqrt(d) + noise)
    # the squares of d - 1 Gaussians (Laurent and Massart), and of the one along the update
    others = sampler.dimension - 1
    across = others + 2 * math.sqrt(others * _UNLIKELY) + 2 * _UNLIKELY
    along = (max(sampler.gamma, 0.0) + math.sqrt(2 * _UNLIKELY)) ** 2
    return rounding * sampler.norm / sampler.shrinkage * math.sqrt(across + along)
