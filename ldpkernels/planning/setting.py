# SPDX-License-Identifier: Apache-2.0
"""What a plan is made for: the total, the federation, and who is trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ldpkernels.common import arguments
from ldpkernels.planning import turnout

Trust = Literal["local", "shuffled", "secure-aggregation", "central"]
TRUSTS: tuple[Trust, ...] = get_args(Trust)  # each trusts more than the one before
LEAST_TOTAL = 1e-100
LEAST_SIZE, MOST_SIZE = 1e-30, 1e30  # of a radius or norm: within, no square of one leaves floating point
HIDING: tuple[Trust, ...] = ("shuffled", "secure-aggregation")  # where clients are hidden by the others of a round
COLLUDERS = 1  # of a secure sum: whoever reads the model is a client, and knows its own noise
EXCLUDED = 0.1  # of delta: that a round is smaller than planned
OVERFLOW = 1e-6  # that a secure sum is larger than planned, and refused


@dataclass(frozen=True)
class Setting:
    """The arguments of `plan`, checked. `box` bounds every coordinate of an update, and `ball` its L2 norm.

    >>> setting = Setting(8.0, 1e-5, rounds=10, clients=1000, weights=400, trust="local", radius=0.1)
    >>> setting.box, setting.ball
    (0.1, 2.0)
    """

    epsilon: float
    delta: float
    rounds: int
    clients: int
    weights: int
    trust: Trust
    radius: float | None = None
    norm: float | None = None
    participation: float = 1.0
    at_least: int | None = None
    invited: int | None = None
    threshold: int | None = None

    def __post_init__(self) -> None:
        fixed: dict[str, object] = {
            "epsilon": _total(self.epsilon),
            "rounds": arguments.count("rounds", self.rounds),
            "clients": arguments.count("clients", self.clients),
            "weights": arguments.count("weights", self.weights),
            "trust": arguments.choice("trust", self.trust, TRUSTS),
            "delta": arguments.excluded(self.delta, zero=self.trust == "local"),
            "participation": arguments.probability("participation", self.participation),
        }
        arguments.count("weights * rounds", self.weights * self.rounds)
        if self.radius is None and self.norm is None:
            raise ValueError(
                "radius and norm are both missing: give the largest coordinate of an update, its L2 norm, or both"
            )
        for name, value in (("radius", self.radius), ("norm", self.norm)):
            fixed[name] = None if value is None else _size(name, value)
        fixed |= {name: self._whole(name) for name in ("at_least", "invited", "threshold")}
        for name, checked in fixed.items():
            object.__setattr__(self, name, checked)
        if self.at_least is not None and self.at_least > self.clients:
            raise ValueError(
                f"at_least = {self.at_least} is more than the clients = {self.clients} of a round: lower it"
            )
        if self.invited is not None and self.invited < max(self.clients, self.threshold or 0):
            raise ValueError(
                f"invited = {self.invited} is less than the clients = {self.clients} of a round, or than the"
                f" threshold = {self.threshold}: raise it"
            )

    def _whole(self, name: str) -> int | None:
        value = getattr(self, name)
        return None if value is None else arguments.count(name, value, 1 + (name == "threshold"))

    @property
    def box(self) -> float:
        """No coordinate of a clipped update is larger."""
        sizes = [size for size in (self.radius, self.norm) if size is not None]
        return min(sizes)

    @property
    def ball(self) -> float:
        """No clipped update is longer."""
        corner = math.inf if self.radius is None else self.radius * math.sqrt(self.weights)
        return min(corner, math.inf if self.norm is None else self.norm)

    def of_clients(self, times: int) -> Setting:
        """The same setting with so many times the clients."""
        counts = {name: getattr(self, name) for name in ("clients", "at_least", "invited", "threshold")}
        return replace(self, **{name: times * count for name, count in counts.items() if count is not None})

    @property
    def enforced(self) -> bool:
        """Whether the server is told the fewest clients of a round."""
        return self.at_least is not None or (self.trust in HIDING and self.threshold is not None)

    @property
    def drawn(self) -> bool:
        """Whether a round may be smaller than any that the total is calibrated for."""
        return self.trust in HIDING and self.participation < 1 and not self.enforced

    @property
    def excluded(self) -> float:
        """The part of delta that pays for smaller rounds."""
        return EXCLUDED * self.delta if self.drawn else 0.0

    @property
    def kept_delta(self) -> float:
        """What is left of delta for the reports and sums themselves."""
        return self.delta - self.excluded

    @property
    def population(self) -> int:
        """How many clients there are, of whom those of a round are drawn."""
        return turnout.population(self.clients, self.participation)

    @property
    def sure(self) -> int:
        """How many honest clients are in every round, whose reports or noise hide each of them."""
        if self.drawn:
            return max(1, turnout.smallest(self.population, self.participation, self.excluded / self.rounds))
        sure = min(self.clients, self.at_least or self.clients)
        if self.trust in HIDING and self.threshold is not None:  # a sum serves in a shuffler's stead
            sure = min(sure, self.threshold - COLLUDERS)
        return sure

    @property
    def opened(self) -> int:
        """The threshold of a secure sum: the fewest clients whose sum is opened."""
        return self.sure + COLLUDERS if self.threshold is None else self.threshold

    @property
    def nodes(self) -> int:
        """How many clients to invite to a round."""
        return self.most if self.trust in HIDING else self.clients

    @property
    def most(self) -> int:
        """How many clients may upload to a secure sum."""
        if self.invited is not None:
            return self.invited
        drawn = turnout.largest(self.population, self.participation, OVERFLOW / self.rounds)
        return max(drawn + COLLUDERS, self.opened)

    @property
    def spread(self) -> float:
        """The largest mean square of the coordinates, in units of `box` squared."""
        return min(1.0, (self.ball / self.box) ** 2 / self.weights)


def _total(epsilon: float) -> float:
    total = arguments.positive("epsilon", epsilon)
    if total < LEAST_TOTAL:
        raise ValueError(f"epsilon = {total!r} is below {LEAST_TOTAL:g}, for which nothing is calibrated: raise it")
    return total


def _size(name: str, value: float) -> float:
    size = arguments.positive(name, value)
    if not LEAST_SIZE <= size <= MOST_SIZE:
        raise ValueError(f"{name} = {size!r} is outside [{LEAST_SIZE:g}, {MOST_SIZE:g}]: scale the updates")
    return size
