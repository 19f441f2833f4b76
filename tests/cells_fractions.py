# SPDX-License-Identifier: Apache-2.0
"""Where cells of values lie, and the hybrid mechanism's coin, in exact rationals: slow, and one to read."""

import math
from collections.abc import Callable
from fractions import Fraction

from ldpkernels.dtypes import Dtype, compute_dtype, power_of_two
from ldpkernels.laws.piecewise_cells import VALUE_CELLS, Cells, Coin
from ldpkernels.laws.piecewise_circle import Circle, exp_down
from ldpkernels.laws.weightwise import DRAWS


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
    places_a_unit = size / (step * circle.gain)  # a unit of weight turns the circle by so many
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


def coin_of(cells: Cells, radius: Fraction, eps: float) -> Coin | None:
    """The two-point mechanism between the cells next to its own two values, with its thresholds rounded inwards."""
    draws, bound = DRAWS - cells.circle.draws, exp_down(eps)
    if not cells.step:
        return None
    reach = radius * (bound + 1) / (bound - 1)
    lower = max(0, math.floor((cells.center - reach - cells.lowest) / cells.step))
    upper = min(cells.circle.cells - 1, math.ceil((cells.center + reach - cells.lowest) / cells.step))
    if lower >= upper:
        return None
    share = Fraction(draws, (upper - lower)) / cells.step
    lower_value = cells.lowest + lower * cells.step
    low = math.ceil((cells.center - radius - lower_value) * share)
    high = math.floor((cells.center + radius - lower_value) * share)
    if not 0 < low <= high < draws or high > bound * low or draws - low > bound * (draws - high):
        return None
    span = cells.k_hi - cells.k_lo
    shift = 32 - span.bit_length()
    scale = ((high - low) << 32) // (span << shift) if span else 0
    return Coin(draws, low, shift if span else 0, scale, lower, upper)
