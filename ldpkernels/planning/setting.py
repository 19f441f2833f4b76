# SPDX-License-Identifier: Apache-2.0
"""What a plan is made for: the total, the federation, and who is trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ldpkernels import arguments

Trust = Literal["local", "shuffled", "secure-aggregation", "central"]
TRUSTS: tuple[Trust, ...] = get_args(Trust)  # each trusts more than the one before
LEAST_TOTAL = 1e-100
LEAST_SIZE, MOST_SIZE = 1e-30, 1e30  # of a radius or norm: within, no square of one leaves floating point


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
        for name, checked in fixed.items():
            object.__setattr__(self, name, checked)

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
