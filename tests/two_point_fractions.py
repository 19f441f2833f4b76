# SPDX-License-Identifier: Apache-2.0
"""The two-point mechanism's integers in exact rationals, as the document derives them: slow, and one to read."""

import math
from fractions import Fraction

from ldpkernels.common.dtypes import Dtype, compute_dtype, power_of_two
from ldpkernels.laws.two_point import Law, lowest_threshold_of
from ldpkernels.laws.weightwise import DRAWS as N
from ldpkernels.laws.weightwise import Output

SMALLEST_RADIUS = Fraction(1, 2**96)


def two_point_law(c: float, r: float, eps: float, dtype: Dtype, output: Output) -> Law:
    """The integers for a range [c - r, c + r], for reports or for values written back in `dtype`."""
    compute = compute_dtype(dtype)
    center, radius = _checked_range(c, r, compute)
    lowest = lowest_threshold_of(eps)
    half = N // 2 - lowest
    reach = radius * Fraction(N // 2, half)
    if output == "report":
        _refuse_overflow(center, reach, compute, compute.largest / 2)  # the width of the two values is a number too
        slope = compute.ceil(half / radius) if radius else Fraction(1)
        k = half if radius else 0
        return Law(float(center), float(slope), float(center), -k, k, 0, 0, center - reach, center + reach)
    lower, upper = _outputs(center, reach, dtype, compute)
    middle, width = (lower + upper) / 2, upper - lower
    k_hi = math.floor(N * (center + radius - middle) / width) if width else 0
    k_lo = math.ceil(N * (center - radius - middle) / width) if width else 0
    if k_lo > k_hi:  # the range is narrower than a step of T: one threshold for every weight
        k_lo = k_hi = min(max(round(N * (center - middle) / width), 1 - N // 2), N // 2 - 1)
    # Privacy of what is executed, in integers: T_hi / T_lo and its mirror are within (N - lowest) / lowest <= e^eps.
    t_lo, t_hi = N // 2 + k_lo, N // 2 + k_hi
    upper_ok = t_hi * lowest <= (N - lowest) * t_lo
    lower_ok = (N - t_lo) * lowest <= (N - lowest) * (N - t_hi)
    if not (0 < t_lo <= t_hi < N and upper_ok and lower_ok):
        raise ArithmeticError(f"thresholds {t_lo} to {t_hi} break eps={eps} for C={c}, R={r}, {dtype.name}: a bug")
    slope = compute.ceil(N / width) if k_lo < k_hi else Fraction(1)
    bits = dtype.bits(float(lower)), dtype.bits(float(upper))
    return Law(float(middle), float(slope), float(center), k_lo, k_hi, *bits, lower, upper)


def _refuse_overflow(center: Fraction, reach: Fraction, dtype: Dtype, largest: Fraction) -> None:
    if abs(center) + reach > largest:
        raise OverflowError(
            f"C={float(center):g} has outputs that overflow {dtype.name} (largest number {float(dtype.largest):g}): "
            "use a smaller R, a larger eps or a wider dtype"
        )


def _outputs(center: Fraction, reach: Fraction, dtype: Dtype, compute: Dtype) -> tuple[Fraction, Fraction]:
    """The nearest numbers of `dtype` at or outside center +- reach whose middle the kernel can subtract exactly."""
    largest = dtype.largest
    _refuse_overflow(center, reach, dtype, largest)
    lower, upper = dtype.floor(center - reach), dtype.ceil(center + reach)
    if not compute.holds((lower + upper) / 2):
        step = power_of_two(dtype.spacing(max(abs(lower), abs(upper))))
        low, high = math.floor((center - reach) / step), math.ceil((center + reach) / step)
        high += (low + high) % 2
        lower, upper = low * step, high * step
        if upper > largest:
            lower, upper = lower - 2 * step, upper - 2 * step if upper - 2 * step >= center + reach else largest
    return lower, upper


def _checked_range(c: float, r: float, compute: Dtype) -> tuple[Fraction, Fraction]:
    if not math.isfinite(c):
        raise ValueError(f"C={c} must be finite")
    if not math.isfinite(r) or r < 0:
        raise ValueError(f"R={r} must be finite and at least 0")
    try:
        center, radius = Fraction(compute.nearest(c)), Fraction(compute.nearest(r))
    except OverflowError:
        radius = Fraction(compute.largest) + 1
    if radius > compute.largest or abs(center) + radius > compute.largest:
        raise OverflowError(f"C={c} with R={r} leaves {compute.name}: use a smaller range")
    return center, max(radius, SMALLEST_RADIUS) if r > 0 else Fraction(0)
