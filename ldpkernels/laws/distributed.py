# SPDX-License-Identifier: Apache-2.0
"""Each client's share of the noise under secure aggregation: the distributed discrete Gaussian, and Skellam.

docs/mechanisms/distributed.md has the laws, the bound of a rounded norm, and what dropouts and a modulus do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, TypeVar

from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import ConcentratedEvent, Event, SkellamEvent
from ldpkernels.common import arguments
from ldpkernels.laws.adaptive_clipping import AdaptiveClipping
from ldpkernels.laws.noise_table import (
    DISTANCE,
    LEAST_STDDEV,
    MOST_STDDEV,
    NoiseTable,
    gaussian_table,
    skellam_table,
)
from ldpkernels.laws.weightwise import checked_eps

UP = 1 + 2.0**-40  # more than the rounding of any formula here
BETA = 2.0**-40  # a rounding whose norm is too large is drawn again: its probability, at most
FAR_APART = 2.0**-64  # the same, of the difference of two updates
ROOM = 1 - 2.0**-7  # of a norm, for sums of rows: within it no rounding is drawn again
WRAP = 1e-6  # the probability that some weight of the sum leaves its range, at most, unless asked otherwise
MOST_DIMENSION = 2**30
Law = TypeVar("Law", bound="Shares")


def rounded_square(c: float, size: int, beta: float) -> float:
    """A bound on the squared norm of a vector of norm c after rounding at random: passed with probability beta at most.

    >>> rounded_square(10.0, 4, 0.01) < 12.0**2
    True
    """
    root = math.sqrt(size)
    return min((c + root) ** 2, c * c + size / 4 + math.sqrt(-2 * math.log(beta)) * (c + root / 2))


def executed_row(row: float, longest: float, size: int) -> float:
    """How far a row can bring two sums apart as they are executed, all in units of the grid: a little more than itself.

    Either sum is at most `longest`, and is rounded to fp32 when it is read, at every level of its rotation and by the
    factor; this allows for two roundings more. A rounding at random has draws of 32 bits.

    >>> executed_row(1000.0, 1e6, 128) < 1002.0
    True
    """
    roundings = size.bit_length() + 4
    return row + roundings * 2.0**-23 * longest + math.sqrt(size) * 2.0**-31


LEAST_LIKE_A_GAUSSIAN = 16.0  # of a share's standard deviation: tau is nothing there


@dataclass(frozen=True)
class Shares:
    """What both mechanisms share. A client sends integers modulo 2^bits, one for each weight after padding.

    This is a `VectorLaw` (ldpkernels/laws/vector_law.py) about the sum. Nobody may see the integers of one client,
    whose share of the noise protects little. Use the subclasses' `calibrated`.

    Args:
        dimension: d. The update is padded to `padded`, a power of two, and rotated.
        norm: The L2 norm to which an update is clipped.
        clients: How many honest clients' noise is in the sum **at least**. Allow for dropouts, and do not count clients
            that might collude with the server. With fewer, decoding is refused.
        grid_norm: `norm` in units of the grid; a unit is norm / grid_norm.
        stddev: Deviation of a client's noise, in units.
        bits: An integer of the sum is known modulo 2^bits.
        invited: The most clients that can be in a sum.
    """

    name: ClassVar[str] = ""
    dimension: int
    norm: float
    clients: int
    grid_norm: float
    stddev: float
    bits: int
    invited: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", arguments.count("dimension", self.dimension, most=MOST_DIMENSION))
        object.__setattr__(self, "clients", arguments.count("clients", self.clients, most=10**9))
        object.__setattr__(self, "invited", arguments.count("invited", self.invited, self.clients, 10**9))
        object.__setattr__(self, "bits", arguments.count("bits", self.bits, 2, 32))
        for name in ("norm", "grid_norm", "stddev"):
            object.__setattr__(self, name, arguments.positive(name, getattr(self, name)))
        if not 2.0**-100 <= self.norm <= 2.0**100:
            raise ValueError(f"norm={self.norm} must be from 2^-100 to 2^100: change the unit of the weights")
        if not self.grid_norm <= 2.0**30:
            raise ValueError(f"grid_norm={self.grid_norm} must be at most 2^30")
        if not self.least_stddev <= self.stddev <= MOST_STDDEV:
            raise ValueError(
                f"stddev={self.stddev} units must be from {self.least_stddev} to {MOST_STDDEV}: change grid_norm, the "
                "grid's fineness"
            )

    @classmethod
    def calibrated(
        cls: type[Law],
        eps: float,
        delta: float,
        *,
        dimension: int,
        clients: int,
        norm: float = 1.0,
        bits: int = 16,
        rounds: int = 1,
        invited: int | None = None,
        wrap: float = WRAP,
        clipping: AdaptiveClipping | None = None,
    ) -> Law:
        """The finest grid with which all rounds together are (eps, delta)-DP and a sum stays in its range.

        That is between an update and zeros in its place, for whoever sees the sums.

        With `clipping`, its bits are summed in every round too, and the total covers both. Its norms only scale the
        grid: in units the law is the same for every norm.

        >>> law = DistributedGaussian.calibrated(8.0, 1e-5, dimension=1_000_000, clients=1000)
        >>> law.epsilon(1e-5) <= 8.0, law.wrap_probability(1000) <= 1e-6, law.bytes
        (True, True, 2097152)
        """
        eps, delta = checked_eps(eps), arguments.excluded(delta)
        rounds, wrap = arguments.count("rounds", rounds), arguments.probability("wrap", wrap, one=False)
        any_grid = cls(dimension, norm, clients, 1.0, cls.least_stddev, bits, clients if invited is None else invited)
        finest: Law = _finest(replace(any_grid, norm=1.0), eps, delta, rounds, wrap, clipping)
        return replace(finest, norm=any_grid.norm)

    least_stddev: ClassVar[float] = LEAST_STDDEV

    @property
    def padded(self) -> int:
        """The power of two to which an update is padded."""
        return 1 << (self.dimension - 1).bit_length()

    @property
    def unit(self) -> float:
        """The grid's spacing, in the weights' unit."""
        return self.norm / self.grid_norm

    @property
    def square_bound(self) -> int:
        """The largest squared norm of a client's integers before noise; a rounding beyond it is drawn again.

        With c = grid_norm it is the smaller of (c + sqrt(D))^2 and c^2 + D/4 + sqrt(2 ln(1/beta)) (c + sqrt(D)/2),
        which a rounding passes with probability beta at most.
        """
        return math.ceil(rounded_square(self.grid_norm, self.padded, BETA) * UP)

    @property
    def l2(self) -> float:
        """An upper bound on what one client adds to the sum, in units."""
        return math.sqrt(self.square_bound) * UP

    @property
    def l1(self) -> float:
        """An upper bound on the sum of magnitudes that one client adds, a whole number."""
        return min(math.sqrt(self.padded) * self.l2, float(self.square_bound)) * UP

    @property
    def table(self) -> NoiseTable:
        """A client's noise."""
        raise NotImplementedError

    @property
    def event(self) -> Event:
        """One sum, for `ldpkernels.accounting`: a client's update against zeros, for whoever sees the sums."""
        raise NotImplementedError

    @property
    def _slack(self) -> float:
        """The distance of the noise of all honest clients from its law."""
        return self.padded * self.clients * DISTANCE

    def with_clients(self: Law, clients: int) -> Law:
        """This law with the same noise from another number of honest clients in the sum, for example after dropouts."""
        return replace(self, clients=clients, invited=max(clients, self.invited))

    def epsilon(self, delta: float, rounds: int = 1, clipping: AdaptiveClipping | None = None) -> float:
        """The eps of so many sums at delta, with the bits of `clipping` if any.

        A client's update against zeros in its place, for whoever sees the sums.
        """
        delta, rounds = arguments.excluded(delta), arguments.count("rounds", rounds)
        events = [self.event]
        if clipping is not None:
            if clipping.clients > self.clients:
                raise ValueError(
                    f"clipping has the noise of {clipping.clients} clients on its bits, and only {self.clients} are in"
                    f" the sum at least: pass AdaptiveClipping(..., clients={self.clients})"
                )
            events.append(clipping.event)
        return composed_epsilon([(event, rounds) for event in events], delta, "rdp")

    def mean_error(self, clients: int) -> float:
        """Expected squared distance of the mean of so many clients from the mean of their clipped updates, at most.

        Noise and rounding; without the events of probability `BETA` a client and `wrap_probability`.
        """
        clients = arguments.count("clients", clients)
        return self.dimension * self.unit**2 * (self.stddev**2 + 0.25) / clients

    def wrap_probability(self, clients: int) -> float:
        """That some weight of the sum leaves [-2^(bits-1), 2^(bits-1)), at most: it is an error and not a leak.

        Chernoff's bound for each weight. The rotation's signs make it sub-Gaussian with (clients * grid_norm)^2 / D,
        rounding with 1/4 for each client; roundings that are drawn again are paid for by dividing.
        """
        clients = arguments.count("clients", clients)
        half = 2.0 ** (self.bits - 1) - 1
        signal = (clients * self.grid_norm) ** 2 / self.padded + clients / 4
        gaussian = half / (signal + clients * self.stddev**2)  # the best t, were the noise sub-Gaussian
        exponent = max(
            half * t - signal * t * t / 2 - clients * self._log_moment(t)
            for t in (gaussian * 2.0 ** (-i / 4) for i in range(40))
        )
        kept = 1 - clients * BETA
        if exponent <= 0 or kept <= 0.5:
            return 1.0
        return min(1.0, 2 * self.padded * math.exp(-min(exponent, 700.0)) / kept * UP)

    def _log_moment(self, t: float) -> float:
        """At least ln E e^(t Y) of a client's noise Y."""
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """Integers of `bits` bits; secure aggregation's own cost is not counted."""
        return (self.padded * self.bits + 7) // 8


