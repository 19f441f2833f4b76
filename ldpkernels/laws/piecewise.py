# SPDX-License-Identifier: Apache-2.0
"""The piecewise mechanism (Wang et al., ICDE 2019): its claim, and the cells that execute it.

A report is one byte: a cell, likelier by e^eps within a band around the weight than elsewhere. Everything here is
computed on the host in exact rationals; the kernels only clamp, multiply, round and compare
(csrc/mechanisms/piecewise.h). The derivation is in docs/mechanisms/piecewise.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ldpkernels.accounting.events import PureEvent
from ldpkernels.accounting.neighbours import LOCAL, Unit
from ldpkernels.common.arrays import Floats
from ldpkernels.common.dtypes import FLOAT64, Dtype, DtypeLike, compute_dtype, dtype_named
from ldpkernels.laws.piecewise_cells import BYTE_CELLS, Cells, report_cells, value_cells
from ldpkernels.laws.piecewise_circle import Circle, best_circle, circles_at, exp_down
from ldpkernels.laws.two_point import checked_range
from ldpkernels.laws.weightwise import DRAWS, Output, Record, Reported, Weights, checked_eps, clipping_bias, log_up


@dataclass(frozen=True)
class CellMechanism:
    """What the piecewise and the hybrid mechanism share: a law over the cells of a circle."""

    eps: float
    name: ClassVar[str]
    kernel: ClassVar[str]
    reported: ClassVar[Reported] = "cells"

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", checked_eps(self.eps))

    def cells(self, c: float, r: float, dtype: Dtype, output: Output) -> Cells:
        """The integers for a range [c - r, c + r], for reports or for values written back in `dtype`."""
        raise NotImplementedError

    @property
    def effective_eps(self) -> float:
        """The eps of a report's integers: any two weights, for whoever sees a report; rounded up."""
        return min(self.eps, log_up(self._unit.ratio()))

    @property
    def lowest_threshold(self) -> int:
        """The fewest of the 2^32 draws that report a cell, whatever the weight. A report's header holds it."""
        return self._unit.circle.fewest

    @property
    def event(self) -> PureEvent:
        """What one weight costs, by a report or by `perturb_`, whose integers differ; it has more than two outcomes."""
        return PureEvent(self.eps, scope=LOCAL.per(Unit.WEIGHT))

    @property
    def worst_variance(self) -> float:
        """The largest variance of a report over the range [-1, 1]."""
        return self._unit.worst_variance()

    def affine(self, c: float, r: float) -> tuple[float, float]:
        """Cell y of a report decodes to offset + step * y."""
        unit = self._unit
        return float(Fraction(c) + Fraction(r) * unit.lowest), float(Fraction(r) * unit.step)

    def outputs(self, c: float, r: float, dtype: DtypeLike | None = None) -> Floats:
        """The values of the cells: of `perturb_` on tensors of `dtype`, or those to which a report decodes."""
        cells = self._cells(c, r, dtype)
        lowest, step = float(cells.lowest), float(cells.step)
        return lowest + step * np.arange(cells.circle.cells, dtype=np.float64)

    def law(self, w: float, c: float, r: float, dtype: DtypeLike | None = None) -> list[Fraction]:
        """The probability of every cell for a weight w, exactly, in the order of `outputs`.

        >>> len(Piecewise(1.0).law(0.3, c=0.0, r=1.0)), sum(Piecewise(1.0).law(0.3, c=0.0, r=1.0))
        (256, Fraction(1, 1))
        """
        cells = self._cells(c, r, dtype)
        return [Fraction(n, DRAWS) for n in cells.counts(cells.turned(float(w)))]

    def variance(self, w: Weights, c: float, r: float, dtype: DtypeLike | None = None) -> Weights:
        """Variance of the output for a weight w (a number, an array or a tensor), clipped to [c - r, c + r]."""
        cells = self._cells(c, r, dtype)
        return cells.variance(w + self.bias(w, c, r), float(cells.center))

    def bias(self, w: Weights, c: float, r: float) -> Weights:
        """Expected output less w: what clipping to [c - r, c + r] moves, and nothing else."""
        return clipping_bias(w, c, r)

    def executed_eps(self, c: float, r: float, dtype: DtypeLike) -> float:
        """The eps that `perturb_` executes on tensors of `dtype`, rounded up; never above `eps`."""
        return min(self.eps, log_up(self._cells(c, r, dtype).ratio()))

    def executed_range(self, c: float, r: float, dtype: Dtype) -> tuple[float, float]:
        """C and R as a kernel for reports executes them: rounded to the format in which it compares."""
        center, radius = checked_range(c, r, dtype)
        refuse_overflow(center, radius * abs(self._unit.lowest), compute_dtype(dtype))
        return float(center), float(radius)

    def _cells(self, c: float, r: float, dtype: DtypeLike | None) -> Cells:
        return self.cells(c, r, dtype_named(dtype or "float64"), "values" if dtype else "report")

    @property
    def _unit(self) -> Cells:
        return self.cells(0.0, 1.0, FLOAT64, "report")


