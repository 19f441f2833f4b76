# SPDX-License-Identifier: Apache-2.0
"""The ordinal mechanisms of LDP-Fed: their claim, and the integers that execute it.

An integer v moves by a two-sided geometric step. Here its coins' thresholds are computed, in decimal arithmetic with far
more digits than they have, and rounded so that alpha is never exceeded; the kernels only compare
(csrc/mechanisms/ordinal_cldp.h). The derivation is in docs/mechanisms/ordinal_cldp.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ldpkernels._dtypes import Dtype

if TYPE_CHECKING:
    from ldpkernels.accounting import PureEvent

Mechanism = Literal["exponential", "laplace"]
MECHANISMS = ("exponential", "laplace")

DIGITS = 128  # binary digits of a threshold
N = 2**DIGITS
LARGEST_M = 2**62
LARGEST_INTEGER = 2**63 - 1
LARGEST_PMF = 2**20
LARGEST_RHO = 22  # 10 ** 22 is the last power of ten that fp64 holds
LONGEST_STEP = Fraction(1109, 100)  # 16 ln 2: a quotient is worth a step of at most e^-this
ROOM = 64  # a laplace step leaves its output's range with probability below e^-64

_EXACT = Context(prec=100)
_MARGIN = Decimal("1e-60")  # above what 100 digits lose, far below what a threshold resolves


class Coins(NamedTuple):
    """The thresholds, out of 2^128, of a magnitude's binary digits and of its quotient."""

    digits: tuple[int, ...]
    quotient: int  # 0: the digits reach every magnitude
    lipschitz: Decimal  # the largest |ln P(g + 1) - ln P(g)| over all magnitudes g

    @property
    def log_odds(self) -> tuple[Decimal, ...]:
        """What each digit adds to ln P(g)."""
        with localcontext(_EXACT):
            return tuple((Decimal(t) / Decimal(N - t)).ln() for t in self.digits)


