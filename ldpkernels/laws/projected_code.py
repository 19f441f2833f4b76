# SPDX-License-Identifier: Apache-2.0
"""A whole vector in some bits: one of the corners of a random cross-polytope, near the vector with probability p.

ProjUnit's projection (Asi et al. 2023) and a rotated code (Isik et al. 2023), exact in integers:
docs/mechanisms/projected_code.md derives it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from ldpkernels.common import arguments
from ldpkernels.common.arrays import Floats
from ldpkernels.common.decimals import digits
from ldpkernels.common.optional import require
from ldpkernels.laws.vector_law import PureVectorLaw
from ldpkernels.laws.weightwise import checked_eps

LEAST_BITS, MOST_BITS = 2, 13


class _Plan(NamedTuple):
    near: int
    threshold: int
    shrinkage: float
    second: float


@dataclass(frozen=True)
class ProjectedCode(PureVectorLaw):
    """eps-LDP for a whole update in `bits` bits, unbiased, with nearly PrivUnit's error. A `VectorLaw`.

    eps is between any two updates, against the server, which knows the key that is shared. The update is projected at
    random to k = 2^(bits - 1) numbers. The 2 k codewords are the columns of a random rotation and their opposites;
    `near` of them are nearest to the projection. With probability p one of those is sent, otherwise one of the others.

    >>> law = ProjectedCode(8.0, dimension=1_000_000)
    >>> law.bytes, law.near, round(law.worst_error / law.dimension, 3), law.effective_eps <= 8.0
    (2, 7, 0.157, True)
    """

    name: ClassVar[str] = "projected-code"
    eps: float
    dimension: int
    norm: float = 1.0
    bits: int = 11

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", checked_eps(self.eps))
        object.__setattr__(self, "dimension", arguments.count("dimension", self.dimension, most=2**30))
        object.__setattr__(self, "norm", arguments.positive("norm", self.norm))
        object.__setattr__(self, "bits", arguments.count("bits", self.bits, LEAST_BITS, MOST_BITS))

    @property
    def projected(self) -> int:
        """k, the number of numbers to which an update is projected."""
        return 1 << (self.bits - 1)

    @property
    def padded(self) -> int:
        """The power of two to which an update is padded before it is rotated."""
        return max(1 << (self.dimension - 1).bit_length(), self.projected)

    @property
    def stretch(self) -> float:
        """How much longer than `norm` a projection may be: 3.5 of its deviations. Longer ones are clipped."""
        return 1.0 if self.padded == self.projected else 1 + 3.5 / math.sqrt(2 * self.projected)

    @property
    def near(self) -> int:
        """How many of the 2 k codewords are near."""
        return self._plan.near

    @property
    def threshold(self) -> int:
        """How many of 2^64 draws choose a near codeword."""
        return self._plan.threshold

    @property
    def effective_eps(self) -> float:
        """The eps of the integers that are executed: any two updates, for whoever sees a report; rounded up."""
        t, others = self.near, 2 * self.projected - self.near
        ratio = Fraction(self.threshold * others, (2**64 - self.threshold) * t)
        return min(self.eps, math.log(ratio) * (1 + 1e-15) + 1e-15)

    @property
    def length(self) -> float:
        """The length of a decoded codeword, on the scale of the projections."""
        return self.norm * self.stretch / self._plan.shrinkage

    @property
    def worst_error(self) -> float:
        """Expected squared distance of a decoded report from 0: that from the update, plus its squared length."""
        return self.length**2 * (self.dimension / self.projected + self._plan.second)

    @property
    def bytes(self) -> int:
        """Whole bytes of a report."""
        return (self.bits + 7) // 8

    @property
    def _plan(self) -> _Plan:
        return _best(self.eps, self.projected)


def threshold_of(eps: float, near: int, codewords: int) -> int:
    """The most of 2^64 draws whose odds are at most e^eps times those of the near codewords' share."""
    with digits(60):
        odds = Decimal(eps).exp() * near / (codewords - near)
        return min(int(odds / (1 + odds) * 2**64), 2**64 - 1)


@lru_cache(maxsize=256)
def _best(eps: float, k: int) -> _Plan:
    """The number of near codewords of least error."""
    best: _Plan | None = None
    for near in sorted({math.ceil(k ** (i / 60)) for i in range(61)}):
        first, second = moments(k, near)
        threshold = threshold_of(eps, near, 2 * k)
        p = threshold / 2**64
        # the codewords that are not near: the opposites of those that are, and pairs of opposites
        shrinkage = first * (p / near - (1 - p) / (2 * k - near))
        others = (1 - p) / (2 * k - near)
        plan = _Plan(near, threshold, shrinkage, second * (p / near + others) + 2 * (1 - second) * others)
        if best is None or plan.shrinkage > best.shrinkage:
            best = plan
    assert best is not None
    return best


@lru_cache(maxsize=4096)
def moments(k: int, near: int) -> tuple[float, float]:
    """E of the sum of the `near` largest magnitudes of a random unit vector of k numbers, and of their squares.

    >>> [round(m, 6) for m in moments(1, 1)]
    [1.0, 1.0]
    """
    special = require("scipy.special", "accounting", "the law of a projected code")
    x = (np.arange(4096) + 0.5) * (10.0 / 4096)
    q: Floats = special.erfc(x / math.sqrt(2))  # a normal number's magnitude is above x
    # E min(near, N) for the number N of magnitudes above x
    above = near * special.bdtrc(near - 1, k, q)
    if near > 1:
        above = above + k * q * special.bdtr(near - 2, k - 1, q)
    length = math.sqrt(2) * math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2))
    step = 10.0 / 4096
    return float(above.sum() * step / length), min(1.0, float((2 * x * above).sum() * step / k))
