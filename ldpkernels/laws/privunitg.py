# SPDX-License-Identifier: Apache-2.0
"""PrivUnitG (Asi, Feldman, Talwar, ICML 2022): the least error for a whole vector under one eps, in real arithmetic.

docs/mechanisms/vector.md derives it and says what floating-point numbers do to its guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ldpkernels import _native
from ldpkernels.accounting.arguments import number
from ldpkernels.arrays import Array, Floats
from ldpkernels.inputs.stretches import in_stretches
from ldpkernels.keys import Key
from ldpkernels.laws.vector_law import PureVectorLaw
from ldpkernels.laws.weightwise import checked_eps

_MARGIN = 1e-12  # of the odds of the cap: more than the fp64 error of its probability
_DECISIONS, _GAUSSIANS = 0, 1  # keystreams


@dataclass(frozen=True)
class PrivUnitG(PureVectorLaw):
    """A Gaussian vector, moved into a cap around the update with probability p, scaled to be unbiased.

    The cap is the half-space <g, v> >= gamma; a standard Gaussian is in it with probability q. p, q and gamma are those
    of least error under p (1 - q) / ((1 - p) q) <= e^eps.

    >>> mechanism = PrivUnitG(8.0, dimension=21_840)
    >>> round(mechanism.gamma, 2), round(mechanism.p, 2), round(mechanism.worst_error)
    (2.74, 0.9, 2904)
    """

    name: ClassVar[str] = "privunitg"
    eps: float
    dimension: int
    norm: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", checked_eps(self.eps))
        if self.dimension < 1:
            raise ValueError(f"dimension={self.dimension} must be at least 1")
        if not (math.isfinite(number("norm", self.norm)) and self.norm > 0):
            raise ValueError(f"norm={self.norm} must be a finite number above 0")

    @property
    def gamma(self) -> float:
        """Where the cap begins, in standard deviations."""
        return _gamma(self.eps, self.dimension)

    @property
    def q(self) -> float:
        """The probability of the cap under the standard Gaussian."""
        return _tail(self.gamma)

    @property
    def p(self) -> float:
        """The probability of the cap in a report: `threshold` / 2^64."""
        return self.threshold / 2**64

    @property
    def threshold(self) -> int:
        """Of 2^64 draws, how many choose the cap: rounded so that the odds are at most e^eps q / (1 - q)."""
        odds = math.exp(-self.eps) * (1 - self.q) / self.q / (1 - _MARGIN)
        return min(math.floor(2**64 / (1 + odds)), 2**64 - 1)

    @property
    def effective_eps(self) -> float:
        """The eps of these numbers, were the Gaussians real ones; never above `eps`."""
        q = self.q
        return min(self.eps, math.log(self.threshold / (2**64 - self.threshold)) + math.log1p(-q) - math.log(q) + 1e-15)

    @property
    def shrinkage(self) -> float:
        """E<g, v> of a report g for a unit vector v: what a report is divided by."""
        p, q = self.p, self.q
        return _density(self.gamma) * (p / q - (1 - p) / (1 - q))

    @property
    def worst_error(self) -> float:
        """Expected squared distance of the output from 0, which is the distance from x plus its squared length."""
        along = 1 + self.gamma * self.shrinkage
        return self.norm**2 * (self.dimension - 1 + along) / self.shrinkage**2

    def error(self, x: Array) -> float:
        """Expected squared distance of the output from x, a vector of length at most `norm`."""
        return self.worst_error - float(np.sum(np.square(x), dtype=np.float64))

    def sample(self, x: Array, key: Key) -> Array:
        """A report of x, whose length is at most `norm`.

        A vector within the ball is taken for one on the sphere: x / |x| or its opposite, with the probabilities that
        make it x / norm on average.
        """
        length = float(np.linalg.norm(x))
        forward, cap, where = (int(w) for w in _native.keystream(key.uint32(), _DECISIONS, 0, 4, "").view("<u8")[:3])
        ahead = forward < (1 + min(length / self.norm, 1.0)) / 2 * 2**64
        v = np.empty(self.dimension)
        unit, scale = (x, length) if length else (np.eye(1, self.dimension)[0], 1.0)
        towards = scale if ahead else -scale
        in_stretches(v.size, lambda part: np.divide(unit[part], towards, out=v[part]))
        g = gaussians(self.dimension, key)
        along, factor = self._along(cap < self.threshold, (where >> 11) + 0.5), self.norm / self.shrinkage
        missing = along - float(g @ v)

        def moved(part: slice) -> None:
            g[part] += missing * v[part]
            g[part] *= factor

        in_stretches(g.size, moved)
        return g

    def _along(self, in_cap: bool, draw: float) -> float:
        """A Gaussian beyond or below gamma, by inverting its law at a 53-bit draw."""
        part = draw * 2.0**-53
        if in_cap:
            return -NormalDist().inv_cdf(part * self.q)
        return NormalDist().inv_cdf(part * (1 - self.q))


def gaussians(n: int, key: Key) -> Floats:
    """n standard Gaussians in fp64 from 53-bit uniforms (Box and Muller): radii, then angles."""
    pairs = (n + 1) // 2
    g = np.empty(n)

    def work(part: slice) -> None:
        radius = np.sqrt(-2 * np.log((_draws(key, part) + np.uint64(1)) * 2.0**-53))
        angle = _draws(key, slice(pairs + part.start, pairs + part.stop)) * (2 * math.pi * 2.0**-53)
        np.multiply(radius, np.cos(angle), out=g[part])
        sines = g[pairs + part.start : pairs + part.stop]  # the last has none where n is odd
        np.multiply(radius[: sines.size], np.sin(angle[: sines.size]), out=sines)

    in_stretches(pairs, work)
    return g


def _draws(key: Key, part: slice) -> NDArray[np.uint64]:
    """The 53-bit draws of these places of the keystream."""
    a_block = 2 if len(key.words) == 1 else 8
    first = part.start // a_block
    words = _native.keystream(key.uint32(), _GAUSSIANS, first, -(-part.stop // a_block) - first, "").view("<u8")
    return words[part.start - first * a_block :][: part.stop - part.start] >> np.uint64(11)


@lru_cache(maxsize=256)
def _gamma(eps: float, dimension: int) -> float:
    """The cap of least error: its reciprocal rises to one peak in gamma, found by golden section."""

    def quality(z: float) -> float:
        q = _tail(z)
        shrinkage = _density(z) * -math.expm1(-eps) / (q + (1 - q) * math.exp(-eps))
        return shrinkage**2 / (dimension + z * shrinkage)

    low, high = -2.0, math.sqrt(2 * min(eps, 600.0)) + 2
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(100):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (a, high) if quality(a) < quality(b) else (low, b)
    return (low + high) / 2


def _tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
