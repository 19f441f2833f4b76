# SPDX-License-Identifier: Apache-2.0
"""What every mechanism that randomises each weight on its own says of itself: its claim, and what its kernels execute.

ldpkernels/laws/registry.py lists them, and docs/adding_a_mechanism.md walks through one.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Hashable
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar

from ldpkernels.accounting.events import Event
from ldpkernels.common.arguments import number
from ldpkernels.common.arrays import Array, Floats
from ldpkernels.common.decimals import digits
from ldpkernels.common.dtypes import Dtype, DtypeLike

if TYPE_CHECKING:
    import torch

DRAWS = 2**32  # a weight's report is decided by one of so many draws, all equally likely

Output = Literal["values", "report"]  # numbers of the tensor's dtype in its place, or a report of few bits
Reported = Literal["bits", "cells"]  # what a report has for each weight: one bit, or one byte
Weights = TypeVar("Weights", float, Array, "torch.Tensor")
Record = tuple[object, ...]  # the fields of a kernel's law, in csrc's order


class Weightwise(Hashable, Protocol):
    """A mechanism at eps for each weight, within [c - r, c + r]."""

    name: ClassVar[str]  # what users write
    kernel: ClassVar[str]  # what the kernels' registries call it
    reported: ClassVar[Reported]

    def __init__(self, eps: float) -> None: ...

    @property
    def eps(self) -> float:
        """The privacy parameter that was asked for."""

    @property
    def executed(self) -> Weightwise:
        """The mechanism that runs at this eps: itself, for all but the hybrid."""

    @property
    def effective_eps(self) -> float:
        """The eps of a report's integers: any two weights, for whoever sees a report; rounded up."""

    @property
    def lowest_threshold(self) -> int:
        """The fewest of the 2^32 draws that give a weight some report: the integer that proves eps."""

    @property
    def event(self) -> Event:
        """What one report of one weight costs, for `ldpkernels.accounting`."""

    @classmethod
    def report_variances(cls, eps: float) -> tuple[float, float] | None:
        """The variance of a report on [-1, 1], at worst and at the center; None if there is none to compare."""

    def record(self, c: float, r: float, dtype: Dtype, output: Output) -> Record:
        """What a kernel executes for one tensor; every check of its range."""

    def affine(self, c: float, r: float) -> tuple[float, float]:
        """A report's number y decodes to offset + step * y."""

    def executed_range(self, c: float, r: float, dtype: Dtype) -> tuple[float, float]:
        """C and R as a report of `dtype` executes them."""

    def executed_eps(self, c: float, r: float, dtype: DtypeLike) -> float:
        """The eps that `perturb_` executes on tensors of `dtype`: any two weights, for whoever sees one; rounded up."""

    def variance(self, w: Weights, c: float, r: float, dtype: DtypeLike | None = None) -> Weights:
        """Variance of the output for a weight w (a number, an array or a tensor)."""

    def bias(self, w: Weights, c: float, r: float) -> Weights:
        """Expected output minus w."""

    def outputs(self, c: float, r: float, dtype: DtypeLike | None = None) -> tuple[float, float] | Floats:
        """The values of `perturb_` on tensors of `dtype`, or without a dtype those that a report decodes to."""


def checked_eps(eps: object) -> float:
    """eps as a float that 32-bit thresholds can execute, or an error that says what is right."""
    value = number("eps", eps)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"eps={value} must be a finite number above 0")
    if value <= 2.0**-30:  # no threshold lies between those of 0 and of eps
        raise ValueError(f"eps={value} is too small to execute with 32-bit thresholds: use at least 9.4e-10")
    return value


def clipping_bias(w: Weights, c: float, r: float) -> Weights:
    """What clipping w to [c - r, c + r] adds to it."""
    if isinstance(w, (int, float)):
        return min(max(w, c - r), c + r) - w
    return w.clip(c - r, c + r) - w


def log_up(ratio: Fraction) -> float:
    """A float at or above ln(ratio)."""
    with digits(60):
        exact = (decimal.Decimal(ratio.numerator) / decimal.Decimal(ratio.denominator)).ln()
        value = float(exact)
        return value if decimal.Decimal(value) >= exact else math.nextafter(value, math.inf)
