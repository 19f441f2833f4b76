# SPDX-License-Identifier: Apache-2.0
"""The kernel's parameters for ordinal CLDP, and the checks of what a caller asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ldpkernels import _native
from ldpkernels.common.arguments import integer, number
from ldpkernels.common.arrays import Laws
from ldpkernels.common.dtypes import Dtype
from ldpkernels.laws.ordinal_cldp_integers import DIGITS, Magnitudes, Noise, alias, magnitudes_for
from ldpkernels.laws.weightwise import Record

Halves: TypeAlias = NDArray[np.uint64]
Rounding = Literal["nearest", "stochastic"]

LARGEST_M = 2**62 - 1  # a step of 2 M has 63 digits
LARGEST_INTEGER = 2**63 - 1
LARGEST_RHO = 22  # 10 ** 22 is the last power of ten that fp64 holds
ROOM = 64  # a laplace step leaves its output's range with probability below e^-64
MOST_LOW = 52  # digits: kCldpLosses
LEADING, KEEPING = 10, 15  # a draw's digits of the numbers that decide: csrc's kLeadingBits and kKeepBits


def law_row(
    alpha: float, m: int, mechanism: Noise, *, reach: int = LARGEST_INTEGER, scale: float = 1.0, rounding: str = ""
) -> Record:
    """csrc's OrdinalCldpLaw; `reach` is how far laplace outputs may lie from 0."""
    found, laplace = magnitudes_for(alpha, m, mechanism), mechanism == "laplace"
    low, middle = len(found.losses), len(found.middle).bit_length() - 1
    keep = -(-sum(found.losses) >> DIGITS - KEEPING)  # no probability of giving up is above the sum of all
    return (
        m, reach if laplace else m, laplace, rounding == "stochastic", scale, low > 16, low, middle, len(found.upper),
        np.uint64(found.unit), keep, *_tables(found),
    )  # fmt: skip


def weight_laws(
    alpha: Sequence[float], c: float, rho: int, dtypes: Sequence[Dtype], mechanism: Noise, rounding: Rounding
) -> Laws:
    """The kernel's parameters for weights of each tensor; every check of them."""
    return _weight_laws(tuple(alpha), c, rho, tuple(dtypes), mechanism, rounding)


@lru_cache(maxsize=64, typed=True)
def _weight_laws(
    alpha: tuple[float, ...], c: float, rho: int, dtypes: tuple[Dtype, ...], mechanism: Noise, rounding: Rounding
) -> Laws:
    m = largest_integer(c, rho)
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding={rounding!r} must be 'nearest' or 'stochastic'")
    mechanism, rows = checked_mechanism(mechanism), []
    for a, dtype in zip(map(checked_alpha, alpha), dtypes, strict=True):
        reach = reach_in(dtype, rho)
        if m > reach:
            raise OverflowError(f"c={c} overflows {dtype.name}: use a smaller c or a wider dtype")
        if mechanism == "laplace":
            checked_room(a, m, reach)
        rows.append(law_row(a, m, mechanism, reach=reach, scale=float(10**rho), rounding=rounding))
    table: Laws = np.array(rows, dtype=_native.LAWS["ordinal_cldp"])
    table.flags.writeable = False  # it is shared
    return table


def integer_laws(alpha: float, m: int, mechanism: Noise) -> Laws:
    """The kernel's parameters for one tensor of integers."""
    m, a, mechanism = checked_m(m), checked_alpha(alpha), checked_mechanism(mechanism)
    if mechanism == "laplace":
        checked_room(a, m, LARGEST_INTEGER)
    return np.array([law_row(a, m, mechanism)], dtype=_native.LAWS["ordinal_cldp"])


def checked_alpha(alpha: float) -> float:
    """alpha as a float, or an error that says what is right."""
    value = number("alpha", alpha)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"alpha={alpha} must be a finite number above 0")
    return value


def checked_mechanism(mechanism: str) -> Noise:
    """One of the two names."""
    if mechanism == "exponential":
        return "exponential"
    if mechanism == "laplace":
        return "laplace"
    raise ValueError(f"mechanism={mechanism!r} must be 'exponential' or 'laplace'")


def checked_m(m: int) -> int:
    """M as an integer."""
    return integer("M", m, LARGEST_M, "0 to 2^62 - 1")


@lru_cache(maxsize=1024)
def checked_room(alpha: float, m: int, reach: int) -> None:
    """The laplace mechanism's output is unbiased because it is hardly ever cut off."""
    if Fraction(alpha) * (reach - m) < ROOM:
        least = ROOM / (reach - m) if reach > m else math.inf
        raise ValueError(
            f"alpha={alpha} makes laplace noise that would be cut off at {reach}, from M={m}: use an alpha of at least "
            f"{least:.3g}, a wider dtype, or mechanism='exponential'"
        )


@lru_cache(maxsize=1024, typed=True)  # True is no 1
def largest_integer(c: float, rho: int) -> int:
    """floor(c 10^rho), exactly; c counts as the decimal number that it prints as, 0.3 as 3/10.

    >>> largest_integer(0.3, 10), largest_integer(4, 18)
    (3000000000, 4000000000000000000)
    """
    rho = checked_rho(rho)
    if not (math.isfinite(number("c", c)) and c >= 0 and float(c) == c):
        raise ValueError(f"c={c} must be a finite fp64 number of at least 0")
    exact = Fraction(c) if float(c).is_integer() else Fraction(repr(float(c)))
    m = int(exact * 10**rho)
    if m > LARGEST_M:
        raise ValueError(f"c={c} with rho={rho} makes c 10^rho = {m}: use a smaller c or rho, for less than 2^62")
    return m


@lru_cache(maxsize=256)
def reach_in(dtype: Dtype, rho: int) -> int:
    """The largest integer y for which y 10^-rho is a number of a format."""
    return min(LARGEST_INTEGER, int(dtype.largest * 10**rho))


def checked_rho(rho: int) -> int:
    """rho as an integer."""
    return integer("rho", rho, LARGEST_RHO, f"0 to {LARGEST_RHO}: digits after the decimal point")


@lru_cache(maxsize=1024, typed=True)  # True is no 1
def _tables(found: Magnitudes) -> tuple[Halves, Halves, Halves]:
    """What a draw's columns say, their thresholds, and the losses of low digits."""
    columns = [alias((*found.upper, found.tail)), alias(found.middle)]
    entries = [(t >> DIGITS - LEADING) << 6 | other for table in columns for t, other in zip(*table, strict=True)]
    thresholds = [t for table, _ in columns for t in table]
    losses = [*found.losses, *[0] * (MOST_LOW - len(found.losses))]
    return np.array(entries, "<u2").view(np.uint64), _halves(thresholds), _halves(losses)


def _halves(numbers: list[int]) -> Halves:
    return np.array([half for t in numbers for half in (t >> 64, t % 2**64)], np.uint64)
