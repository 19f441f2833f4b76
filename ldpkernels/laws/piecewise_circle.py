# SPDX-License-Identifier: Apache-2.0
"""A band on a circle of cells: the integers that piecewise and hybrid execute, and their proof.

A 32-bit draw u becomes a place v on a circle of `cells` * S places (S = 2^cell_bits): the first `band_draws` draws fill
the band, the first `band` * S places, and the other draws the rest. The weight turns the circle by L places, and the
report is the cell in which v + L lies. Everything here is exact; docs/mechanisms/piecewise.md derives it.
"""

from __future__ import annotations

import decimal
import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from ldpkernels.common.decimals import digits
from ldpkernels.laws.weightwise import DRAWS

PLACES = 2**31  # the most on a circle
MOST_EPS = 40.0  # far above what 32-bit draws can give away


class Circle(NamedTuple):
    """Which draws go where."""

    cells: int
    band: int
    cell_bits: int
    draws: int  # in all; the hybrid mechanism gives the others to a coin
    band_draws: int
    band_scale: int  # u < band_draws:  v = u * band_scale / 2^32
    rest_scale: int  # else:            v = band * S + (u - band_draws) * 2^rest_shift * rest_scale / 2^32
    rest_shift: int

    @property
    def turn(self) -> int:
        """How far a weight may turn the circle: from 0 to this many places."""
        return (self.cells - self.band) << self.cell_bits

    @property
    def most(self) -> int:
        """No interval of S places has more draws."""
        return (DRAWS << self.cell_bits) // self.band_scale + 1

    @property
    def fewest(self) -> int:
        """No interval of S places has fewer draws."""
        return ((1 << self.cell_bits) - 1) * DRAWS // (self.rest_scale << self.rest_shift)

    @property
    def gain(self) -> Fraction:
        """How far the expected report moves when the circle turns by one cell."""
        return _gain_of(self)

    @property
    def half_width(self) -> Fraction:
        """Half of what the expected report moves when the circle turns all the way, in cells."""
        return _half_width(self)

    def draws_below(self, v: int) -> int:
        """How many draws have a place below v."""
        end = self.band << self.cell_bits
        if v <= end:
            return min(self.band_draws, -(-v * DRAWS // self.band_scale))
        rest = self.draws - self.band_draws
        if v >= self.cells << self.cell_bits:
            return self.draws
        return self.band_draws + min(rest, -(-(v - end) * DRAWS // (self.rest_scale << self.rest_shift)))

    def counts(self, turned: int) -> list[int]:
        """How many of the draws report each cell when the circle is turned: the law, exactly."""
        size = 1 << self.cell_bits
        total = self.cells * size
        bounds = [(y * size - turned) % total for y in range(self.cells)]
        below = [self.draws_below(b) for b in bounds]
        out = []
        for y in range(self.cells):
            wraps = bounds[y] + size > total
            after = self.draws_below(bounds[y] + size - total) + self.draws if wraps else None
            out.append((after if after is not None else self.draws_below(bounds[y] + size)) - below[y])
        return out


@lru_cache(maxsize=4096)  # new ranges every round ask again and again
def _gain_of(circle: Circle) -> Fraction:
    spread = circle.band_draws * circle.cells - circle.band * circle.draws
    return Fraction(spread, (circle.cells - circle.band) * circle.draws)


@lru_cache(maxsize=4096)
def _half_width(circle: Circle) -> Fraction:
    return _gain_of(circle) * (circle.cells - circle.band) / 2


@lru_cache(maxsize=256)
def exp_down(eps: float) -> Fraction:
    """A rational just below e^eps."""
    with digits(60, decimal.ROUND_DOWN):
        return Fraction(decimal.Decimal(min(eps, MOST_EPS)).exp() * (1 - decimal.Decimal(10) ** -55))


@lru_cache(maxsize=4096)
def best_circle(eps: float, cells: int, mixed: bool = False, band: int | None = None) -> Circle:
    """The circle of least worst-case variance at eps: alone, or mixed with the two-point mechanism."""
    bound = exp_down(eps)
    growth = float(bound)
    if band is None:
        band = min(range(1, cells), key=lambda w: worst_variance(growth, cells, w, mixed))
    draws = round(DRAWS * Fraction(_gain(growth, cells, band))) if mixed else DRAWS
    cell_bits = min(PLACES, draws).bit_length() - 1 - (cells - 1).bit_length()
    high = math.floor(draws * bound * band / (bound * band + cells - band))
    low = -(-draws * band // cells)  # no band at all
    best = None
    while low <= high:  # the largest that is proved
        middle = (low + high) // 2
        circle = circle_of(cells, band, cell_bits, draws, middle)
        if circle is not None and circle.most <= bound * circle.fewest:
            best, low = circle, middle + 1
        else:
            high = middle - 1
    if best is None or best.gain <= 0:
        raise ValueError(f"eps={eps} is too small to execute with {cells} cells: use at least 2e-6, or 'two-point'")
    return best


class Circles(dict[int, tuple[Circle, int, int]]):
    """By the number of their cells, the best circles at one eps, with numerator and denominator of the half width.

    What is not there yet is computed when it is asked for: a dtype whose spacing is coarse tries a hundred of them.
    """

    def __init__(self, eps: float, mixed: bool = False) -> None:
        self._eps, self._mixed = eps, mixed

    def __missing__(self, cells: int) -> tuple[Circle, int, int]:
        circle = best_circle(self._eps, cells, mixed=self._mixed)
        found = self[cells] = (circle, circle.half_width.numerator, circle.half_width.denominator)
        return found


circles_at = lru_cache(maxsize=32)(Circles)


def circle_of(cells: int, band: int, cell_bits: int, draws: int, band_draws: int) -> Circle | None:
    """The scales for so many draws in the band; None where they do not fit 32 bits."""
    rest = draws - band_draws
    if rest <= 0 or band_draws <= 0:
        return None
    shift = 32 - (rest - 1).bit_length()
    band_scale = (band << cell_bits + 32) // band_draws
    rest_scale = ((cells - band) << cell_bits + 32) // (rest << shift)
    if not (0 < band_scale < DRAWS and 0 < rest_scale < DRAWS and band_scale <= rest_scale << shift):
        return None
    return Circle(cells, band, cell_bits, draws, band_draws, band_scale, rest_scale, shift)


def _gain(growth: float, cells: int, band: int) -> float:
    return band * (growth - 1) / (growth * band + cells - band)


def worst_variance(growth: float, cells: int, band: int, mixed: bool) -> float:
    """The largest variance on the range [-1, 1] in real numbers, by which a band is chosen.

    Only +, -, * and /, so that every machine chooses the same.
    """
    g, w = float(cells), float(band)
    low = 1.0 / (growth * w + g - w)
    gain = low * w * (growth - 1.0)
    step = 2.0 / (gain * (g - w))
    still = low * g * (g * g - 1.0) / 12.0 + gain * (w * w - 1.0) / 12.0
    if mixed:  # flat in the weight, but for the rounding of the turn
        reach = (growth + 1.0) / (growth - 1.0)
        coin = step * (math.ceil(reach / step - 0.5) + 0.5)
        return gain * step * step * (still + gain / 4.0) + (1.0 - gain) * coin * coin
    end = (g - w) / 2.0
    back = (1.0 - 2.0 * (1.0 - gain) * end) / (2.0 * gain)  # from the end of the range, where the variance is largest
    back = min(max(back, 0.0), min(1.0, end))
    return step * step * (still + gain * back * (1.0 - back) + gain * (1.0 - gain) * (end - back) ** 2)
