# SPDX-License-Identifier: Apache-2.0
"""The two-point mechanism: its claim, and the integers that execute it.

A report is one bit: "upper" with probability T / 2^32, where the integer T depends on the weight. Everything here is
computed on the host in exact rationals; the kernels only clamp, multiply, round and compare
(csrc/mechanisms/two_point.h).
The derivation is in docs/mechanisms/two_point.md.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, NamedTuple

from ldpkernels.accounting.events import RandomizedResponseEvent
from ldpkernels.common.decimals import digits
from ldpkernels.common.dtypes import Dtype, DtypeLike, compute_dtype, dtype_named, floor_at, nearest, scaled
from ldpkernels.laws.weightwise import DRAWS, Output, Record, Reported, Weights, checked_eps, clipping_bias, log_up

SMALLEST_RADIUS = 2.0**-96  # keeps every slope finite in fp32


class Law(NamedTuple):
    """What a kernel executes for one range; the first seven fields are csrc's TwoPointLaw."""

    center: float
    slope: float
    fallback: float
    k_lo: int
    k_hi: int
    lower_bits: int
    upper_bits: int
    lower: Fraction
    upper: Fraction


@dataclass(frozen=True)
class TwoPoint:
    """The two-point mechanism of LDP-FL at eps for each weight: between any two values of it, against the server.

    >>> mechanism = TwoPoint(1.0)
    >>> mechanism.effective_eps <= 1.0
    True
    >>> mechanism.variance(0.0, c=0.0, r=1.0) == mechanism.scale**2
    True
    """

    eps: float
    name: ClassVar[str] = "two-point"
    kernel: ClassVar[str] = "two_point"
    reported: ClassVar[Reported] = "bits"

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", checked_eps(self.eps))

    @property
    def executed(self) -> TwoPoint:
        """Itself."""
        return self

    @property
    def lowest_threshold(self) -> int:
        """The least T that is executed; the greatest is 2^32 minus this."""
        return lowest_threshold_of(self.eps)

    @property
    def half_range(self) -> int:
        """How far a report's T may lie from 2^31 (H in the documentation)."""
        return DRAWS // 2 - self.lowest_threshold

    @property
    def effective_eps(self) -> float:
        """The eps of the integers that are executed: any two weights, for whoever sees a report; rounded up."""
        return min(self.eps, log_up(Fraction(DRAWS - self.lowest_threshold, self.lowest_threshold)))

    @property
    def scale(self) -> float:
        """How far from the center a report decodes to, in units of r (B_eff in the documentation)."""
        return DRAWS // 2 / self.half_range

    @property
    def event(self) -> RandomizedResponseEvent:
        """What one report of one weight costs, for `ldpkernels.accounting`."""
        return RandomizedResponseEvent(self.effective_eps)

    @classmethod
    def report_variances(cls, eps: float) -> tuple[float, float] | None:
        """The variance of a report on [-1, 1], at worst and at the center, which is where it is worst."""
        most = cls(eps).scale ** 2
        return most, most

    def record(self, c: float, r: float, dtype: Dtype, output: Output) -> Record:
        """The fields of csrc's TwoPointLaw."""
        return two_point_integers(c, r, self.eps, dtype, output).record

    def affine(self, c: float, r: float) -> tuple[float, float]:
        """A report's bit decodes to offset + step * bit."""
        reach = r * self.scale
        return c - reach, 2 * reach

    def executed_range(self, c: float, r: float, dtype: Dtype) -> tuple[float, float]:
        """C and R as a report of `dtype` executes them."""
        two_point_integers(c, r, self.eps, dtype, "report")  # its outputs are checked
        return executed_range(c, r, dtype)

    def outputs(self, c: float, r: float, dtype: DtypeLike | None = None) -> tuple[float, float]:
        """The two values: those of `perturb_` on tensors of `dtype`, or without a dtype those that a report decodes to.

        >>> TwoPoint(1.0).outputs(0.0, 1.0, "bfloat16")
        (-2.171875, 2.171875)
        """
        law = two_point_law(c, r, self.eps, dtype_named(dtype or "float64"), "values" if dtype else "report")
        return float(law.lower), float(law.upper)

    def variance(self, w: Weights, c: float, r: float, dtype: DtypeLike | None = None) -> Weights:
        """Variance of the output for a weight w (a number, an array or a tensor), clipped to [c - r, c + r]."""
        lower, upper = self.outputs(c, r, dtype)
        x = w + self.bias(w, c, r)
        return (upper - x) * (x - lower)

    def bias(self, w: Weights, c: float, r: float) -> Weights:
        """Expected output minus w: the part that clipping to [c - r, c + r] cuts off, and nothing else.

        >>> TwoPoint(1.0).bias(3.0, c=0.0, r=1.0)
        -2.0
        """
        return clipping_bias(w, c, r)

    def executed_eps(self, c: float, r: float, dtype: DtypeLike) -> float:
        """eps as `perturb_` executes it in `dtype`, at most `effective_eps`: any two weights, for whoever sees one."""
        law = two_point_law(c, r, self.eps, dtype_named(dtype), "values")
        t_lo, t_hi = DRAWS // 2 + law.k_lo, DRAWS // 2 + law.k_hi
        return min(self.effective_eps, log_up(max(Fraction(t_hi, t_lo), Fraction(DRAWS - t_lo, DRAWS - t_hi))))