@lru_cache(maxsize=256)  # a run whose norm adapts asks in every round
def _finest(law: Law, eps: float, delta: float, rounds: int, wrap: float, clipping: AdaptiveClipping | None) -> Law:
    """The law with the finest grid and the least noise that keep eps, delta and wrap; its norm plays no part."""
    best, low, high = None, 2.0**-4, 2.0**30
    for _ in range(18):
        middle = math.sqrt(low * high)
        quietest = replace(law, grid_norm=middle)
        noised = None
        if quietest.wrap_probability(law.invited) <= wrap:
            noised = _least_noise(quietest, eps, delta, rounds, clipping)
        if noised is not None and noised.wrap_probability(law.invited) <= wrap:
            best, low = noised, middle
        else:
            high = middle
    if best is None:
        raise ValueError(
            f"bits={law.bits} cannot hold the sum of {law.invited} clients at eps={eps}, delta={delta}: pass more "
            "bits, fewer clients, or a larger eps"
        )
    return best


def _least_noise(law: Law, eps: float, delta: float, rounds: int, clipping: AdaptiveClipping | None) -> Law | None:
    """The law with the least noise for its grid that keeps eps and delta; None where no table has it."""
    low, high = law.least_stddev, MOST_STDDEV
    if not replace(law, stddev=high).epsilon(delta, rounds, clipping) <= eps:
        return None
    if replace(law, stddev=low).epsilon(delta, rounds, clipping) <= eps:
        return replace(law, stddev=low)
    for _ in range(18):
        middle = math.sqrt(low * high)
        kept = replace(law, stddev=middle).epsilon(delta, rounds, clipping) <= eps
        low, high = (low, middle) if kept else (middle, high)
    return replace(law, stddev=high)


