# SPDX-License-Identifier: Apache-2.0
"""The host's part of clipped sums: bounds, the noise's parameters, the scale of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ldpkernels.common.dtypes import FLOAT64, Dtype, power_of_two

NOISES = ("gaussian", "discrete")
CLIPPINGS = ("flat", "per-layer")
MARGIN = 1 + 2.0**-32  # computed norms err by less than 2^-33 of themselves, for rows of up to 2^36 elements
EXACT = 2**52  # integers whose sums fp64 holds
LIMITS = 1e-100, 1e100  # of a bound
NARROW = 1e-30, 1e30  # where rows add in fp32: sums of 64 do not overflow, nor do products round to multiples of 2^-149


@dataclass(frozen=True)
class Noise:
    """What a kernel adds to a clipped sum."""

    stddev: float  # of the normal noise
    unit: float  # the grid's spacing; 0 for normal noise
    grid_std: int  # of the discrete noise, in units


def bounds(C: Sequence[float], clipping: str, tensors: int) -> list[float]:
    """The bound of each row's norm: one, or one for each tensor. The squares of the latter add up to C^2 at most."""
    if clipping == "flat":
        return list(C)
    if len(C) == 1:
        return [C[0] / math.sqrt(tensors) * (1 - 2.0**-50) if tensors > 1 else C[0]] * tensors
    return list(C)


def check(C: Sequence[float], sigma: float, noise: str, clipping: str, dtypes: Sequence[Dtype]) -> None:
    """Everything about the numbers that could be wrong, for tensors of these formats."""
    tensors = len(dtypes)
    if noise not in NOISES:
        raise ValueError(f"noise={noise!r} must be 'gaussian' or 'discrete'")
    if clipping not in CLIPPINGS:
        raise ValueError(f"clipping={clipping!r} must be 'flat' or 'per-layer'")
    if len(C) != 1 and (clipping == "flat" or len(C) != tensors):
        raise ValueError(
            f"C has {len(C)} values for {tensors} tensors and clipping={clipping!r}: pass one number, or with "
            "'per-layer' one for each tensor"
        )
    in_fp32 = noise == "gaussian" and any(dtype is not FLOAT64 for dtype in dtypes)
    for c in C:
        if not LIMITS[0] <= c <= LIMITS[1]:
            raise ValueError(f"C={c} must be a positive bound, from 1e-100 to 1e100")
        if in_fp32 and not NARROW[0] <= c <= NARROW[1]:
            raise ValueError(
                f"C={c} must be from 1e-30 to 1e30 for rows that are added in fp32: pass fp64 rows, or noise='discrete'"
            )
    if not (math.isfinite(sigma) and sigma >= 0 and sigma * sensitivity(C) < 1e200):
        raise ValueError(f"sigma={sigma} must be finite and not negative: the noise's deviation is C * sigma")
    if noise == "discrete" and 0 < sigma < 2.0**-20:
        raise ValueError(f"sigma={sigma} is too small for discrete noise: it must be 0 or at least {2.0**-20}")


def divisor_of(divisor: float, rows: int) -> float:
    """What the sum is divided by: 0 stands for the number of rows."""
    if divisor == 0 and rows == 0:
        raise ValueError("x has no rows, and so no mean: pass batch_size, the expected size of a batch")
    return divisor or float(rows)


def sensitivity(C: Sequence[float]) -> float:
    """How much one row may change the sum, in Euclidean norm; for bounds of layers rounded up."""
    return C[0] if len(C) == 1 else math.sqrt(math.fsum(c * c for c in C)) * (1 + 2.0**-50)


def noise_of(C: Sequence[float], sigma: float, noise: str, rows: int) -> Noise:
    """The noise for a sum of `rows` rows. Discrete noise is rounded up to a whole number of units."""
    bound = sensitivity(C)
    if noise == "gaussian":
        return Noise(bound * sigma, 0.0, 0)
    exponent = _floor_log2(bound) - 26
    if sigma > 0:
        own = _floor_log2(bound * sigma)
        exponent = min(max(exponent, own - 30), own - 16)
    unit = power_of_two(exponent)
    if rows * Fraction(bound) / unit > EXACT:
        most = int(EXACT * unit / Fraction(bound))
        raise ValueError(f"{rows} rows are too many for discrete noise of sigma={sigma}: pass {most} at most in a call")
    return Noise(0.0, float(unit), math.ceil(Fraction(bound) * Fraction(sigma) / unit))


def is_single(sizes: Sequence[int]) -> bool:
    """Whether a sample of tensors of these sizes is a single number: it has neither norm nor scale, and is clamped."""
    return list(sizes) == [1]


def at_most(bound: float, dtype: type[np.float32 | np.float64]) -> float:
    """The largest number of a floating-point type that is at most `bound`: what single numbers are clamped to."""
    with np.errstate(over="ignore"):
        nearest = dtype(bound)
    return float(nearest if float(nearest) <= bound else np.nextafter(nearest, dtype(0)))


def scales(norms: Any, limits: Sequence[float], where: Any) -> Any:
    """The factor of each row, from norms [B, 1] or [B, layers]: 1, or what brings it to its bound; 0 if poisoned.

    `where` is that of the norms' library. A row with a norm that is not finite is poisoned in all its layers.
    """
    columns = []
    for i, limit in enumerate(limits):
        norm = norms[:, i] * MARGIN
        numerator = norm - norm + limit  # torch divides a number by a tensor in two roundings
        columns.append(where(norm <= limit, 1.0, numerator / where(norm <= limit, 1.0, norm)))
    poisoned = ~(norms < math.inf).all(1)
    return [where(poisoned, 0.0, column) for column in columns]


def _floor_log2(x: float) -> int:
    return math.frexp(x)[1] - 1
