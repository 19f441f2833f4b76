# SPDX-License-Identifier: Apache-2.0
"""Whole updates as one vector: noised by the client, or clipped for a server that is trusted."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

import numpy as np

import ldpkernels
from ldpkernels.accounting import Event
from ldpkernels.calls.vector import Sampled, VectorMechanism, vector_mechanism
from ldpkernels.common.arrays import Array, Floats, Integers, Value
from ldpkernels.common.keys import Generator
from ldpkernels.inputs import flat
from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.laws.distributed import Shares
from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.vector_gaussian import VectorGaussian
from ldpkernels.releases.release import Arrays, Asked, Release, Reported, Terms
from ldpkernels.updates.following import LONGER, narrowed, widened
from ldpkernels.wire.envelope import Header, encode, header_in, opened

VECTORS: tuple[VectorMechanism, ...] = get_args(VectorMechanism)
_LONGEST_HEADER = 1024  # of a vector's report: a law
_REASONS = 16
NEXT_NORM = "the norm of the next round"  # beside a mean's arrays, by a name that no array has
_UNLIKELY = 60.0  # a bound on a norm refuses an honest report once in e^60
_ROUNDING = 1 + 2.0**-20  # of the numbers to fp32


def checked_dimension(sizes: Sequence[int], dimension: int) -> None:
    """Refuse arrays of another number of weights than a law's."""
    if sum(sizes) != dimension:
        raise ValueError(
            f"the arrays have {sum(sizes)} numbers, and the law is of {dimension}: calibrate a law for this model"
        )


def parts_of(flat_: Floats, like: Arrays) -> Arrays:
    """One vector as arrays like these: fp64 where they are, else fp32."""
    parts = np.split(flat_, np.cumsum([array.size for array in like.values()])[:-1])
    return {
        name: part.astype(np.float64 if array.dtype == np.float64 else np.float32).reshape(array.shape)
        for (name, array), part in zip(like.items(), parts, strict=True)
    }


def followed(numbers: Floats, like: Arrays, norm: float, length: float) -> Arrays:
    """A mean under this norm as arrays like these, and the norm that follows."""
    mean, after = narrowed(numbers, norm, length)
    return {**parts_of(mean, like), NEXT_NORM: np.array(after)}


class OneNorm(Release):
    """A release under a law whose norm may follow the clients' median; it travels as a range's radius does."""

    law: Shares | CentralGaussian
    adaptive: bool

    @property
    def ranged(self) -> bool:  # type: ignore[override]
        """Whether a round has its own norm."""
        return self.adaptive

    @property
    def first_norm(self) -> float | None:  # type: ignore[override]
        """The norm of the first round, where others follow."""
        return self.law.norm / LONGER if self.adaptive else None


class SentVector(Reported):
    """A release whose report is one vector, in fp32."""

    adaptive: bool = False

    def header(self, dimension: int) -> Header:
        """What a report says of itself."""
        return {"kind": "vector", "dimension": dimension, **self.terms}

    def sent(self, update: Arrays, generator: Generator) -> Floats | Array:
        """The numbers that leave."""
        raise NotImplementedError

    def longest(self, dimension: int) -> float:
        """A length that no honest report passes; what a liar can add is bounded by it."""
        raise NotImplementedError

    def added(self, total: Array, vector: Floats) -> None:
        """Add a report's numbers."""
        total += vector

    def empty(self, dimension: int) -> Array:
        """What reports are added to."""
        return np.zeros(dimension)

    def mean(self, total: Array, clients: int) -> Floats:
        """The mean that so many clients' sum gives."""
        found: Floats = total / clients
        return found

    def report(self, update: Arrays, asked: Asked, generator: Generator) -> bytes:
        """The report of one client: rounding to fp32 is done to what may leave, and costs nothing."""
        numbers = self.sent(update, generator).astype("<f4")
        return encode(self.header(numbers.size), numbers.tobytes())

    def total(self, like: Arrays, asked: Asked) -> VectorTotal:
        """A sum for vectors of these arrays."""
        return VectorTotal(self, like, lambda numbers: parts_of(numbers, like))


