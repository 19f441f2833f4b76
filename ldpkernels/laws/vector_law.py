# SPDX-License-Identifier: Apache-2.0
"""What every law for a whole vector says of itself, whoever is trusted."""

from __future__ import annotations

from typing import Protocol

from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import Event, PureEvent
from ldpkernels.common.arguments import count


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
        """The eps of one round at delta, in the event's scope: by `composed_epsilon`."""

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
        """The eps of the numbers that are executed: any two updates, for whoever sees a report; rounded up."""
        raise NotImplementedError

    @property
    def worst_error(self) -> float:
        """Expected squared distance of a report from 0, at most: that from the update plus its squared length."""
        raise NotImplementedError

    @property
    def event(self) -> PureEvent:
        """What one report costs, for `ldpkernels.accounting`, between any two updates against the server.

        It is not a randomised response, which shuffles better.
        """
        return PureEvent(self.effective_eps)

    def epsilon(self, delta: float) -> float:
        """The eps of one report at delta, `effective_eps` at 0: any two updates, for whoever sees it."""
        return composed_epsilon([(self.event, 1)], delta)

    def mean_error(self, clients: int) -> float:
        """Expected squared distance of the mean of so many reports from the mean of the clipped updates, at most."""
        return self.worst_error / count("clients", clients)

    @property
    def bytes(self) -> int:
        """A report as `perturb_vector` returns it, in fp32."""
        return 4 * self.dimension