@dataclass(frozen=True)
class OrdinalCLDP:
    """alpha-condensed local differential privacy of a weight in [-c, c], as an integer of steps of 10^-rho.

    P(y | v) / P(y | v') <= e^(alpha |v - v'|) for any integers v, v' in [-M, M], M = c 10^rho, and every output y. All
    methods are in integers: divide by 10^rho for weights.

    >>> mechanism = OrdinalCLDP(alpha=0.1, c=1.0, rho=2)
    >>> mechanism.M, mechanism.effective_alpha <= 0.1, round(mechanism.variance(0))
    (100, True, 768)
    >>> round(OrdinalCLDP(0.1, 1.0, 2, "laplace").variance(0), 1)
    199.8
    """

    alpha: float
    c: float
    rho: int
    mechanism: Mechanism = "exponential"

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", checked_alpha(self.alpha))
        object.__setattr__(self, "rho", _checked_rho(self.rho))
        largest_integer(self.c, self.rho)
        checked_mechanism(self.mechanism)
        if self.mechanism == "laplace":
            checked_room(self.alpha, self.M, LARGEST_INTEGER)

    @property
    def M(self) -> int:
        """c 10^rho, c being the decimal number that it prints as: inputs are the integers in [-M, M]."""
        return largest_integer(self.c, self.rho)

    @property
    def coins(self) -> Coins:
        """The thresholds that are executed."""
        return coins(self.alpha, self.M, self.mechanism)

    @property
    def effective_alpha(self) -> float:
        """The alpha of the thresholds that are executed, rounded up; never above `alpha`."""
        return min(self.alpha, _times_up(self.coins.lipschitz, 2 if self.mechanism == "exponential" else 1))

    @property
    def worst_case_eps(self) -> float:
        """The eps of eps-local differential privacy over all of [-M, M], rounded up.

        2 M alpha by the metric; the exponential mechanism keeps half of it (docs/mechanisms/ordinal_cldp.md).

        >>> OrdinalCLDP(alpha=1.0, c=1.0, rho=10).worst_case_eps
        10000000000.0
        """
        return _times_up(self.coins.lipschitz, 2 * self.M)

    @property
    def event(self) -> PureEvent:
        """What one weight costs in the worst case, for `ldpkernels.accounting`."""
        from ldpkernels.accounting import PureEvent

        return PureEvent(self.worst_case_eps)

    def pmf(self, v: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """P(y | v) for y from -M to M, of the thresholds that are executed; for M up to 2^20.

        The laplace mechanism's outputs go on outside, so that its numbers here sum to less than 1.

        >>> OrdinalCLDP(alpha=2.0, c=1.0, rho=0).pmf(1).round(4)
        array([0.09  , 0.2447, 0.6652])
        """
        v, m = self._checked(v), self.M
        if m > LARGEST_PMF:
            raise ValueError(f"M={m} is too large to list all probabilities: at most 2^20")
        log_law = _log_magnitudes(self.coins, 2 * m)
        weights = np.exp(log_law[np.abs(np.arange(-m, m + 1) - v)])
        if self.mechanism == "exponential":
            return weights / weights.sum()
        return weights / _laplace_sum(self.coins)

    def bias(self, v: int) -> float:
        """Expected output less v: towards 0 for the exponential mechanism, 0 for laplace.

        >>> OrdinalCLDP(alpha=0.1, c=1.0, rho=2).bias(100) < -15
        True
        """
        return self._moments(v)[0]

    def variance(self, v: int) -> float:
        """Variance of the output for v."""
        return self._moments(v)[1]

    def _moments(self, v: int) -> tuple[float, float]:
        v = self._checked(v)
        rate = self.coins.lipschitz
        return _exponential_moments(v, self.M, rate) if self.mechanism == "exponential" else _laplace_moments(rate)

    def _checked(self, v: int) -> int:
        if int(v) != v or abs(v) > self.M:
            raise ValueError(f"v={v} must be an integer from -M to M, M={self.M}")
        return int(v)


@lru_cache(maxsize=1024)
def coins(alpha: float, m: int, mechanism: Mechanism) -> Coins:
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
    with localcontext(_EXACT):
        s = Decimal(rate.numerator) / Decimal(rate.denominator)
        lower, lipschitz, digits = Decimal(0), Decimal(0), []
        for _ in range(count):
            t = _ceil(N / (1 + (s - lower - _MARGIN).max(Decimal(0)).exp()))
            log_odds = (Decimal(t) / Decimal(N - t)).ln()
            lipschitz = max(lipschitz, abs(log_odds - lower))
            lower += log_odds
            digits.append(t)
        quotient = 0
        if count < most:
            quotient = max(1, _ceil(N * (lower - s + _MARGIN).exp()))
            lipschitz = max(lipschitz, abs((Decimal(quotient) / N).ln() - lower))
        if not (lipschitz <= s and quotient < N):
            raise ArithmeticError(f"thresholds for alpha={alpha}, M={m} ({mechanism}) break alpha: a bug")
    return Coins(tuple(digits), quotient, lipschitz)


def law_row(
    alpha: float, m: int, mechanism: Mechanism, *, reach: int = LARGEST_INTEGER, scale: float = 1.0, rounding: str = ""
) -> tuple[Any, ...]:
    """csrc's OrdinalCldpLaw; `reach` is how far laplace outputs may lie from 0."""
    found, laplace = coins(alpha, m, mechanism), mechanism == "laplace"
    count = len(found.digits)
    lanes = 2**count - 1 + (2 ** (count + 1) if found.quotient else 0)
    return (
        m, reach if laplace else m, laplace, count + 1 + (found.quotient > 0) > 32, rounding == "stochastic", scale,
        lanes, 2**count, 2 ** (count + 1) if found.quotient else 0, _lanes(found),
    )  # fmt: skip


def checked_alpha(alpha: Any) -> float:
    """alpha as a float, or an error that says what is right."""
    value = float(alpha)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"alpha={alpha} must be a finite number above 0")
    return value


def checked_mechanism(mechanism: Any) -> Mechanism:
    """One of the two names."""
    if mechanism not in MECHANISMS:
        raise ValueError(f"mechanism={mechanism!r} must be 'exponential' or 'laplace'")
    return "exponential" if mechanism == "exponential" else "laplace"


def checked_m(m: Any) -> int:
    """M as an integer."""
    if isinstance(m, bool) or int(m) != m or not 0 <= m <= LARGEST_M:
        raise ValueError(f"M={m} must be an integer from 0 to 2^62")
    return int(m)


def checked_room(alpha: float, m: int, reach: int) -> None:
    """The laplace mechanism's output is unbiased because it is hardly ever cut off."""
    if Fraction(alpha) * (reach - m) < ROOM:
        least = ROOM / (reach - m) if reach > m else math.inf
        raise ValueError(
            f"alpha={alpha} makes laplace noise that would be cut off at {reach}, from M={m}: use an alpha of at least "
            f"{least:.3g}, a wider dtype, or mechanism='exponential'"
        )