@dataclass(frozen=True)
class WholeVector(SentVector):
    """One eps for a whole update, clipped to a norm (`ldpkernels.perturb_vector`).

    Args:
        mechanism: Of `perturb_vector`.
        norm: To which an update is clipped.
        eps: Of a report; of "gaussian" with `delta`, or `sigma` in their place.
        dimension: Of the law that was given; None takes any update.
    """

    mechanism: VectorMechanism
    norm: float
    eps: float | None = None
    bound: float | None = None
    delta: float | None = None
    sigma: float | None = None
    dimension: int | None = None

    @classmethod
    def of(cls, law: Sampled) -> WholeVector:
        """Exactly this law."""
        if isinstance(law, VectorGaussian):
            return cls(law.name, law.norm, sigma=law.sigma, dimension=law.dimension)  # type: ignore[arg-type]
        bound = law.bound if isinstance(law, KOfD) else None
        return cls(law.name, law.norm, law.eps, bound, dimension=law.dimension)  # type: ignore[arg-type]

    @property
    def terms(self) -> Terms:
        """The settings that client and server compare."""
        names = ("eps", "mechanism", "norm", "bound", "delta", "sigma", "dimension")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def sampler(self, dimension: int) -> Sampled:
        """The mechanism for vectors of so many numbers."""
        if self.dimension is not None:
            checked_dimension([dimension], self.dimension)
        return vector_mechanism(
            self.mechanism, self.eps, dimension, self.norm, self.bound, delta=self.delta, sigma=self.sigma
        )

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """An event for the whole vector, once."""
        return self.sampler(sum(sizes)).event, 1

    def randomised(self, update: Mapping[str, Value], generator: Generator) -> dict[str, Value]:
        """What may leave of an update, arrays or tensors by name."""
        return ldpkernels.perturb_vector(
            update, self.eps, mechanism=self.mechanism, norm=self.norm, bound=self.bound, delta=self.delta,
            sigma=self.sigma, generator=generator, buffers="perturb",
        )  # fmt: skip

    def sent(self, update: Arrays, generator: Generator) -> Array:
        """A randomised update."""
        return np.concatenate([array.ravel() for array in self.randomised(update, generator).values()])

    def longest(self, dimension: int) -> float:
        """A length that no honest report passes."""
        return _longest(self.sampler(dimension))


@dataclass(frozen=True)
class ClippedUpdate(OneNorm, SentVector):
    """An update that is clipped and no more, for a server that adds noise and **is trusted with every update**."""

    against = "whoever sees the models, and not the server, which is trusted"
    law: CentralGaussian
    adaptive: bool = False

    @property
    def terms(self) -> Terms:
        """The settings that client and server compare."""
        return {"central": repr(self.law), **({"adaptive": True} if self.adaptive else {})}

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """An event for a round's sum, which the server's ledger is charged."""
        checked_dimension([*sizes, int(self.adaptive)], self.law.dimension)
        return self.law.event, 1

    def report(self, update: Arrays, asked: Asked, generator: Generator) -> bytes:
        """The update of one client, clipped, in fp32."""
        if self.adaptive:
            update = {"": widened(update, asked.norm, self.law.norm, buffers="perturb")}
        return super().report(update, asked, generator)

    def total(self, like: Arrays, asked: Asked) -> VectorTotal:
        """A sum for vectors of these arrays."""
        if not self.adaptive:
            return super().total(like, asked)
        return VectorTotal(self, like, lambda numbers: followed(numbers, like, asked.norm, self.law.norm))

    def sent(self, update: Arrays, generator: Generator) -> Floats:
        """The update, no longer than the norm; NaN counts as 0."""
        return flat.clipped(flat.float64s(list(update.values())), self.law.norm)

    def longest(self, dimension: int) -> float:
        """A length that no honest update has."""
        checked_dimension([dimension], self.law.dimension)
        return self.law.norm * _ROUNDING

    def added(self, total: Array, vector: Floats) -> None:
        """Add an update on the law's grid: whatever a client sent, it counts within the norm."""
        total += self.law.integers(vector)

    def empty(self, dimension: int) -> Integers:
        """What reports are added to."""
        return np.zeros(dimension, np.int64)

    def mean(self, total: Array, clients: int) -> Floats:
        """The noised sum over the expected number of clients."""
        return self.law.released(total)


