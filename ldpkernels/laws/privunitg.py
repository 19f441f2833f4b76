# SPDX-License-Identifier: Apache-2.0
"""PrivUnitG (Asi, Feldman, Talwar, ICML 2022): the least error for a whole vector under one eps, in real arithmetic.

docs/mechanisms/vector.md derives it and says what floating-point numbers do to its guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ldpkernels import _native, launch
from ldpkernels.common.arguments import number
from ldpkernels.common.arrays import AnyArray, Array, Floats
from ldpkernels.common.dtypes import FLOAT64, Dtype
from ldpkernels.common.keys import Key
from ldpkernels.inputs import flat
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.vector_law import PureVectorLaw
from ldpkernels.laws.weightwise import checked_eps

if TYPE_CHECKING:
    import torch

_MARGIN = 1e-12  # of the odds of the cap: more than the fp64 error of its probability
_DECISIONS, _NORMALS = 0, 1  # keystreams


@dataclass(frozen=True)
class PrivUnitG(PureVectorLaw):
    """A Gaussian vector, moved into a cap around the update with probability p, scaled to be unbiased.

    eps is between any two updates, against the server, in real arithmetic. The cap is the half-space <g, v> >= gamma,
    and q is the probability that a standard Gaussian lies in it. p, q and gamma have the least error for which p (1 -
    q) / ((1 - p) q) <= e^eps.

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
        """How many of 2^64 draws choose the cap, rounded so that the odds are at most e^eps q / (1 - q)."""
        odds = math.exp(-self.eps) * (1 - self.q) / self.q / (1 - _MARGIN)
        return min(math.floor(2**64 / (1 + odds)), 2**64 - 1)

    @property
    def effective_eps(self) -> float:
        """The eps of these numbers if Gaussians were real numbers: any two updates, for whoever sees a report."""
        q = self.q
        return min(self.eps, math.log(self.threshold / (2**64 - self.threshold)) + math.log1p(-q) - math.log(q) + 1e-15)

    @property
    def shrinkage(self) -> float:
        """E<g, v> of a report g for a unit vector v. Reports are divided by it."""
        p, q = self.p, self.q
        return _density(self.gamma) * (p / q - (1 - p) / (1 - q))

    @property
    def worst_error(self) -> float:
        """Expected squared distance of the output from 0: the distance from x plus its squared length."""
        along = 1 + self.gamma * self.shrinkage
        return self.norm**2 * (self.dimension - 1 + along) / self.shrinkage**2

    def error(self, x: Array) -> float:
        """Expected squared distance of the output from x, a vector of length at most `norm`."""
        return self.worst_error - float(np.sum(np.square(x), dtype=np.float64))

    def sample(self, x: Array, key: Key) -> Floats:
        """A report of x, of any length; NaN counts as 0."""
        x, out = np.ascontiguousarray(x, np.float64), np.empty(self.dimension)
        try:
            self.write([x.ctypes.data], [FLOAT64], [out], key)
        except OverflowError:
            x, unit = flat.direction(x)
            self.write([x.ctypes.data], [FLOAT64], [out], key, unit=unit)
        return out

    def write(
        self,
        addresses: Sequence[int],
        dtypes: Sequence[Dtype],
        outs: Sequence[AnyArray],
        key: Key,
        device: torch.device | None = None,
        *,
        unit: float = 1.0,
    ) -> None:
        """Write a report of an update, whose parts lie at these addresses in a `unit`, to arrays.

        The arrays are fp64 for fp64, else fp32. Everything is on one device; None is the host. A vector inside the ball
        becomes one on the sphere: x / |x| or its opposite, with the probabilities that make it x / norm on average.
        Raises OverflowError before anything is written unless |x| is between 2^-500 and 2^500: beyond that, fp64
        squares lose their last bits, and a vector that is not a unit vector has no guarantee.
        """
        sizes = [math.prod(out.shape) for out in outs]
        if sum(sizes) != self.dimension:
            raise ValueError(f"the update has {sum(sizes)} weights, and dimension={self.dimension}")
        spans = span_table(addresses, [flat.address(out) for out in outs], sizes, dtypes)
        length = launch.norm(spans, device)
        if not 2.0**-500 <= length <= 2.0**500:
            raise OverflowError(f"the length of the update is {length}")
        forward, cap, where = (int(w) for w in _native.keystream(key.uint32(), _DECISIONS, 0, 4, "").view("<u8")[:3])
        ahead = forward < (1 + min(length * unit / self.norm, 1.0)) / 2 * 2**64
        towards = length if ahead else -length  # v = x / towards
        wanted = self._along(cap < self.threshold, (where >> 11) + 0.5)
        missing = wanted - launch.normal_product(spans, key, _NORMALS, device) / towards
        launch.moved_normals(spans, key, _NORMALS, missing / towards, self.norm / self.shrinkage, device)

    def _along(self, in_cap: bool, draw: float) -> float:
        """A Gaussian beyond or below gamma, by inverting its law at a 53-bit draw."""
        part = draw * 2.0**-53
        if in_cap:
            return -NormalDist().inv_cdf(part * self.q)
        return NormalDist().inv_cdf(part * (1 - self.q))


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