@dataclass(frozen=True)
class DistributedGaussian(Shares):
    """Discrete Gaussian shares (Kairouz, Liu and Steinke, ICML 2021), whose sum is nearly a discrete Gaussian.

    eps is between a client's update and zeros in its place, for whoever sees the sums (`Shares`).

    >>> law = DistributedGaussian(1000, 1.0, clients=100, grid_norm=100.0, stddev=10.0, bits=16, invited=100)
    >>> round(law.event.rho, 4)
    0.556
    """

    name: ClassVar[str] = "distributed-gaussian"
    least_stddev: ClassVar[float] = 1.0  # below, a sum is too far from a discrete Gaussian

    @property
    def table(self) -> NoiseTable:
        """The noise of a share: a discrete Gaussian."""
        return gaussian_table(self.stddev)

    def _log_moment(self, t: float) -> float:
        return (self.stddev * t) ** 2 / 2

    @property
    def tau(self) -> float:
        """A bound on the sum's log-probabilities against a discrete Gaussian's: 10 sum of e^(-2 pi^2 s^2 k/(k+1))."""
        rate = 2 * math.pi**2 * self.stddev**2
        few = min(self.clients, 64)  # terms fall with k: the others are as many times the next
        terms = [math.exp(-rate * k / (k + 1)) for k in range(1, few)]
        rest = (self.clients - few) * math.exp(-rate * few / (few + 1))
        return 10 * (math.fsum(terms) + rest) * UP

    def multiplier(self, norm: float) -> float:
        """The noise multiplier of a sum for one row of that norm, where a client's update is a sum of rows.

        Clipping is a projection, and rounding at random compares each weight with a draw of its own. So two updates
        that differ by such a row become integers whose difference is a rounding at random of a row that is no longer.
        Its square is above `rounded_square` with probability `FAR_APART`. Updates are at most `rows_norm` long, so that
        a rounding is drawn again with that probability only. `rows_slack` covers both.
        """
        if self.stddev < LEAST_LIKE_A_GAUSSIAN:
            raise ValueError(
                f"stddev={self.stddev} is below {LEAST_LIKE_A_GAUSSIAN:g} steps of the grid, where the account for "
                "samples cannot treat a sum of shares as a Gaussian: raise grid_norm and stddev together"
            )
        shorter = rounded_square(self.grid_norm * ROOM, self.padded, FAR_APART) * UP
        if not shorter <= self.square_bound:
            raise ValueError(f"grid_norm={self.grid_norm} is too coarse a grid for sums of rows: raise it")
        row = executed_row(arguments.positive("norm", norm) / self.unit, self.grid_norm, self.padded)
        apart = math.sqrt(rounded_square(row, self.padded, FAR_APART)) * UP
        return 1 / (apart / (math.sqrt(self.clients) * self.stddev) + self.tau * math.sqrt(self.padded)) / UP

    @property
    def rows_norm(self) -> float:
        """The norm to which a client's sum of rows is clipped before it is encoded."""
        return self.norm * ROOM

    @property
    def rows_slack(self) -> float:
        """The distance of the sum of rows from its law."""
        return self._slack + 2 * FAR_APART

    @property
    def event(self) -> ConcentratedEvent:
        """(l2 / (sqrt(n) stddev) + tau sqrt(D))^2 / 2 of zero-concentrated DP: docs/mechanisms/distributed.md."""
        eps = self.l2 / (math.sqrt(self.clients) * self.stddev) + self.tau * math.sqrt(self.padded)
        return ConcentratedEvent(eps * eps / 2 * UP, slack=self._slack)


@dataclass(frozen=True)
class DistributedSkellam(Shares):
    """Skellam shares (Agarwal, Kairouz and Liu, NeurIPS 2021), which add up to a Skellam number exactly.

    eps is between a client's update and zeros in its place, for whoever sees the sums (`Shares`).

    >>> law = DistributedSkellam(1000, 1.0, clients=100, grid_norm=100.0, stddev=10.0, bits=16, invited=100)
    >>> round(law.event.variance)
    10000
    """

    name: ClassVar[str] = "skellam"

    @property
    def table(self) -> NoiseTable:
        """The noise of a share: the difference of two Poisson numbers."""
        return skellam_table(self.stddev**2)

    def _log_moment(self, t: float) -> float:
        return 2 * (self.stddev * math.sinh(min(t, 300.0) / 2)) ** 2

    @property
    def event(self) -> SkellamEvent:
        """The Renyi divergence of the sum."""
        return SkellamEvent(self.clients * self.stddev**2 / UP, self.l2, self.l1, slack=self._slack)