@dataclass(frozen=True)
class Piecewise(CellMechanism):
    """The piecewise mechanism at eps for each weight: between any two values of it, against the server.

    The width of its band has the least worst-case variance. It is wider than the published one, and better for every
    weight that is not near the center.

    >>> mechanism = Piecewise(4.0)
    >>> mechanism.effective_eps <= 4.0
    True
    >>> round(mechanism.variance(0.0, c=0.0, r=1.0), 3), round(mechanism.worst_variance, 3)
    (0.086, 0.162)
    """

    name: ClassVar[str] = "piecewise"
    kernel: ClassVar[str] = "piecewise"

    def __post_init__(self) -> None:
        super().__post_init__()
        best_circle(self.eps, BYTE_CELLS)  # an eps too small is refused here

    @property
    def executed(self) -> Piecewise:
        """Itself."""
        return self

    @classmethod
    def report_variances(cls, eps: float) -> tuple[float, float] | None:
        """The variance of a report on [-1, 1], at worst and at the center; None if eps is too small for cells."""
        return variances_of(piecewise_cells, eps)

    def record(self, c: float, r: float, dtype: Dtype, output: Output) -> Record:
        """The fields of csrc's PiecewiseLaw."""
        return self.cells(c, r, dtype, output).piecewise_record()

    def cells(self, c: float, r: float, dtype: Dtype, output: Output) -> Cells:
        """The integers for a range [c - r, c + r], for reports or for values written back in `dtype`."""
        return piecewise_cells(c, r, self.eps, dtype, output)


@lru_cache(maxsize=4096)
def piecewise_cells(c: float, r: float, eps: float, dtype: Dtype, output: Output) -> Cells:
    """The cells of the piecewise mechanism, proved."""
    center, radius = checked_range(c, r, dtype)
    if output == "report":
        cells = report_cells(center, radius, dtype, best_circle(eps, BYTE_CELLS))
        refuse_overflow(center, abs(cells.lowest - center), compute_dtype(dtype))
    else:
        cells = value_cells(center, radius, dtype, circles_at(eps))
    return proved(cells, eps)


def proved(cells: Cells, eps: float) -> Cells:
    """The cells again, when every turn that a kernel can make is one for which the counts were proved."""
    within = cells.origin + cells.k_lo >= 0 and cells.origin + cells.k_hi <= cells.circle.turn
    if not (within and cells.k_lo <= cells.k_hi and _ratio_below(cells, eps)):
        raise ArithmeticError(f"cells {cells} break eps={eps}: a bug")
    return cells


def _ratio_below(cells: Cells, eps: float) -> bool:
    coin = cells.coin
    if coin is None or not _of_circle(cells.circle, eps):
        return _of_circle(cells.circle, eps)
    return odds_below(coin.lowest, coin.upper_draws(cells.k_hi - cells.k_lo), coin.draws, exp_down(eps))


def odds_below(low: int, high: int, draws: int, bound: Fraction) -> bool:
    """Whether low and high of so many draws differ by the bound's factor at most, and so do the others."""
    n, d = bound.numerator, bound.denominator
    return high * d <= low * n and (draws - low) * d <= (draws - high) * n


@lru_cache(maxsize=256)
def _of_circle(circle: Circle, eps: float) -> bool:
    return circle.most <= exp_down(eps) * circle.fewest


def variances_of(
    cells_of: Callable[[float, float, float, Dtype, Output], Cells], eps: float
) -> tuple[float, float] | None:
    """The variance of a report's cells on [-1, 1], at worst and at the center; None where eps is too small for them."""
    try:
        cells = cells_of(0.0, 1.0, eps, FLOAT64, "report")
    except ValueError:
        return None
    return cells.worst_variance(), float(cells.variance(0.0, 0.0))


def refuse_overflow(center: Fraction, reach: Fraction, dtype: Dtype) -> None:
    """Outputs up to `reach` from the center."""
    if max(x.numerator.bit_length() - x.denominator.bit_length() for x in (center, reach)) < dtype.max_exponent - 2:
        return
    if abs(center) + reach > dtype.largest / 2:
        raise OverflowError(
            f"C={float(center):g} has outputs that overflow {dtype.name} (largest number {float(dtype.largest):g}): "
            "use a smaller R, a larger eps or a wider dtype"
        )
