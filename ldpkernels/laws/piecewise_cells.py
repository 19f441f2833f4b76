# SPDX-License-Identifier: Apache-2.0
"""Where the cells of a circle lie among the weights: for reports, and for values of a tensor's own dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from ldpkernels.dtypes import Dtype, compute_dtype, power_of_two
from ldpkernels.laws.piecewise_circle import Circle
from ldpkernels.laws.weightwise import DRAWS, Record, Weights

BYTE_CELLS = 256  # of a report: one byte
VALUE_CELLS = 1023  # of values, where the dtype has so many


class Coin(NamedTuple):
    """The hybrid mechanism's other draws: "upper" for as many of them as the weight says."""

    draws: int
    lowest: int  # of them are "upper" at k_lo
    shift: int
    scale: int  # lowest + ((k - k_lo) * 2^shift * scale) / 2^32 at k
    lower: int  # the two cells
    upper: int

    def upper_draws(self, raised: int) -> int:
        """How many draws are "upper" at k = k_lo + raised."""
        return self.lowest + ((raised << self.shift) * self.scale >> 32)


class Cells(NamedTuple):
    """A circle and where it lies. Cell y is the number lowest + step * y."""

    circle: Circle
    lowest: Fraction
    step: Fraction
    center: Fraction  # of the range, and what a NaN is taken for
    slope: Fraction  # places a unit of weight, as the kernel has it
    origin: int  # turn of the circle at the center
    k_lo: int
    k_hi: int
    coin: Coin | None = None

    def piecewise_record(self) -> Record:
        """The fields of csrc's PiecewiseLaw."""
        circle = self.circle
        band_end, places = circle.band << circle.cell_bits, circle.cells << circle.cell_bits
        shift, folded = circle.rest_shift, circle.rest_scale << circle.rest_shift
        rest = (folded, 0) if folded < DRAWS else (circle.rest_scale, shift)  # the same products, without a shift
        scales = circle.band_draws, circle.band_scale, *rest
        start = float(self.center), float(self.slope), float(self.center), self.k_lo, self.k_hi, self.origin
        return (*start, *scales, band_end, places, circle.cell_bits, float(self.lowest), float(self.step))

    def hybrid_record(self) -> Record:
        """The fields of csrc's HybridLaw."""
        coin = self.coin or Coin(0, 0, 0, 0, 0, 0)
        last_draw = self.circle.draws - 1
        return (self.piecewise_record(), last_draw, coin.lowest, coin.shift, coin.scale, coin.lower, coin.upper)

    def ratio(self) -> Fraction:
        """How much likelier a report can be under one weight than under another, at most: the proof of eps."""
        worst = Fraction(self.circle.most, self.circle.fewest)
        if self.coin is None:
            return worst
        low, high = self.coin.lowest, self.coin.upper_draws(self.k_hi - self.k_lo)
        return max(worst, Fraction(high, low), Fraction(self.coin.draws - low, self.coin.draws - high))

    def counts(self, turned: int) -> list[int]:
        """How many of the 2^32 draws report each cell when the circle is turned by so many places."""
        counts = self.circle.counts(turned)
        if self.coin is not None:
            upper = self.coin.upper_draws(turned - self.origin - self.k_lo)
            counts[self.coin.upper] += upper
            counts[self.coin.lower] += self.coin.draws - upper
        return counts

    def turned(self, w: float) -> int:
        """The places by which a weight turns the circle, but for the rounding of the kernel's own arithmetic."""
        k = round((Fraction(w) - self.center) * self.slope)
        return self.origin + min(max(k, self.k_lo), self.k_hi)

    def variance(self, x: Weights, c: float) -> Weights:
        """Variance of the reported value for weights x within the range: numbers, arrays or tensors."""
        circle, step = self.circle, float(self.step)
        if not step:
            return 0 * x
        gain, size = float(circle.gain), 1 << circle.cell_bits
        turn = self.origin / size + (x - c) * float(self.slope / size)
        dither = turn % 1
        shift = turn - (circle.cells - circle.band) / 2
        still, curved, bent = self._moments()
        return step**2 * (still[0] + still[1] * gain * shift + bent * dither * (1 - dither) + curved * shift * shift)

    def worst_variance(self) -> float:
        """The largest variance over the range, for a circle that its range turns all the way."""
        (still, _), curved, bent = self._moments()
        span = self.circle.cells - self.circle.band
        if curved >= 0:  # near an end
            back = (bent - curved * span) / (2 * (bent - curved)) if bent > curved else 0.0
            back = min(max(back, 0.0), min(1.0, span / 2))
            return float(self.step) ** 2 * (still + bent * back * (1 - back) + curved * (span / 2 - back) ** 2)
        off = 0.0 if span % 2 else min(0.5, bent / (2 * (bent - curved)))  # near the middle
        dither = 0.5 if span % 2 else off
        return float(self.step) ** 2 * (still + bent * dither * (1 - dither) + curved * off * off)

    def _moments(self) -> tuple[tuple[float, float], float, float]:
        """The variance in squared cells: constant and slope in the mean, curvature in the turn, what dither adds."""
        circle, gain = self.circle, float(self.circle.gain)
        share = circle.draws / DRAWS
        g, w = circle.cells, circle.band
        low = (circle.draws - circle.band_draws) / ((g - w) * circle.draws)
        still, tilt = share * (low * g * (g * g - 1) / 12 + gain * (w * w - 1) / 12), 0.0
        if self.coin is not None:
            upper, lower = self.coin.upper - (g - 1) / 2, self.coin.lower - (g - 1) / 2
            still, tilt = still - (1 - share) * upper * lower, (1 - share) * (upper + lower)
        return (still, tilt), share * gain - gain * gain, share * gain


