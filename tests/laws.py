# SPDX-License-Identifier: Apache-2.0
"""What every law must satisfy, in exact rationals."""

from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np

N = 2**32
RANGES = [  # C, R and eps
    *[(0.0, 1.0, 1.0), (1.0, 0.01, 1.0), (1.0, 0.001, 4.0), (-0.37, 0.2, 0.05), (100.0, 3e-5, 10.0), (0.1, 0.0, 1.0)],
    *[(0.0, 1e-38, 2.0), (-2.5, 1e-300, 0.5), (6e4, 12.0, 8.0)],
]
UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-24, "float16": 2.0**-24, "float64": 2.0**-53}  # of the comparison


def within_exp(ratio: Fraction, eps: float) -> bool:
    """ratio <= e^eps, with 100 digits."""
    with localcontext(Context(prec=100)):
        return Decimal(ratio.numerator) <= Decimal(ratio.denominator) * Decimal(eps).exp()


def privacy_ratio(t_lo: int, t_hi: int) -> Fraction:
    """How much likelier some output is under one weight than under another."""
    return max(Fraction(t_hi, t_lo), Fraction(N - t_lo, N - t_hi))


def executed(c: float, r: float, dtype: str) -> tuple[Fraction, Fraction]:
    """C and R in the format of the comparison; a positive R is at least 2^-96."""
    kind = np.float64 if dtype == "float64" else np.float32
    center, radius = Fraction(float(kind(c))), Fraction(float(kind(r)))
    return center, max(radius, Fraction(1, 2**96)) if r > 0 else Fraction(0)


def bias_bound(law, dtype: str) -> float:
    """How far an expected output may lie from the clipped weight.

    Half a step of T for rounding and one at the ends, and the fp32 (fp64) arithmetic: a subtraction, a multiplication,
    a slope rounded up and ends that are attained early make 6 units in the last place of k.
    """
    step = float(law.upper - law.lower) / N
    return step * (1.5 + 6 * UNIT[dtype] * max(abs(law.k_lo), abs(law.k_hi)))


def check_thresholds(x, thresholds, law, c, r, dtype):
    """Bounds, monotone, NaN as C, infinities as the ends, unbiased: for weights x in any order."""
    x, thresholds = np.asarray(x).astype(np.float64), np.asarray(thresholds)
    t_lo, t_hi = N // 2 + law.k_lo, N // 2 + law.k_hi
    assert thresholds.min() >= t_lo, f"a threshold {thresholds.min()} below {t_lo}"
    assert thresholds.max() <= t_hi, f"a threshold {thresholds.max()} above {t_hi}"
    assert set(thresholds[np.isposinf(x)]) <= {t_hi}, "+inf is not the upper end"
    assert set(thresholds[np.isneginf(x)]) <= {t_lo}, "-inf is not the lower end"
    number = ~np.isnan(x)
    order = np.argsort(x[number], kind="stable")
    assert (np.diff(thresholds[number][order]) >= 0).all(), "thresholds are not monotone"
    center, radius = executed(c, r, dtype)
    # Differences from C, so that fp64 does not swallow what is tested.
    clipped = np.clip(x[number] - float(center), -float(radius), float(radius))
    step, offset = float(law.upper - law.lower) / N, float((law.lower + law.upper) / 2 - center)
    bias = np.abs(offset + step * (thresholds[number] - N // 2) - clipped)
    slack = 4e-16 * (abs(float(center)) + abs(offset) + float(law.upper - law.lower))  # of this check's own fp64
    assert bias.max(initial=0) <= bias_bound(law, dtype) + slack, f"bias {bias.max()}, allowed {bias_bound(law, dtype)}"
