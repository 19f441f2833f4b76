# SPDX-License-Identifier: Apache-2.0
"""The integers that execute ordinal CLDP's law of magnitudes, and the alpha that they give.

They are computed in decimal arithmetic with far more digits than they have, for a rate so little below the one that is
asked for that no rounding can exceed it; the kernels only compare (csrc/mechanisms/ordinal_cldp.h).
docs/mechanisms/ordinal_cldp.md has the law and the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from ldpkernels.common.decimals import context

Noise = Literal["exponential", "laplace"]  # what users call the mechanism

DIGITS = 128  # binary digits of a threshold
RANGE = 2**DIGITS  # of a threshold
COLUMNS = 64  # of an alias table
MASS = COLUMNS * RANGE  # of all values of a table
MIDDLE = 6  # digits of the middle table, at most
REACH = 7  # a tail has a probability of at most e^-7
FAR = 14  # and of at least e^-28, unless the upper table has no other value but 0

EXACT = context(100)
MARGIN = Decimal("1e-60")  # above what 100 digits lose
FINER = EXACT.power(2, -60), EXACT.power(2, -110)  # relatively and absolutely: what integers round, and far more
LOST = EXACT.power(2, -117)  # a step of ln P(g) by what the kernel's products of losses round


class Magnitudes(NamedTuple):
    """P(g) = tail^q upper[h] middle[m] keep(l), where g = q unit + (h 2^digits + m) 2^low + l, but for a factor.

    keep(l) is the product of 1 - loss over the binary digits of l.
    """

    losses: tuple[int, ...]  # out of 2^128, for each low digit
    middle: tuple[int, ...]  # masses of a power of two of values, out of 64 * 2^128
    upper: tuple[int, ...]  # masses of at most 63 values
    tail: int  # the mass that is left: 0, or of no consequence, where the others reach every magnitude
    bounded: bool  # whether they do
    lipschitz: Decimal  # the largest |ln P(g + 1) - ln P(g)| over all magnitudes g

    @property
    def column(self) -> int:
        """How many magnitudes a value of the upper table stands for."""
        return len(self.middle) << len(self.losses)

    @property
    def unit(self) -> int:
        """How many magnitudes all values of the upper table stand for."""
        return len(self.upper) * self.column


@lru_cache(maxsize=1024, typed=True)  # True is no 1
def magnitudes_for(alpha: float, m: int, mechanism: Noise) -> Magnitudes:
    """Integers whose law has |ln P(g + 1) - ln P(g)| <= s, where s is alpha / 2 (exponential) or alpha (laplace)."""
    rate = Fraction(alpha) / (2 if mechanism == "exponential" else 1)
    largest = 2 * m if mechanism == "exponential" else None
    digits = 0
    while rate * 63 * 2**digits < REACH and (largest is None or 63 * 2**digits <= largest):
        digits += 1
    count = 63 if digits else min(63, -(-FAR // max(rate, Fraction(FAR, 63))))
    if largest is not None:
        count = min(count, largest // 2**digits + 1)
    bounded = largest is not None and count * 2**digits > largest
    with localcontext(EXACT):
        s = Decimal(rate.numerator) / Decimal(rate.denominator)
        finer = min((s * (1 - FINER[0]) - FINER[1]).max(Decimal(0)), Decimal(1000))
        low = max(digits - MIDDLE, 0)
        losses = tuple(_floor(RANGE * (1 - (-finer * 2**j).exp())) for j in range(low))
        middle = _masses((-finer * 2**low).exp(), 2 ** (digits - low), Decimal(0))
        middle = (MASS - sum(middle[1:]), *middle[1:])
        ratio = (-finer * 2**digits).exp()
        upper = _masses(ratio, count, Decimal(0) if bounded else ratio**count / (1 - ratio))
        if not bounded and sum(upper) == MASS:
            upper = (MASS - 1,)
        lipschitz = _steepest(losses, middle, upper, bounded)
        if not lipschitz <= s:
            raise ArithmeticError(f"integers for alpha={alpha}, M={m} ({mechanism}) break alpha: a bug")
    return Magnitudes(losses, middle, upper, MASS - sum(upper), bounded, lipschitz)


def _masses(ratio: Decimal, count: int, beyond: Decimal) -> tuple[int, ...]:
    """Masses in proportion to ratio^i, i < count, rounded down, where `beyond` is the weight of what is not of them."""
    weights = [Decimal(1)]
    for _ in range(count - 1):
        weights.append(weights[-1] * ratio)
    unit = MASS / (sum(weights) + beyond)
    return tuple(_floor(unit * weight) for weight in weights)


def _steepest(losses: Sequence[int], middle: Sequence[int], upper: Sequence[int], bounded: bool) -> Decimal:
    """The largest |ln P(g + 1) - ln P(g)|: a digit or value comes, all lower ones, at their last, go."""
    gone, steps = Decimal(0), [Decimal(0)]  # by how much ln P rises where all lower ones go
    for loss in losses:
        kept = (Decimal(RANGE - loss) / RANGE).ln()
        steps.append(gone + kept)
        gone -= kept
    for masses in (middle, upper):
        ratios = [Decimal(b) / a for a, b in pairwise(masses)]
        steps += [gone + ratio.ln() for ratio in ({min(ratios), max(ratios)} if ratios else ())]
        gone += (Decimal(masses[0]) / masses[-1]).ln()
    if not bounded:
        steps.append(gone + (Decimal(MASS - sum(upper)) / MASS).ln())
    return max(abs(step) for step in steps) + (LOST if any(losses) else 0)


def alias(masses: Sequence[int]) -> tuple[list[int], list[int]]:
    """Thresholds out of 2^128 and other values of 64 columns; masses are out of 64 * 2^128, and all of it.

    Column i is value i with its threshold's probability, else its other value.
    """
    left = [*masses, *[0] * (COLUMNS - len(masses))]
    thresholds, others = [0] * COLUMNS, list(range(COLUMNS))  # a column that is its value alone needs no threshold
    small = [i for i, mass in enumerate(left) if mass < RANGE]
    large = [i for i, mass in enumerate(left) if mass >= RANGE]
    while small:
        i, j = small.pop(), large[-1]
        thresholds[i], others[i] = left[i], j
        left[j] -= RANGE - left[i]
        if left[j] < RANGE:
            small.append(large.pop())
    return thresholds, others


def _floor(x: Decimal) -> int:
    return int(x.to_integral_value(ROUND_FLOOR))
