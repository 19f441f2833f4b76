# SPDX-License-Identifier: Apache-2.0
"""Decimal arithmetic that is the same whatever the caller's context and `decimal.DefaultContext` say."""

from __future__ import annotations

import decimal
from contextlib import AbstractContextManager
from decimal import Context


def context(precision: int, rounding: str = decimal.ROUND_HALF_EVEN) -> Context:
    """A context of so many digits in which nothing is left to defaults."""
    traps = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
    return Context(precision, rounding, Emin=-999_999, Emax=999_999, capitals=1, clamp=0, flags=[], traps=traps)


def digits(precision: int, rounding: str = decimal.ROUND_HALF_EVEN) -> AbstractContextManager[Context]:
    """A block that computes with so many digits.

    >>> with digits(5):
    ...     decimal.Decimal(2) / 3
    Decimal('0.66667')
    """
    return decimal.localcontext(context(precision, rounding))
