# SPDX-License-Identifier: Apache-2.0
"""Symmetric noise on the integers from a table: what a kernel executes, and how far that is from the law it stands for.

A table holds the distribution function of a magnitude to 88 bits; a draw is compared with its first 24, and with the
rest on a tie. docs/mechanisms/vector_gaussian.md has the sampler and the bound of its distance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ldpkernels.common.arrays import Words
from ldpkernels.common.decimals import digits

HIGH, BITS, GUIDE = 24, 88, 10  # bits of the first comparison, of a probability, of the guide
FINE = 64  # standard deviation of the table that shifts multiply
MOST_SHIFT = 16
MOST_STDDEV = 1024.0
LEAST_STDDEV = 0.5
DISTANCE = 2.0**-74  # of any table from its law, at most
_TAIL = Fraction(1, 2 ** (BITS + 2))  # what may be missing beyond a table's end
_DIGITS = 60


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """What a kernel reads, and two facts about it.

    Without a shift the magnitude is the table's number. With a shift a it is 2^a times that, plus a bits, kept with
    the probability that makes it a discrete Gaussian of standard deviation 64 * 2^a.
    """

    high: Words  # the first 24 bits of the cumulative probabilities; the last is 2^24
    low: NDArray[np.uint64]  # the other 64
    guide: Words  # by the first 10 bits of a draw: the first entry that can be its number
    shift: int
    stddev: float
    distance: float  # in total variation from the law that the table stands for, at most

    @property
    def largest(self) -> int:
        """No draw has a larger magnitude."""
        return (int(self.high.size) << self.shift) - 1


@lru_cache(maxsize=64)
def gaussian_table(stddev: float) -> NoiseTable:
    """The discrete Gaussian, P(y) proportional to exp(-y^2 / (2 stddev^2)), of any deviation from 0.5 to 1024.

    >>> gaussian_table(10.0).distance < 1e-23
    True
    """
    if not LEAST_STDDEV <= stddev <= MOST_STDDEV:
        raise ValueError(f"stddev={stddev} must be from {LEAST_STDDEV} to {MOST_STDDEV} units of the grid")
    return _table(_magnitudes(_bell(stddev)), 0, stddev)


@lru_cache(maxsize=MOST_SHIFT)
def wide_gaussian_table(shift: int) -> NoiseTable:
    """The discrete Gaussian of deviation 64 * 2^shift, a shift from 1 to 16.

    >>> wide_gaussian_table(16).stddev == 2.0**22
    True
    """
    if not 1 <= shift <= MOST_SHIFT:
        raise ValueError(f"shift={shift} must be from 1 to {MOST_SHIFT}")
    return _table(_bell(float(FINE)), shift, float(FINE * 2**shift))


@lru_cache(maxsize=64)
def skellam_table(variance: float) -> NoiseTable:
    """The difference of two Poisson numbers of mean variance / 2: P(k) = exp(-variance) I_k(variance).

    >>> skellam_table(100.0).stddev
    10.0
    """
    if not LEAST_STDDEV**2 <= variance <= MOST_STDDEV**2:
        raise ValueError(f"variance={variance} must be from {LEAST_STDDEV**2} to {MOST_STDDEV**2:g} units of the grid")
    with digits(_DIGITS):
        # Miller: I_(k-1) = I_(k+1) + (2 k / v) I_k, backward from where they are nothing; they are exp(v) together
        last = math.ceil(40 + 20 * math.sqrt(variance))
        above, here, found = Decimal(0), Decimal(1), [Decimal(1)]
        for k in range(last, 0, -1):
            above, here = here, above + 2 * k / Decimal(variance) * here
            found.append(here)
        found.reverse()
    return _table(_magnitudes(found), 0, math.sqrt(variance))


def _bell(stddev: float) -> list[Decimal]:
    """exp(-k^2 / (2 stddev^2)) for k = 0, 1, ..., until the rest is nothing."""
    with digits(_DIGITS):
        step = (Decimal(-1) / (2 * Decimal(stddev) ** 2)).exp()
        weight, ratio, square, found = Decimal(1), step, step * step, []
        while weight > Decimal(10) ** -40:
            found.append(weight)
            weight *= ratio
            ratio *= square
    return found


def _magnitudes(weights: Iterable[Decimal]) -> list[Decimal]:
    """Either sign has the weight, and 0 has none."""
    first, *others = weights
    with digits(28):
        return [first, *(2 * weight for weight in others)]


def _table(weights: list[Decimal], shift: int, stddev: float) -> NoiseTable:
    with digits(_DIGITS):
        total = sum(weights, Decimal(0))
        tails = [Decimal(0)]
        for weight in reversed(weights):
            tails.append(tails[-1] + weight / total)
        tails.reverse()
        size = next(k for k in range(1, len(tails)) if tails[k] <= _TAIL)
        scale = Decimal(2) ** BITS
        cumulated = [int(((1 - tail) * scale).to_integral_value(ROUND_FLOOR)) for tail in tails[1 : size + 1]]
    cumulated[-1] = 2**BITS
    high = np.array([c >> (BITS - HIGH) for c in cumulated], np.uint32)
    low = np.array([c & (2 ** (BITS - HIGH) - 1) for c in cumulated], np.uint64)
    starts = np.arange(2**GUIDE, dtype=np.uint32) << np.uint32(HIGH - GUIDE)
    guide = np.searchsorted(high, starts, side="left").astype(np.uint32)
    # each of `size` probabilities errs by a unit of the 88 bits, and the tail is missing; a draw that is kept with a
    # probability of at least 9/10 is farther by 2 / (9/10) at most
    distance = (size + 1) * 2.0**-BITS + float(_TAIL)
    return NoiseTable(high, low, guide, shift, stddev, distance * (2.3 if shift else 1.0))