class VectorTotal:
    """The sum of vectors. A report longer than an honest one can be is skipped."""

    def __init__(self, release: SentVector, like: Arrays, parts: Callable[[Floats], Arrays]) -> None:
        self.skipped = 0
        self.reasons: dict[str, int] = {}
        self.clients = 0
        dimension = sum(array.size for array in like.values()) + release.adaptive
        self._release, self._parts, self._header = release, parts, release.header(dimension)
        self._sum = release.empty(dimension)
        self._longest = release.longest(dimension)
        self._lock = threading.Lock()

    def add(self, *reports: bytes) -> None:
        """Add reports; what is none of this round's is skipped."""
        for one in reports:
            try:
                vector = self._read(one)
            except ValueError as error:
                with self._lock:
                    self.skipped += 1
                    counted(self.reasons, str(error))
            else:
                with self._lock:
                    self._release.added(self._sum, vector)
                    self.clients += 1

    def mean(self) -> Arrays:
        """The clients' mean, by name: fp64 where the model is, else fp32."""
        if not self.clients:
            raise ValueError("nothing to average: add at least one report")
        return self._parts(self._release.mean(self._sum, self.clients))

    def _read(self, data: bytes) -> Floats:
        text, payload = opened(data, "vector", _LONGEST_HEADER)
        header = {"kind": "vector", **header_in(text, "vector")}
        if header != self._header or list(map(type, header.values())) != list(map(type, self._header.values())):
            raise ValueError("this is not what is expected: a vector of another mechanism, eps, norm or dimension")
        if len(payload) != 4 * self._sum.size:
            raise ValueError(f"{len(payload)} bytes are not {self._sum.size} numbers")
        with np.errstate(over="ignore", invalid="ignore"):  # of any bits that a stranger sends
            vector = np.frombuffer(payload, "<f4").astype(np.float64)
            length = float(np.linalg.norm(vector))
        if not length <= self._longest:  # NaN too
            raise ValueError("a vector longer than an honest report can be")
        return vector


def counted(reasons: dict[str, int], reason: str) -> None:
    """Count a reason, of so many at most: strangers choose the words of some."""
    if reason in reasons or len(reasons) < _REASONS:
        reasons[reason] = reasons.get(reason, 0) + 1


@lru_cache(maxsize=64)
def _longest(sampler: Sampled) -> float:
    if isinstance(sampler, KOfD):
        law = sampler.coordinate
        largest = max(abs(float(value)) for value in law.outputs(0.0, sampler.bound))
        return _ROUNDING * sampler.dimension / sampler.k * largest * math.sqrt(sampler.k)
    if isinstance(sampler, VectorGaussian):  # discrete Gaussians are sub-Gaussian: Hsu, Kakade and Zhang (2012)
        d = sampler.dimension
        noise = sampler.sigma * math.sqrt(d + 2 * math.sqrt(d * _UNLIKELY) + 2 * _UNLIKELY)
        return _ROUNDING * (sampler.norm + sampler.unit * math.sqrt(d) + noise)
    # the squares of d - 1 Gaussians (Laurent and Massart), and of the one along the update
    others = sampler.dimension - 1
    across = others + 2 * math.sqrt(others * _UNLIKELY) + 2 * _UNLIKELY
    along = (max(sampler.gamma, 0.0) + math.sqrt(2 * _UNLIKELY)) ** 2
    return _ROUNDING * sampler.norm / sampler.shrinkage * math.sqrt(across + along)
