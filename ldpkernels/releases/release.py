# SPDX-License-Identifier: Apache-2.0
"""What a client releases in a round, whichever framework asks it; and the release of every weight on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import ldpkernels
from ldpkernels.accounting import Event
from ldpkernels.calls.reports import Aggregate
from ldpkernels.common.arrays import Array
from ldpkernels.common.keys import Generator
from ldpkernels.inputs.containers import Numbers, collect
from ldpkernels.inputs.modules import Buffers
from ldpkernels.laws.registry import MechanismName, mechanism_named

Arrays = dict[str, Array]
Ranges = tuple[Numbers, Numbers]
Terms = dict[str, "float | str"]


@dataclass(frozen=True)
class Asked:
    """What a round asks of a client. All of it is public, and client and server know the same."""

    ranges: Ranges = (0.0, 0.0)
    run: int = 0
    round: int = 0
    client: int = 0  # its node's number
    invited: int = 0  # clients of a secure sum of reports
    weights: int = 0  # of such a report

    @property
    def norm(self) -> float:
        """The norm of the round, where it follows the clients' median: it travels as the one radius of all arrays."""
        radius = self.ranges[1]
        radii = set(radius.values()) if isinstance(radius, Mapping) else {radius}
        if len(radii) != 1:
            raise ValueError(f"a round has one norm, and this one has {len(radii)}")
        return float(radii.pop())  # type: ignore[arg-type]


class Total(Protocol):
    """The sum of a round's reports. It counts what it could not take, and says why."""

    skipped: int
    reasons: dict[str, int]

    @property
    def clients(self) -> int:
        """How many reports were added."""

    def add(self, *reports: bytes) -> None:
        """Add reports; what is none of this round's is skipped."""

    def mean(self) -> Arrays:
        """The clients' mean, by name."""


class Release:
    """A mechanism with its settings: the client and the server each have one, and they must be equal."""

    ranged: ClassVar[bool] = False  # whether a round has C and R
    first_norm: float | None = None  # of a norm that follows the clients' median
    against: ClassVar[str] = "whoever sees the client's reports"  # whom the event's guarantee holds off

    @property
    def terms(self) -> Terms:
        """The settings that client and server compare."""
        raise NotImplementedError

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """What one report of arrays of these sizes costs: an event, and how many of them; refuses other arrays."""
        raise NotImplementedError


class Reported(Release):
    """A release whose reports a server sees one by one."""

    def report(self, update: Arrays, asked: Asked, generator: Generator) -> bytes:
        """The report of one client."""
        raise NotImplementedError

    def total(self, like: Arrays, asked: Asked) -> Total:
        """An empty sum for reports of arrays like these."""
        raise NotImplementedError

    def labelled(self, report: bytes, client: int) -> bytes:
        """A report as `Total.add` takes it, of the client from whom it came."""
        return report


@dataclass(frozen=True)
class EachWeight(Reported):
    """Every weight under eps, in its range: a bit or a byte each (`ldpkernels.report`)."""

    ranged = True
    eps: float
    mechanism: MechanismName

    @property
    def terms(self) -> Terms:
        """The settings that client and server compare."""
        return {"eps": self.eps, "mechanism": self.mechanism}

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """An event for one weight's report, and the number of weights."""
        return mechanism_named(self.mechanism, self.eps).event, sum(sizes)

    def report(self, update: Arrays, asked: Asked, generator: Generator) -> bytes:
        """The report of one client."""
        return self.reported(update, asked.ranges, generator).to_bytes()

    def reported(self, update: Arrays, ranges: Ranges, generator: Generator) -> ldpkernels.Report:
        """The report of one client, before it is bytes."""
        c, r = ranges
        return ldpkernels.report(
            update, c, r, self.eps, mechanism=self.mechanism, generator=generator, buffers="perturb"
        )

    def total(self, like: Arrays, asked: Asked) -> Aggregate[Arrays]:
        """Counters of this round's model, ranges and eps."""
        return Aggregate(self.expected(like, asked.ranges), on_bad="skip")

    def expected(self, like: Arrays, ranges: Ranges) -> ldpkernels.Expected[Arrays]:
        """What a server takes from a client: names, shapes, ranges and settings of a report."""
        c, r = ranges
        # `leaving` has decided about statistics already
        found = ldpkernels.expected(dict(like), c, r, self.eps, mechanism=self.mechanism, buffers="perturb")  # type: ignore[call-overload]
        return cast("ldpkernels.Expected[Arrays]", found)


def leaving(arrays: Mapping[str, Array], buffers: Buffers | None) -> Arrays:
    """The arrays that are reported: all, but for statistics that stay where they are with buffers="keep".

    Arrays of integers are refused by name: noise that is rounded to them is none.

    >>> import numpy as np
    >>> list(leaving({"w": np.zeros(2), "bn.running_mean": np.zeros(2)}, "keep"))
    ['w']
    """
    tensors, _ = collect(dict(arrays), buffers)
    for name, array in zip(tensors.names, tensors.values, strict=True):
        if array.dtype.kind != "f":
            raise ValueError(
                f"array {name!r} has dtype {array.dtype}, and only floating-point numbers are perturbed: leave it "
                "out of what is sent, or pass buffers='keep' if it counts batches"
            )
    return dict(zip(tensors.names, tensors.values, strict=True))