@lru_cache(maxsize=1024)
def largest_integer(c: Any, rho: int) -> int:
    """floor(c 10^rho), exactly; c counts as the decimal number that it prints as.

    >>> largest_integer(0.3, 10), largest_integer(2**62, 0) == 2**62
    (3000000000, True)
    """
    rho = _checked_rho(rho)
    if not (math.isfinite(c) and c >= 0):
        raise ValueError(f"c={c} must be finite and at least 0")
    exact = Fraction(c) if isinstance(c, int) else Fraction(repr(float(c)))
    m = math.floor(exact * 10**rho)
    if m > LARGEST_M:
        raise ValueError(f"c={c} with rho={rho} makes c 10^rho = {m}, above 2^62: use a smaller c or rho")
    return m


def reach_in(dtype: Dtype, rho: int) -> int:
    """The largest integer y for which y 10^-rho is a number of a format."""
    return min(LARGEST_INTEGER, math.floor(dtype.largest * 10**rho))


def _checked_rho(rho: Any) -> int:
    if isinstance(rho, bool) or int(rho) != rho or not 0 <= rho <= LARGEST_RHO:
        raise ValueError(f"rho={rho} must be an integer from 0 to {LARGEST_RHO}: digits after the decimal point")
    return int(rho)


def _ceil(x: Decimal) -> int:
    return int(x.to_integral_value(ROUND_CEILING))


def _times_up(x: Decimal, factor: int) -> float:
    """A float at or above x * factor; the last digits of x are not certain."""
    with localcontext(_EXACT):
        exact = x * factor * (1 + _MARGIN)
        value = float(exact)
        return value if Decimal(value) >= exact else math.nextafter(value, math.inf)


@lru_cache(maxsize=1024)
def _lanes(found: Coins) -> tuple[int, ...]:
    """Binary digit i, from the highest, of every lane's threshold, as a word."""
    thresholds = [*found.digits, 0, found.quotient]  # the sign between them is a draw's own bit
    return tuple(sum((t >> (DIGITS - 1 - i) & 1) << lane for lane, t in enumerate(thresholds)) for i in range(DIGITS))


def _log_magnitudes(found: Coins, largest: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """ln P(g) - ln P(0) for g from 0 to `largest`."""
    g = np.arange(largest + 1)
    count = len(found.digits)
    total = np.zeros(len(g))
    for j, log_odds in enumerate(found.log_odds):
        total += np.where(g >> j & 1, float(log_odds), 0.0)
    if found.quotient:
        total += (g >> count) * (math.log(found.quotient) - DIGITS * math.log(2))
    return total


def _laplace_sum(found: Coins) -> float:
    """The sum of P(|y - v|) / P(0) over all integers y."""
    with localcontext(_EXACT):
        one_side = 1 / (1 - Decimal(found.quotient) / N)
        for log_odds in found.log_odds:
            one_side *= 1 + log_odds.exp()
        return float(2 * one_side - 1)


def _exponential_moments(v: int, m: int, rate: Decimal) -> tuple[float, float]:
    """Bias and variance where P(y | v) is proportional to e^(-rate |y - v|) on [-m, m].

    Closed sums of geometric series, with so many digits that their cancellation for small rates costs nothing.
    """
    if rate == 0:
        return float(-v), float(Fraction((2 * m + 1) ** 2 - 1, 12))
    with localcontext(Context(prec=60 + 4 * max(0, -rate.adjusted()))):
        b = (-rate).exp()
        sides = [_geometric_sums(b, (-rate * n).exp(), n) for n in (m - v, m + v)]
        mass = 1 + sides[0][0] + sides[1][0]
        bias = (sides[0][1] - sides[1][1]) / mass
        return float(bias), float((sides[0][2] + sides[1][2]) / mass - bias * bias)


def _geometric_sums(b: Decimal, b_n: Decimal, n: int) -> tuple[Decimal, Decimal, Decimal]:
    """The sums of b^g, g b^g and g^2 b^g for g from 1 to n, where b_n is b^n."""
    rest, end = 1 - b, b_n * b
    zeroth = (b - end) / rest
    first = (b - end * (1 + n * rest)) / rest**2
    second = (b * (1 + b) - end * (1 + b + 2 * n * rest + (n * rest) ** 2)) / rest**3
    return zeroth, first, second


def _laplace_moments(rate: Decimal) -> tuple[float, float]:
    with localcontext(Context(prec=60 + 4 * max(0, -rate.adjusted()))):
        b = (-rate).exp()
        return 0.0, float(2 * b / (1 - b) ** 2)
