# SPDX-License-Identifier: Apache-2.0
"""The integers that execute ordinal CLDP: thresholds of coins, and the checks of what a caller asks for.

Thresholds are computed in decimal arithmetic with far more digits than they have, and rounded so that alpha is never
exceeded; the kernels only compare (csrc/mechanisms/ordinal_cldp.h). docs/mechanisms/ordinal_cldp.md has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ldpkernels import _native
from ldpkernels.accounting.arguments import integer, number
from ldpkernels.accounting.decimals import context
from ldpkernels.arrays import Laws
from ldpkernels.dtypes import Dtype
from ldpkernels.laws.weightwise import Record

Noise = Literal["exponential", "laplace"]  # what users call the mechanism
Rounding = Literal["nearest", "stochastic"]

DIGITS = 128  # binary digits of a threshold
RANGE = 2**DIGITS  # of a threshold
LARGEST_M = 2**62 - 1  # 63 digits for a step of 2 M, and the sign, are the 64 bits of a draw
LARGEST_INTEGER = 2**63 - 1
LARGEST_RHO = 22  # 10 ** 22 is the last power of ten that fp64 holds
LONGEST_STEP = Fraction(1109, 100)  # 16 ln 2: a quotient is worth a step of at most e^-this
ROOM = 64  # a laplace step leaves its output's range with probability below e^-64

EXACT = context(100)
MARGIN = Decimal("1e-60")  # above what 100 digits lose, far below what a threshold resolves


class Coins(NamedTuple):
    """The thresholds, out of 2^128, of a magnitude's binary digits and of its quotient."""

    digits: tuple[int, ...]
    quotient: int  # 0: the digits reach every magnitude
    lipschitz: Decimal  # the largest |ln P(g + 1) - ln P(g)| over all magnitudes g

    @property
    def log_odds(self) -> tuple[Decimal, ...]:
        """What each digit adds to ln P(g)."""
        with localcontext(EXACT):
            return tuple((Decimal(t) / Decimal(RANGE - t)).ln() for t in self.digits)


@lru_cache(maxsize=1024, typed=True)  # True is no 1
def coins_for(alpha: float, m: int, mechanism: Noise) -> Coins:
    """Thresholds whose law has |ln P(g + 1) - ln P(g)| <= s, where s is alpha / 2 (exponential) or alpha (laplace).

    P(g) multiplies the odds of the binary digits of g. From g to g + 1 a digit comes and all lower ones, if they are
    there, go; so each threshold is chosen as the smallest integer for which that costs at most s, from the lowest digit
    on. Below the resolution of a threshold alpha is not noticed, and the digits are fair coins.
    """
    rate = Fraction(alpha) / (2 if mechanism == "exponential" else 1)
    most = (2 * m).bit_length() if mechanism == "exponential" else DIGITS
    count = 0
    while count < most and rate * 2 ** (count + 1) <= LONGEST_STEP:
        count += 1
    with localcontext(EXACT):
        s = Decimal(rate.numerator) / Decimal(rate.denominator)
        lower, lipschitz, digits = Decimal(0), Decimal(0), []
        for _ in range(count):
            t = _ceil(RANGE / (1 + (s - lower - MARGIN).max(Decimal(0)).exp()))
            log_odds = (Decimal(t) / Decimal(RANGE - t)).ln()
            lipschitz = max(lipschitz, abs(log_odds - lower))
            lower += log_odds
            digits.append(t)
        quotient = 0
        if count < most:
            quotient = max(1, _ceil(RANGE * (lower - s + MARGIN).exp()))
            lipschitz = max(lipschitz, abs((Decimal(quotient) / RANGE).ln() - lower))
        if not (lipschitz <= s and quotient < RANGE):
            raise ArithmeticError(f"thresholds for alpha={alpha}, M={m} ({mechanism}) break alpha: a bug")
    return Coins(tuple(digits), quotient, lipschitz)


def law_row(
    alpha: float, m: int, mechanism: Noise, *, reach: int = LARGEST_INTEGER, scale: float = 1.0, rounding: str = ""
) -> Record:
    """csrc's OrdinalCldpLaw; `reach` is how far laplace outputs may lie from 0."""
    found, laplace = coins_for(alpha, m, mechanism), mechanism == "laplace"
    count = len(found.digits)
    sign, quotient = 2**count, 2 ** (count + 1) if found.quotient else 0
    wide = sign + quotient >= 2**32
    return (
        m, reach if laplace else m, laplace, wide, rounding == "stochastic", scale,
        np.uint64(sign - 1 + quotient), np.uint64(sign), np.uint64(quotient), _lanes(found),
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


def _ceil(x: Decimal) -> int:
    return int(x.to_integral_value(ROUND_CEILING))


@lru_cache(maxsize=1024, typed=True)  # True is no 1
def _lanes(found: Coins) -> NDArray[np.uint64]:
    """Binary digit i, from the highest, of every lane's threshold, as a word."""
    thresholds = [*found.digits, 0, found.quotient]  # the sign between them is a draw's own bit
    words = [sum((t >> (DIGITS - 1 - i) & 1) << lane for lane, t in enumerate(thresholds)) for i in range(DIGITS)]
    return np.array(words, np.uint64)
