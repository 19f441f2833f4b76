# SPDX-License-Identifier: Apache-2.0
"""The ordinal mechanisms of LDP-Fed: their claim, their law and its moments. docs/mechanisms/ordinal_cldp.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from ldpkernels.accounting.events import MetricEvent
from ldpkernels.accounting.neighbours import LOCAL, Unit
from ldpkernels.common.arrays import Floats
from ldpkernels.common.decimals import digits
from ldpkernels.laws.ordinal_cldp_integers import EXACT, MARGIN, MASS, RANGE, Magnitudes, Noise, magnitudes_for
from ldpkernels.laws.ordinal_cldp_thresholds import (
    LARGEST_INTEGER,
    checked_alpha,
    checked_mechanism,
    checked_rho,
    checked_room,
    largest_integer,
)

LARGEST_PMF = 2**20


@dataclass(frozen=True)
class OrdinalCLDP:
    """alpha-condensed local differential privacy of a weight in [-c, c], as an integer of steps of 10^-rho.

    The server sees y, and P(y | v) / P(y | v') <= e^(alpha |v - v'|) for any two integers v, v' in [-M, M], M = c
    10^rho, and every output y. All methods use integers: divide by 10^rho for weights.

    >>> mechanism = OrdinalCLDP(alpha=0.1, c=1.0, rho=2)
    >>> mechanism.M, mechanism.effective_alpha <= 0.1, round(mechanism.variance(0))
    (100, True, 706)
    >>> round(OrdinalCLDP(0.1, 1.0, 2, "laplace").variance(0), 1)
    199.8
    """

    alpha: float
    c: float
    rho: int
    mechanism: Noise = "exponential"

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", checked_alpha(self.alpha))
        object.__setattr__(self, "rho", checked_rho(self.rho))
        largest_integer(self.c, self.rho)
        checked_mechanism(self.mechanism)
        if self.mechanism == "laplace":
            checked_room(self.alpha, self.M, LARGEST_INTEGER)

    @property
    def M(self) -> int:
        """c 10^rho, where c is the decimal number that it prints as. Inputs are the integers in [-M, M]."""
        return largest_integer(self.c, self.rho)

    @property
    def magnitudes(self) -> Magnitudes:
        """The integers that are executed."""
        return magnitudes_for(self.alpha, self.M, self.mechanism)

    @property
    def effective_alpha(self) -> float:
        """The alpha of the integers that are executed, rounded up; never above `alpha`."""
        return min(self.alpha, _times_up(self.magnitudes.lipschitz, 2 if self.mechanism == "exponential" else 1))

    @property
    def worst_case_eps(self) -> float:
        """The eps between any two values of [-M, M], for whoever sees a report; rounded up.

        The metric alone gives 2 M alpha, and that is the eps of laplace. The exponential mechanism's is M alpha
        (docs/mechanisms/ordinal_cldp.md).

        >>> OrdinalCLDP(alpha=1.0, c=1.0, rho=10).worst_case_eps
        10000000000.0
        """
        return _times_up(self.magnitudes.lipschitz, 2 * self.M)

    @property
    def event(self) -> MetricEvent:
        """What one weight costs by the metric alone, for `ldpkernels.accounting`.

        >>> OrdinalCLDP(alpha=0.5, c=1.0, rho=1).event.pure_epsilon
        10.0
        """
        return MetricEvent(self.effective_alpha, "linf", 2.0 * self.M, scope=LOCAL.per(Unit.WEIGHT))

    def pmf(self, v: int) -> Floats:
        """P(y | v) of the integers that are executed, for y from -M to M; for M up to 2^20.

        The laplace mechanism has outputs outside too, so its numbers here sum to less than 1.

        >>> OrdinalCLDP(alpha=2.0, c=1.0, rho=0).pmf(1).round(4)
        array([0.09  , 0.2447, 0.6652])
        """
        v, m = self._checked(v), self.M
        if m > LARGEST_PMF:
            raise ValueError(f"M={m} is too large to list all probabilities: at most 2^20")
        log_law = _log_magnitudes(self.magnitudes, 2 * m)
        weights: Floats = np.exp(log_law[np.abs(np.arange(-m, m + 1) - v)])
        if self.mechanism == "exponential":
            weights /= weights.sum()
        else:
            weights /= _laplace_sum(self.magnitudes)
        return weights

    def bias(self, v: int) -> float:
        """Expected output minus v: towards 0 for the exponential mechanism, 0 for laplace.

        >>> OrdinalCLDP(alpha=0.1, c=1.0, rho=2).bias(100) < -15
        True
        """
        return self._moments(v)[0]

    def variance(self, v: int) -> float:
        """Variance of the output for v."""
        return self._moments(v)[1]

    def _moments(self, v: int) -> tuple[float, float]:
        v = self._checked(v)
        rate = self.magnitudes.lipschitz
        return _exponential_moments(v, self.M, rate) if self.mechanism == "exponential" else _laplace_moments(rate)

    def _checked(self, v: int) -> int:
        if int(v) != v or abs(v) > self.M:
            raise ValueError(f"v={v} must be an integer from -M to M, M={self.M}")
        return int(v)


def _times_up(x: Decimal, factor: int) -> float:
    """A float at or above x * factor; the last digits of x are not certain."""
    with localcontext(EXACT):
        exact = x * factor * (1 + MARGIN)
        value = float(exact)
        return value if Decimal(value) >= exact else math.nextafter(value, math.inf)


def _log_magnitudes(found: Magnitudes, largest: int) -> Floats:
    """ln P(g) - ln P(0) for g from 0 to `largest`."""
    g = np.arange(largest + 1)
    upper, lower = np.divmod(g % found.unit, found.column)
    middle, low = np.divmod(lower, 2 ** len(found.losses))
    total: Floats = _logs(found.upper)[upper] + _logs(found.middle)[middle]
    for j, loss in enumerate(found.losses):
        total += np.where(low >> j & 1, math.log1p(-loss / RANGE), 0.0)
    if not found.bounded:
        total += (g // found.unit) * (math.log(found.tail) - math.log(MASS))
    return total


def _logs(masses: tuple[int, ...]) -> Floats:
    """Logarithms relative to the first's."""
    with localcontext(EXACT):
        return np.array([float((Decimal(mass) / masses[0]).ln()) for mass in masses])


def _laplace_sum(found: Magnitudes) -> float:
    """The sum of P(|y - v|) / P(0) over all integers y."""
    with localcontext(EXACT):
        one_side = Decimal(sum(found.upper)) / found.upper[0] * sum(found.middle) / found.middle[0]
        for loss in found.losses:
            one_side *= 1 + Decimal(RANGE - loss) / RANGE
        return float(2 * one_side / (1 - Decimal(found.tail) / MASS) - 1)


def _exponential_moments(v: int, m: int, rate: Decimal) -> tuple[float, float]:
    """Bias and variance where P(y | v) is proportional to e^(-rate |y - v|) on [-m, m].

    Closed sums of geometric series, with so many digits that their cancellation for small rates costs nothing.
    """
    if rate == 0:
        return float(-v), float(Fraction((2 * m + 1) ** 2 - 1, 12))
    with digits(60 + 4 * max(0, -rate.adjusted())):
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
    with digits(60 + 4 * max(0, -rate.adjusted())):
        b = (-rate).exp()
        return 0.0, float(2 * b / (1 - b) ** 2)