class Integers(NamedTuple):
    """A law's record, and its two values as integers of one denominator."""

    record: tuple[float, float, float, int, int, int, int]  # the first seven fields of `Law`
    low: int
    high: int
    denominator: int


@lru_cache(maxsize=4096)
def two_point_law(c: float, r: float, eps: float, dtype: Dtype, output: Output) -> Law:
    """The integers for a range [c - r, c + r], for reports or for values written back in `dtype`."""
    record, low, high, denominator = two_point_integers(c, r, eps, dtype, output)
    return Law(*record, Fraction(low, denominator), Fraction(high, denominator))


@lru_cache(maxsize=4096)
def two_point_integers(c: float, r: float, eps: float, dtype: Dtype, output: Output) -> Integers:
    """The record of `two_point_law`, without fractions: adaptive ranges are new every round, and they are slow."""
    compute = compute_dtype(dtype)
    c, r, center, radius, unit = _executed(c, r, compute)
    lowest = lowest_threshold_of(eps)
    half = DRAWS // 2 - lowest
    # The two values, c +- r * 2^31 / half, are low and high in units of 2^unit / half.
    low, high = center * half - radius * (DRAWS // 2), center * half + radius * (DRAWS // 2)
    if output == "report":
        _refuse_overflow(c, max(-low, high), half, unit + 1, compute)  # the width of the two values is a number too
        slope = compute.ceil_at(half, radius, -unit) if radius else 1.0
        k = half if radius else 0
        return Integers((c, slope, c, -k, k, 0, 0), low, high, half << -unit)
    _refuse_overflow(c, max(-low, high), half, unit, dtype)
    lower, upper, exponent = _outputs(low, high, half, unit, dtype, compute)
    # T = 2^31 + 2^32 (w - middle) / width, and w is from center - radius to center + radius: all in units of 2^fine.
    fine = min(unit, exponent - 1)
    middle, width = (lower + upper) << (exponent - 1 - fine), (upper - lower) << (exponent - fine)
    center, radius = center << (unit - fine), radius << (unit - fine)
    k_hi = DRAWS * (center + radius - middle) // width if width else 0
    k_lo = -(DRAWS * (middle - center + radius) // width) if width else 0
    if k_lo > k_hi:  # the range is narrower than a step of T: one threshold for every weight
        k_lo = k_hi = min(max(nearest(DRAWS * (center - middle), width), 1 - DRAWS // 2), DRAWS // 2 - 1)
    # Privacy of what is executed, in integers: T_hi / T_lo and its mirror are within (2^32 - lowest) / lowest <= e^eps.
    t_lo, t_hi = DRAWS // 2 + k_lo, DRAWS // 2 + k_hi
    upper_ok = t_hi * lowest <= (DRAWS - lowest) * t_lo
    lower_ok = (DRAWS - t_lo) * lowest <= (DRAWS - lowest) * (DRAWS - t_hi)
    if not (0 < t_lo <= t_hi < DRAWS and upper_ok and lower_ok):
        raise ArithmeticError(f"thresholds {t_lo} to {t_hi} break eps={eps} for C={c}, R={r}, {dtype.name}: a bug")
    slope = compute.ceil_at(DRAWS, upper - lower, -exponent) if k_lo < k_hi else 1.0
    bits = dtype.bits(scaled(lower, exponent)), dtype.bits(scaled(upper, exponent))
    record = scaled(lower + upper, exponent - 1), slope, c, k_lo, k_hi, *bits
    up = max(exponent, 0)
    return Integers(record, lower << up, upper << up, 1 << (up - exponent))


def executed_range(c: float, r: float, dtype: Dtype) -> tuple[float, float]:
    """C and R as a kernel for `dtype` executes them: rounded to the format in which it compares."""
    return _executed(c, r, compute_dtype(dtype))[:2]


def _executed(c: float, r: float, compute: Dtype) -> tuple[float, float, int, int, int]:
    """C and R as a kernel executes them, and both again as integers in units of 2 to the power of the last number."""
    if not math.isfinite(c):
        raise ValueError(f"C={c} must be finite")
    if not math.isfinite(r) or r < 0:
        raise ValueError(f"R={r} must be finite and at least 0")
    try:
        center, radius = compute.nearest(c) + 0.0, compute.nearest(r)  # no negative zero
        n, m, unit = _in_units(center, radius)
        fits = not compute.exceeded(abs(n) + m, 1, unit)
    except OverflowError:
        fits = False
    if not fits:
        raise OverflowError(f"C={c} with R={r} exceeds {compute.name}: use a smaller range")
    if r > 0 and radius < SMALLEST_RADIUS:
        radius = SMALLEST_RADIUS
        n, m, unit = _in_units(center, radius)
    return center, radius if r > 0 else 0.0, n, m, unit


def checked_range(c: float, r: float, dtype: Dtype) -> tuple[Fraction, Fraction]:
    """C and R as a kernel for `dtype` executes them, as exact numbers."""
    center, radius = executed_range(c, r, dtype)
    return Fraction(center), Fraction(radius)


def _in_units(c: float, r: float) -> tuple[int, int, int]:
    """c and r as integers in units of 2^unit, which is at most 1."""
    (n, c_unit), (m, r_unit) = c.as_integer_ratio(), r.as_integer_ratio()
    if c_unit == r_unit:
        return n, m, 1 - c_unit.bit_length()
    units = max(c_unit, r_unit)  # to a unit of weight: powers of two
    return n * (units // c_unit), m * (units // r_unit), 1 - units.bit_length()


def _refuse_overflow(c: float, n: int, d: int, exponent: int, dtype: Dtype) -> None:
    """Outputs as large as n / d * 2^exponent."""
    if dtype.exceeded(n, d, exponent):
        raise OverflowError(
            f"C={c:g} has outputs that overflow {dtype.name} (largest number {float(dtype.largest):g}): "
            "use a smaller R, a larger eps or a wider dtype"
        )


def _outputs(low: int, high: int, half: int, unit: int, dtype: Dtype, compute: Dtype) -> tuple[int, int, int]:
    """The nearest numbers of `dtype` at or outside low and high whose middle the kernel can subtract exactly.

    In units of 2 to the power of the third number that is returned.
    """
    low_spacing, high_spacing = dtype.spacing_at(low, half, unit), dtype.spacing_at(high, half, unit)
    exponent = min(low_spacing, high_spacing)
    lower = floor_at(low, half, unit - low_spacing) << (low_spacing - exponent)
    upper = -floor_at(-high, half, unit - high_spacing) << (high_spacing - exponent)
    if compute.holds_at(lower + upper, exponent - 1):
        return lower, upper, exponent
    exponent = dtype.spacing_at(max(abs(lower), abs(upper)), 1, exponent)
    lower, least = floor_at(low, half, unit - exponent), -floor_at(-high, half, unit - exponent)
    upper = least + (lower + least) % 2
    if dtype.exceeded(upper, 1, exponent):
        lower, upper = lower - 2, upper - 2 if upper - 2 >= least else floor_at(int(dtype.largest), 1, -exponent)
    return lower, upper, exponent


@lru_cache(maxsize=256)
def lowest_threshold_of(eps: float) -> int:
    """ceil(2^32 / (e^eps + 1)), so that (2^32 - T) / T <= e^eps."""
    if eps > 23:
        return 1
    with digits(60):
        lowest = int((DRAWS / (decimal.Decimal(eps).exp() + 1)).to_integral_value(decimal.ROUND_CEILING))
    return lowest
