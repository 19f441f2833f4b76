# SPDX-License-Identifier: Apache-2.0
"""What leaves by a secure sum and by nothing else: updates under shares of noise, reports of a bit or byte a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ldpkernels.accounting import Event, PureEvent, RandomizedResponseEvent, ShuffledEvent
from ldpkernels.common.arrays import Array
from ldpkernels.common.keys import Generator, Key
from ldpkernels.inputs.containers import Weights
from ldpkernels.laws.distributed import Shares
from ldpkernels.releases.packing import BITS, Packing, aggregate_of
from ldpkernels.releases.release import Arrays, Asked, EachWeight, Release
from ldpkernels.releases.release import Terms as Compared
from ldpkernels.releases.vectors import OneNorm, checked_dimension, followed, parts_of
from ldpkernels.updates import decode, encode, widened
from ldpkernels.updates.rotation import rotation_of

if TYPE_CHECKING:
    from ldpkernels.secure_sums import Terms

_AS_TOLD = "whoever sees the sums of a server that follows the protocol"
_SIGNED = "whoever sees the sums, the server included: its clients sign"


@dataclass(frozen=True)
class Summed(Release):
    """A client's integers for a secure sum (docs/secure_sums.md).

    Args:
        threshold: The fewest clients whose sum is opened.
        colluders: How many of them may be in league with the server or with whoever reads the model, which counts
            itself if it is a client.
        roster: The Ed25519 public keys of those who may take part, by number. Without it, the event is right against
            a server that follows the protocol, and no other.
    """

    threshold: int
    colluders: int = 1
    roster: Mapping[int, bytes] | None = None

    @property
    def against(self) -> str:  # type: ignore[override]
        """Whom the event's guarantee holds off."""
        return _AS_TOLD if self.roster is None else _SIGNED

    @property
    def terms(self) -> Compared:
        """What both sides compare."""
        return {"threshold": self.threshold, "colluders": self.colluders}

    def alone(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """What one upload is worth against a server that invents all other clients: an event, and how many of them."""
        raise NotImplementedError

    def told(self, like: Arrays, clients: int) -> dict[str, int]:
        """What a client is told of a round before it has the model."""
        return {}

    def sum_terms(self, asked: Asked) -> Terms:
        """The terms of a round's secure sum."""
        raise NotImplementedError

    def integers(self, update: Arrays, asked: Asked, generator: Generator) -> Array:
        """A client's integers."""
        raise NotImplementedError

    def mean(self, total: Array, like: Arrays, clients: int, asked: Asked) -> Arrays:
        """The mean of so many clients; a ValueError where honest clients have no such sum."""
        raise NotImplementedError


@dataclass(frozen=True)
class SharesOfNoise(OneNorm, Summed):
    """Updates as integers under a law's noise.

    Args:
        law: `DistributedGaussian` or `DistributedSkellam`: its event is what a round costs a client.
        adaptive: Whether the norm follows the clients' median. The law is of one number more than an update has.
        threshold, colluders, roster: As for `Summed`. `threshold` less `colluders` leaves a sum the law's noise.

    >>> import ldpkernels
    >>> law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=10, clients=4, invited=6)
    >>> SharesOfNoise(5, law=law).sum_terms(Asked(run=1, round=1)).honest
    4
    """

    law: Shares = field(kw_only=True)
    adaptive: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.sum_terms(Asked())  # it refuses what leaves too little noise in a sum

    @property
    def terms(self) -> Compared:
        """What both sides compare."""
        return {"law": repr(self.law), **({"adaptive": True} if self.adaptive else {}), **super().terms}

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """One event for a round's sum."""
        checked_dimension([*sizes, int(self.adaptive)], self.law.dimension)
        return self.law.event, 1

    def alone(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """One share of the noise."""
        return replace(self.law, clients=1).event, 1

    def rotation(self, asked: Asked) -> Key:
        """The round's public rotation, which everyone makes for itself."""
        return rotation_of(f"run {asked.run}, round {asked.round}")

    def sum_terms(self, asked: Asked) -> Terms:
        """The terms of a round's secure sum."""
        return _terms().of(
            self.law, self.rotation(asked), round=_round(asked),
            threshold=self.threshold, colluders=self.colluders, roster=self.roster,
        )  # fmt: skip

    def integers(self, update: Arrays, asked: Asked, generator: Generator) -> Array:
        """A client's integers."""
        given: Weights = dict(update)
        if self.adaptive:
            given = widened(dict(update), asked.norm, self.law.norm, buffers="perturb")
        return encode(given, self.law, self.rotation(asked), generator=generator, buffers="perturb")

    def mean(self, total: Array, like: Arrays, clients: int, asked: Asked) -> Arrays:
        """The clients' mean, in the shapes and formats of these arrays."""
        numbers = decode(total, self.law, self.rotation(asked), clients=clients).astype(float)
        return followed(numbers, like, asked.norm, self.law.norm) if self.adaptive else parts_of(numbers, like)


@dataclass(frozen=True)
class SummedReports(Summed):
    """Reports of every weight on its own, of which the server learns how many clients sent what.

    That is what a shuffler of each weight's reports gives, so a round costs as many `ShuffledEvent`s as there are
    weights, among `threshold` less `colluders` clients.

    >>> reports = SummedReports(51, each=EachWeight(1.0, "two-point"))
    >>> reports.event([10])[0].clients
    50
    """

    ranged = True
    each: EachWeight = field(kw_only=True)

    def __post_init__(self) -> None:
        self.sum_terms(Asked(invited=max(self.threshold, 2), weights=1))  # it refuses what no sum has

    @property
    def eps(self) -> float:
        """Of each weight's report."""
        return self.each.eps

    @property
    def terms(self) -> Compared:
        """What both sides compare."""
        return {**self.each.terms, **super().terms}

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """An event for one weight's sum, and the number of weights."""
        event, weights = self.each.event(sizes)
        two = isinstance(event, RandomizedResponseEvent)
        kind = RandomizedResponseEvent.kind if two else PureEvent.kind
        return ShuffledEvent(event.pure_epsilon, self.threshold - self.colluders, kind), weights

    def alone(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """The report itself."""
        return self.each.event(sizes)

    def told(self, like: Arrays, clients: int) -> dict[str, int]:
        """How many weights and clients there are: it says how weights are packed, and who is not there hides nobody."""
        return {"invited": clients, "weights": sum(array.size for array in like.values())}

    def sum_terms(self, asked: Asked) -> Terms:
        """The terms of a round's secure sum."""
        packing = Packing.of(self.each, asked.invited)
        return _terms()(
            round=_round(asked), length=packing.length(asked.weights), bits=BITS, threshold=self.threshold,
            invited=asked.invited, colluders=self.colluders, roster=self.roster,
            purpose=repr((self.each, packing, asked.weights)).encode(),
        )  # fmt: skip

    def integers(self, update: Arrays, asked: Asked, generator: Generator) -> Array:
        """A client's integers."""
        checked_dimension([array.size for array in update.values()], asked.weights)
        return Packing.of(self.each, asked.invited).packed(self.each.reported(update, asked.ranges, generator))

    def mean(self, total: Array, like: Arrays, clients: int, asked: Asked) -> Arrays:
        """The mean that reports in the clear would have, bit for bit."""
        counts = Packing.of(self.each, asked.invited).counts(total, clients, asked.weights)
        return aggregate_of(self.each.expected(like, asked.ranges), counts, clients).mean()


def _terms() -> type[Terms]:
    """Imported late: only who sends by a secure sum needs the package cryptography."""
    from ldpkernels.secure_sums import Terms

    return Terms


def _round(asked: Asked) -> bytes:
    return f"run {asked.run}, round {asked.round}".encode()
