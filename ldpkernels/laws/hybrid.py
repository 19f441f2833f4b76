# SPDX-License-Identifier: Apache-2.0
"""The hybrid mechanism (Wang et al., ICDE 2019), and which mechanism is best at an eps.

Most draws run the piecewise mechanism; the others toss the two-point mechanism's coin between two of its cells, so a
report is still one byte and one number for each cell decodes it. The derivation is in docs/mechanisms/hybrid.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from ldpkernels.dtypes import FLOAT64, Dtype, compute_dtype
from ldpkernels.laws.piecewise import CellMechanism, Piecewise, _refuse_overflow, piecewise_cells, proved
from ldpkernels.laws.piecewise_cells import BYTE_CELLS, Cells, Coin, report_cells, value_cells
from ldpkernels.laws.piecewise_circle import N, best_circle, exp_down
from ldpkernels.laws.two_point import Output, TwoPoint, _checked_eps, checked_range

Mechanism = TwoPoint | CellMechanism


@dataclass(frozen=True)
class Hybrid(CellMechanism):
    """The hybrid mechanism at eps for each weight: its variance is nearly the same for every weight.

    It is the best of the three where eps is from 0.61 to about 7.7. Below, the coin alone is better, which is the
    two-point mechanism, and above, the piecewise mechanism alone: `mechanism="hybrid"` runs `executed`.

    >>> Hybrid(1.0).worst_variance < min(TwoPoint(1.0).scale ** 2, Piecewise(1.0).worst_variance)
    True
    >>> Hybrid(0.5).executed
    TwoPoint(eps=0.5)
    """

    name: ClassVar[str] = "hybrid"

    @property
    def executed(self) -> Mechanism:
        """The mechanism that `perturb_` and `report` run at this eps."""
        return _executed(self.eps)

    def cells(self, c: float, r: float, dtype: Dtype, output: Output) -> Cells:
        """The integers for a range [c - r, c + r], for reports or for values written back in `dtype`."""
        return hybrid_cells(c, r, self.eps, dtype, output)


@dataclass(frozen=True)
class Choice:
    """What `best_mechanism` found: the name of the mechanism, and the variances by which it was chosen."""

    eps: float
    name: str
    worst: dict[str, float]  # largest variance over the range [-1, 1] of each mechanism that can run
    center: dict[str, float]  # variance at its center

    def __str__(self) -> str:
        rows = [f"{'mechanism':12}{'worst case':>12}{'at the center':>15}"]
        rows += [f"{name:12}{v:12.4g}{self.center[name]:15.4g}" for name, v in self.worst.items()]
        return "\n".join([self._sentence(), *rows])

    def _sentence(self) -> str:
        best = self.worst[self.name]
        others = {n: v for n, v in self.worst.items() if n != self.name}
        if not others:
            return f"At eps={self.eps:g} use {self.name!r}: no other can be executed."
        than = ", ".join(f"{n} {v / best:.3g} times that" for n, v in others.items())
        return f"At eps={self.eps:g} use {self.name!r}: its worst-case variance is {best:.4g} r^2 ({than})."


def best_mechanism(eps: float) -> Choice:
    """The mechanism of least worst-case variance at eps for each weight, from the laws that are executed.

    "two-point" sends one bit a weight and the others a byte. `perturb_` and `report` take the name.

    >>> print(best_mechanism(4.0))
    At eps=4 use 'hybrid': its worst-case variance is 0.1559 r^2 (two-point 6.9 times that, piecewise 1.04 times that).
    mechanism     worst case  at the center
    two-point          1.076          1.076
    piecewise         0.1618        0.08606
    hybrid            0.1559         0.1558
    """
    eps = _checked_eps(eps)
    scale = TwoPoint(eps).scale
    worst, center = {"two-point": scale**2}, {"two-point": scale**2}
    for name, of in (("piecewise", piecewise_cells), ("hybrid", hybrid_cells)):
        cells = _report_cells(of, eps)
        if cells is not None and (name == "piecewise" or cells.coin is not None):
            worst[name] = cells.worst_variance()
            center[name] = float(cells.variance(0.0, 0.0))
    return Choice(eps, min(worst, key=lambda name: worst[name]), worst, center)


def mechanism_named(name: str, eps: float) -> Mechanism:
    """The mechanism that `perturb_` and `report` run."""
    if name == "two-point":
        return TwoPoint(eps)
    if name == "piecewise":
        return Piecewise(eps)
    if name == "hybrid":
        return Hybrid(eps).executed
    raise ValueError(f"mechanism={name!r} must be 'two-point', 'piecewise' or 'hybrid'")


@lru_cache(maxsize=4096)
def hybrid_cells(c: float, r: float, eps: float, dtype: Dtype, output: Output) -> Cells:
    """The cells of the hybrid mechanism, proved; the piecewise mechanism's where a coarse dtype leaves no room."""
    center, radius = checked_range(c, r, dtype)
    if output == "report":
        cells = report_cells(center, radius, dtype, best_circle(eps, BYTE_CELLS, mixed=True))
        _refuse_overflow(center, abs(cells.lowest - center), compute_dtype(dtype))
    else:
        cells = value_cells(center, radius, dtype, lambda cells: best_circle(eps, cells, mixed=True))
    coin = _coin(cells, radius, eps)
    if coin is None:
        return piecewise_cells(c, r, eps, dtype, output)
    return proved(cells._replace(coin=coin), eps)


def _coin(cells: Cells, radius: Fraction, eps: float) -> Coin | None:
    """The two-point mechanism between the cells next to its own two values, with its thresholds rounded inwards."""
    draws, bound = N - cells.circle.draws, exp_down(eps)
    if not cells.step:
        return None
    reach = radius * _reach(eps)
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


@lru_cache(maxsize=256)
def _reach(eps: float) -> Fraction:
    """How far from the center the two-point mechanism's values are, in units of the radius."""
    bound = exp_down(eps)
    return (bound + 1) / (bound - 1)


@lru_cache(maxsize=256)
def _executed(eps: float) -> Mechanism:
    kinds: dict[str, type[Mechanism]] = {"two-point": TwoPoint, "piecewise": Piecewise, "hybrid": Hybrid}
    return kinds[best_mechanism(eps).name](eps)


def _report_cells(of: Callable[[float, float, float, Dtype, Output], Cells], eps: float) -> Cells | None:
    """The cells of a report on the range [-1, 1]; None where eps is too small for 256 cells."""
    try:
        return of(0.0, 1.0, eps, FLOAT64, "report")
    except ValueError:
        return None