def report_cells(center: Fraction, radius: Fraction, dtype: Dtype, circle: Circle) -> Cells:
    """The cells of a report: the middle of the circle is c, and the ends of the range turn it to its ends."""
    step = radius / circle.half_width
    lowest = center - step * (circle.cells - 1) / 2
    half = circle.turn // 2 if radius else 0
    slope = compute_dtype(dtype).ceil(half / radius) if radius else Fraction(1)
    return Cells(circle, lowest, step, center, slope, circle.turn // 2, -half, half)


def value_cells(center: Fraction, radius: Fraction, dtype: Dtype, circle_of: Callable[[int], Circle]) -> Cells:
    """Cells that are numbers of `dtype`: evenly spaced, so that nothing is rounded, and wide enough to hold the range.

    The spacing is a multiple of the dtype's own at the largest value. Where that is coarse there are fewer cells; the
    expected value is the weight all the same.
    """
    fine = circle_of(VALUE_CELLS)
    reach = radius * (fine.cells - 1) / (2 * fine.half_width)
    exponent = dtype.spacing(abs(center) + reach)
    for unit_exponent in range(exponent, exponent + 4):
        unit = power_of_two(unit_exponent)
        circle, multiple = _fitting(center, radius, unit, dtype, fine, circle_of)
        lowest = _nearest(center - multiple * unit * (circle.cells - 1) / 2, unit)
        highest = lowest + multiple * unit * (circle.cells - 1)
        largest = max(-lowest, highest)
        if largest > dtype.largest:
            break
        if largest <= unit * (1 << dtype.precision):
            return _placed(circle, lowest, multiple * unit, center, radius, dtype)
    raise OverflowError(
        f"C={float(center):g} has outputs that overflow {dtype.name} (largest number {float(dtype.largest):g}): "
        "use a smaller R, a larger eps or a wider dtype"
    )


def _fitting(
    center: Fraction, radius: Fraction, unit: Fraction, dtype: Dtype, fine: Circle, circle_of: Callable[[int], Circle]
) -> tuple[Circle, int]:
    """A circle, and the multiple of `unit` that a cell of it spans."""
    if not radius and _nearest(center, unit) == center:
        return fine, 0
    multiple = math.ceil((radius + unit / 2) / (fine.half_width * unit))
    if multiple * (fine.cells - 1) > 1 << compute_dtype(dtype).precision:
        multiple += multiple % 2  # the kernel's products stay exact
    if multiple > 64:
        return fine, multiple
    step = multiple * unit
    for cells in range(_cells_needed(radius, step, fine), fine.cells):
        circle = circle_of(cells)
        if circle.half_width * step < radius:
            continue
        middle = _nearest(center - step * (cells - 1) / 2, unit) + step * (cells - 1) / 2
        if circle.half_width * step >= radius + abs(center - middle):
            return circle, multiple
    return fine, multiple


def _cells_needed(radius: Fraction, step: Fraction, fine: Circle) -> int:
    """A number of cells from which to look for the first that suffices."""
    return max(2, math.floor(radius / step / fine.half_width * fine.cells * Fraction(9, 10)) - 2)


def _placed(
    circle: Circle, lowest: Fraction, step: Fraction, center: Fraction, radius: Fraction, dtype: Dtype
) -> Cells:
    size = 1 << circle.cell_bits
    if not step:
        return Cells(circle, lowest, step, center, Fraction(1), circle.turn // 2, 0, 0)
    places_a_unit = circle.cells_a_unit(step) * size
    middle = lowest + step * (circle.cells - 1) / 2
    origin = round((center - middle) * places_a_unit + Fraction(circle.turn, 2))
    k_lo = max(-origin, -round(radius * places_a_unit))
    k_hi = min(circle.turn - origin, round(radius * places_a_unit))
    compute = compute_dtype(dtype)
    slope = compute.ceil(places_a_unit)
    if not compute.holds(slope):
        raise OverflowError(f"R={float(radius):g} is too small for {dtype.name}: use R=0 or at least 2^-96")
    return Cells(circle, lowest, step, center, slope, origin, k_lo, k_hi)


def _nearest(x: Fraction, unit: Fraction) -> Fraction:
    return round(x / unit) * unit
