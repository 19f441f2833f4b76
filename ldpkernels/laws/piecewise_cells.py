# SPDX-License-Identifier: Apache-2.0
"""Where the cells of a circle lie among the weights: for reports, and for values of a tensor's own dtype."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ldpkernels.common.dtypes import Dtype, compute_dtype, nearest
from ldpkernels.laws.piecewise_circle import Circle, Circles
from ldpkernels.laws.weightwise import DRAWS, Record, Weights

BYTE_CELLS = 256  # of a report: one byte
VALUE_CELLS = 1023  # of values, where the dtype has so many
ONE = Fraction(1)


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
    slope = Fraction(compute_dtype(dtype).ceil_at(half * radius.denominator, radius.numerator, 0)) if radius else ONE
    return Cells(circle, lowest, step, center, slope, circle.turn // 2, -half, half)


class Grid(NamedTuple):
    """A range and the spacing of outputs, in units of 2^exponent: fractions would take four times as long."""

    center: int
    radius: int
    unit: int  # even
    exponent: int

    @classmethod
    def of(cls, center: Fraction, radius: Fraction, unit_exponent: int) -> Grid:
        """The range's numbers are a float's."""
        exponent = min(1 - center.denominator.bit_length(), 1 - radius.denominator.bit_length(), unit_exponent - 1)
        center_up = center.numerator << (1 - center.denominator.bit_length() - exponent)
        radius_up = radius.numerator << (1 - radius.denominator.bit_length() - exponent)
        return cls(center_up, radius_up, 1 << (unit_exponent - exponent), exponent)

    def rounded(self, n: int) -> int:
        """The nearest multiple of the unit."""
        return nearest(n, self.unit) * self.unit

    def exact(self, n: int) -> Fraction:
        """n in units of weight."""
        return Fraction(n << self.exponent) if self.exponent >= 0 else Fraction(n, 1 << -self.exponent)


def value_cells(center: Fraction, radius: Fraction, dtype: Dtype, circles: Circles) -> Cells:
    """Cells that are numbers of `dtype`: evenly spaced, so that nothing is rounded, and wide enough to hold the range.

    The spacing is a multiple of the dtype's own at the largest value. Where that is coarse there are fewer cells; the
    expected value is the weight all the same.
    """
    fine, half_over, half_under = circles[VALUE_CELLS]
    plain = Grid.of(center, radius, 0)
    reach = plain.radius * (fine.cells - 1) * half_under + abs(plain.center) * 2 * half_over
    exponent = dtype.spacing_at(reach, 2 * half_over, plain.exponent)
    for unit_exponent in range(exponent, exponent + 4):
        grid = Grid.of(center, radius, unit_exponent)
        circle, multiple = _fitting(grid, dtype, circles)
        step = multiple * grid.unit
        lowest = grid.rounded(grid.center - step * (circle.cells - 1) // 2)
        largest = max(-lowest, lowest + step * (circle.cells - 1))
        if dtype.exceeded(largest, 1, grid.exponent):
            break
        if largest <= grid.unit << dtype.precision:
            return _placed(circle, lowest, step, grid, dtype)
    raise OverflowError(
        f"C={float(center):g} has outputs that overflow {dtype.name} (largest number {float(dtype.largest):g}): "
        "use a smaller R, a larger eps or a wider dtype"
    )


def _fitting(grid: Grid, dtype: Dtype, circles: Circles) -> tuple[Circle, int]:
    """A circle, and the multiple of the unit that a cell of it spans."""
    center, radius, unit, _ = grid
    fine, half_over, half_under = circles[VALUE_CELLS]
    if not radius and grid.rounded(center) == center:
        return fine, 0
    multiple = -(-(radius + unit // 2) * half_under // (half_over * unit))
    if multiple * (fine.cells - 1) > 1 << compute_dtype(dtype).precision:
        multiple += multiple % 2  # the kernel's products stay exact
    if multiple > 64:
        return fine, multiple
    step = multiple * unit
    start = max(2, radius * half_under * fine.cells * 9 // (step * half_over * 10) - 2)
    for cells in range(start, fine.cells):  # the first number of cells that suffices
        circle, half_over, half_under = circles[cells]
        wide = half_over * step
        if wide < radius * half_under:
            continue
        span = step * (cells - 1) // 2  # the unit is even
        middle = grid.rounded(center - span) + span
        if wide >= (radius + abs(center - middle)) * half_under:
            return circle, multiple
    return fine, multiple


def _placed(circle: Circle, lowest: int, step: int, grid: Grid, dtype: Dtype) -> Cells:
    center = grid.exact(grid.center)
    if not step:
        return Cells(circle, grid.exact(lowest), Fraction(0), center, ONE, circle.turn // 2, 0, 0)
    # a place of the circle is `width` / `size` units
    size, width = circle.gain.denominator << circle.cell_bits, step * circle.gain.numerator
    middle = lowest + step * (circle.cells - 1) // 2
    origin = nearest(2 * (grid.center - middle) * size + circle.turn * width, 2 * width)
    half = nearest(grid.radius * size, width)
    k_lo, k_hi = max(-origin, -half), min(circle.turn - origin, half)
    compute = compute_dtype(dtype)
    if compute.exceeded(size, width, -grid.exponent):
        raise OverflowError(
            f"R={float(grid.exact(grid.radius)):g} is too small for {dtype.name}: use R=0 or at least 2^-96"
        )
    slope = Fraction(compute.ceil_at(size, width, -grid.exponent))
    return Cells(circle, grid.exact(lowest), grid.exact(step), center, slope, origin, k_lo, k_hi)
