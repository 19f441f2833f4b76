# SPDX-License-Identifier: Apache-2.0
"""The hybrid mechanism (Wang et al., ICDE 2019).

Most draws run the piecewise mechanism; the others toss the two-point mechanism's coin between two of its cells, so a
report is still one byte and one number for each cell decodes it. The derivation is in docs/mechanisms/hybrid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from ldpkernels.common.dtypes import Dtype, compute_dtype
from ldpkernels.laws.piecewise import (
    CellMechanism,
    Piecewise,
    odds_below,
    piecewise_cells,
    proved,
    refuse_overflow,
    variances_of,
)
from ldpkernels.laws.piecewise_cells import BYTE_CELLS, Cells, Coin, report_cells, value_cells
from ldpkernels.laws.piecewise_circle import best_circle, circles_at, exp_down
from ldpkernels.laws.two_point import TwoPoint, checked_range
from ldpkernels.laws.weightwise import DRAWS, Output, Record, Weightwise


@dataclass(frozen=True)
class Hybrid(CellMechanism):
    """The hybrid mechanism at eps for each weight: between any two values of it, against the server.

    Its variance is nearly the same for every weight, and the least of the three for eps from 0.61 to about 7.7. It
    mixes two mechanisms by a coin. Below 0.61 the two-point mechanism alone is better, and above 7.7 the piecewise
    mechanism alone: `mechanism="hybrid"` runs `executed`.

    >>> Hybrid(1.0).worst_variance < min(TwoPoint(1.0).scale ** 2, Piecewise(1.0).worst_variance)
    True
    >>> Hybrid(0.5).executed
    TwoPoint(eps=0.5)
    """

    name: ClassVar[str] = "hybrid"
    kernel: ClassVar[str] = "hybrid"

    @property
    def executed(self) -> Weightwise:
        """The mechanism that `perturb_` and `report` run at this eps."""
        return _executed(self.eps)

    @classmethod
    def report_variances(cls, eps: float) -> tuple[float, float] | None:
        """The variance of a report on [-1, 1], at worst and at the center; None if there is no room for a coin."""
        found = variances_of(hybrid_cells, eps)
        return found if found and cls(eps)._unit.coin else None

    def record(self, c: float, r: float, dtype: Dtype, output: Output) -> Record:
        """The fields of csrc's HybridLaw."""
        return self.cells(c, r, dtype, output).hybrid_record()

    def cells(self, c: float, r: float, dtype: Dtype, output: Output) -> Cells:
        """The integers for a range [c - r, c + r], for reports or for values written back in `dtype`."""
        return hybrid_cells(c, r, self.eps, dtype, output)


@lru_cache(maxsize=4096)
def hybrid_cells(c: float, r: float, eps: float, dtype: Dtype, output: Output) -> Cells:
    """The cells of the hybrid mechanism, proved; the piecewise mechanism's where a coarse dtype leaves no room."""
    center, radius = checked_range(c, r, dtype)
    if output == "report":
        cells = report_cells(center, radius, dtype, best_circle(eps, BYTE_CELLS, mixed=True))
        refuse_overflow(center, abs(cells.lowest - center), compute_dtype(dtype))
    else:
        cells = value_cells(center, radius, dtype, circles_at(eps, mixed=True))
    coin = _coin(cells, radius, eps)
    if coin is None:
        return piecewise_cells(c, r, eps, dtype, output)
    return proved(cells._replace(coin=coin), eps)


def _coin(cells: Cells, radius: Fraction, eps: float) -> Coin | None:
    """The two-point mechanism between the cells next to its own two values, with its thresholds rounded inwards."""
    draws, bound, reach = DRAWS - cells.circle.draws, exp_down(eps), _reach(eps)
    if not cells.step:
        return None
    numbers = (cells.center, radius, cells.lowest, cells.step)
    unit = math.lcm(*(x.denominator for x in numbers))
    center, wide, lowest, step = (x.numerator * (unit // x.denominator) for x in numbers)
    middle, far, of = (center - lowest) * reach.denominator, wide * reach.numerator, step * reach.denominator
    lower = max(0, (middle - far) // of)
    upper = min(cells.circle.cells - 1, -((-middle - far) // of))
    if lower >= upper:
        return None
    apart, lower_value = (upper - lower) * step, lowest + lower * step
    low = -((lower_value - center + wide) * draws // apart)
    high = (center + wide - lower_value) * draws // apart
    if not 0 < low <= high < draws or not odds_below(low, high, draws, bound):
        return None
    span = cells.k_hi - cells.k_lo
    shift = 32 - span.bit_length()
    scale = ((high - low) << 32) // (span << shift) if span else 0
    return Coin(draws, low, shift if span else 0, scale, lower, upper)


@lru_cache(maxsize=256)
def _reach(eps: float) -> Fraction:
    """How far from the center the two-point mechanism's values are, in units of the radius."""
    bound = exp_down(eps)
    return (bound + 1) / (bound - 1)


@lru_cache(maxsize=256)
def _executed(eps: float) -> Weightwise:
    """The mechanism of least worst-case variance; the first where two are equal."""
    kinds: tuple[type[Weightwise], ...] = (TwoPoint, Piecewise, Hybrid)
    found = [(kind, kind.report_variances(eps)) for kind in kinds]
    best, _ = min(((kind, v[0]) for kind, v in found if v is not None), key=lambda one: one[1])
    return best(eps)
