# SPDX-License-Identifier: Apache-2.0
"""What every law for a whole vector says of itself, whoever is trusted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from ldpkernels.accounting.events import Event, PureEvent
from ldpkernels.arguments import count


class VectorLaw(Protocol):
    """A claim about d weights of L2 norm at most `norm`, a frozen dataclass. Errors leave clipping aside.

    The adversary and the neighbours are the event's: any two updates for a report that a server sees, an update or
    nothing for a sum that secure aggregation gives it.
    """

    @property
    def dimension(self) -> int:
        """d."""

    @property
    def norm(self) -> float:
        """The L2 norm to which an update is clipped."""

    @property
    def event(self) -> Event:
        """One round, for `ldpkernels.accounting`; compose it over rounds."""

    def epsilon(self, delta: float) -> float:
        """The eps of one round at delta."""

    def mean_error(self, clients: int) -> float:
        """Expected squared L2 distance of the mean of so many reports from the mean of the clipped updates, at most."""

    @property
    def bytes(self) -> int:
        """What a client sends in a round."""


class PureVectorLaw:
    """What follows for a report, and for a mean of reports, of one eps at any delta. A subclass is the dataclass."""

    dimension: int

    @property
    def effective_eps(self) -> float:
        """The eps of the numbers that are executed."""
        raise NotImplementedError

    @property
    def worst_error(self) -> float:
        """Expected squared distance of a report from 0, at most: that from the update plus its squared length."""
        raise NotImplementedError

    @property
    def event(self) -> PureEvent:
        """What one report costs, for `ldpkernels.accounting`; it is no randomised response, which shuffles better."""
        return PureEvent(self.effective_eps)

    def epsilon(self, delta: float) -> float:
        """The eps of one report, at any delta."""
        return self.effective_eps

    def mean_error(self, clients: int) -> float:
        """Expected squared distance of the mean of so many reports from the mean of the clipped updates, at most."""
        return self.worst_error / count("clients", clients)

    @property
    def bytes(self) -> int:
        """A report as `perturb_vector` returns it, in fp32."""
        return 4 * self.dimension


def epsilon_at_distance(epsilon: Callable[[float], float], distance: float, delta: float) -> float:
    """The eps at delta of what is `distance` in total variation from a law whose eps at any delta is `epsilon`.

    Going over to that law and back costs delta (1 + e^eps) times the distance: what is set aside for it grows until it
    is enough.

    >>> epsilon_at_distance(lambda delta: 1.0, 1e-20, 1e-5), epsilon_at_distance(lambda delta: 1.0, 1e-5, 1e-5)
    (1.0, inf)
    """
    spent = 1e-6 * delta
    for _ in range(8):
        eps = epsilon(delta - spent)
        needed = (1 + math.exp(min(eps, 700.0))) * distance
        if needed <= spent:
            return eps
        spent = 1.5 * needed
        if spent >= delta:
            break
    return math.inf
