# SPDX-License-Identifier: Apache-2.0
"""What every law for a whole vector says of itself, whoever is trusted."""

from __future__ import annotations

from typing import Protocol

from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import Event, PureEvent
from ldpkernels.common.arguments import count


class VectorLaw(Protocol):
    """A claim about d weights of L2 norm at most `norm`, a frozen dataclass. Errors do not include clipping.

    The event says who the adversary is and what the neighbours are: any two updates for a report that a server sees, an
    update or zeros for a sum by secure aggregation.
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
        """An upper bound on the expected squared L2 distance of the reports' mean from that of the clipped updates."""

    @property
    def bytes(self) -> int:
        """How many bytes a client sends in a round."""


class PureVectorLaw:
    """What follows for reports and their mean from one eps that holds at any delta. A subclass is the dataclass."""

    dimension: int

    @property
    def effective_eps(self) -> float:
        """The eps of the numbers that are executed: any two updates, for whoever sees a report; rounded up."""
        raise NotImplementedError

    @property
    def worst_error(self) -> float:
        """An upper bound on the expected squared length of a report: its error plus the update's squared length."""
        raise NotImplementedError

    @property
    def event(self) -> PureEvent:
        """What one report costs, for `ldpkernels.accounting`, between any two updates against the server.

        It is not a randomised response, for which shuffling does more.
        """
        return PureEvent(self.effective_eps)

    def epsilon(self, delta: float) -> float:
        """The eps of one report at delta, `effective_eps` at 0: any two updates, for whoever sees it."""
        return composed_epsilon([(self.event, 1)], delta)

    def mean_error(self, clients: int) -> float:
        """An upper bound on the expected squared distance of the reports' mean from that of the clipped updates."""
        return self.worst_error / count("clients", clients)

    @property
    def bytes(self) -> int:
        """The bytes of a report as `perturb_vector` returns it, in fp32."""
        return 4 * self.dimension
