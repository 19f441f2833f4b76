# SPDX-License-Identifier: Apache-2.0
"""What every law for a whole vector says of itself, whoever is trusted."""

from __future__ import annotations

from typing import Protocol

from ldpkernels.accounting.events import Event


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
