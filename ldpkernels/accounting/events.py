# SPDX-License-Identifier: Apache-2.0
"""What a mechanism releases once, as accounting sees it: how much, to whom, between which neighbours, and how nearly.

A mechanism yields its event; accounting composes events and never looks at the mechanism. An event is a frozen value:
equal events are interchangeable, and an event survives a round trip through JSON (the ledger stores it so). Only events
of one scope compose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Protocol, runtime_checkable

from ldpkernels.accounting.neighbours import CENTRAL, LOCAL, SHUFFLED, SUMMED, Relation, Scope, Unit
from ldpkernels.common import arguments

# The slack of records from before there was one: 2^32 numbers from tables within 2^-74. No law's own is this number.
EARLIER = math.nextafter(2.0**-42, 1.0)


@dataclass(frozen=True)
class Event:
    """The base of all events; it is not used by itself.

    Args:
        slack: An upper bound on the total variation distance between what is executed and the law that the other fields
            describe, for any input. It covers cut ends of tables and their granularity. 0 means that the law itself is
            executed.
        scope: The view, the relation and the unit of the claim. None means the event's own scope. A `GaussianEvent` has
            none of its own.
    """

    kind: ClassVar[str] = ""
    positive: ClassVar[tuple[str, ...]] = ()  # fields that are above 0
    own: ClassVar[Scope | None] = None
    earlier: ClassVar[float] = 0.0  # the slack of a record that says none
    slack: float = field(default=0.0, kw_only=True, repr=False)
    scope: Scope | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        for name in self.positive:
            object.__setattr__(self, name, arguments.positive(name, getattr(self, name)))
        object.__setattr__(self, "slack", arguments.non_negative("slack", self.slack))
        if self.scope is None:
            object.__setattr__(self, "scope", self.own)
        elif not isinstance(self.scope, Scope):
            raise TypeError(f"scope = {self.scope!r} is not a Scope: give one, such as ldpkernels.accounting.LOCAL")

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of one release at delta = 0, by its `scope`; infinite where there is none."""
        return math.inf if self.slack else self._pure_epsilon

    @property
    def _pure_epsilon(self) -> float:
        return math.inf

    @property
    def ideal(self) -> Event:
        """The law that the event's numbers describe, without the slack. Composition computes with it."""
        return replace(self, slack=0.0, scope=None)

    def to_dict(self) -> dict[str, object]:
        """Return the event as plain data, with its kind. `event_from_dict` reads it back."""
        data = {one.name: getattr(self, one.name) for one in fields(self)}
        slack, scope = data.pop("slack"), data.pop("scope")
        if slack != self.earlier:
            data["slack"] = slack
        if scope != (self.own or LOCAL):
            data["scope"] = scope and scope.to_list()
        return {"kind": self.kind, **data}


@dataclass(frozen=True)
class PureEvent(Event):
    """One eps-LDP release: eps is between any two values of a weight, or of a whole vector, for whoever sees it.

    >>> PureEvent(0.5).pure_epsilon
    0.5
    """

    kind: ClassVar[str] = "pure"
    own: ClassVar[Scope | None] = LOCAL
    eps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", arguments.non_negative("eps", self.eps))

    @property
    def _pure_epsilon(self) -> float:
        return self.eps


@dataclass(frozen=True)
class RandomizedResponseEvent(PureEvent):
    """One report with two outcomes whose probabilities stay within [1/(1+e^eps), e^eps/(1+e^eps)].

    Every two-point report of one weight is such an event. eps is what the mechanism really executes, between any two
    values, for whoever sees the report. The sharper bound of the shuffle model, which counts outcomes, holds for it
    too.
    """

    kind: ClassVar[str] = "randomized_response"
    own: ClassVar[Scope | None] = LOCAL.per(Unit.WEIGHT)


@dataclass(frozen=True)
class GaussianEvent(Event):
    """One release with Gaussian noise; noise_multiplier = standard deviation / L2 distance between neighbours.

    `scope` says which neighbours. Two values clipped to norm C are at most 2C apart (replace-one, `LOCAL`), and each is
    at most C from no value at all (add/remove, `CENTRAL`).

    >>> print(GaussianEvent(2.0, scope=CENTRAL).scope)
    central view, add/remove of a client
    """

    kind: ClassVar[str] = "gaussian"
    positive: ClassVar[tuple[str, ...]] = ("noise_multiplier",)
    earlier: ClassVar[float] = EARLIER
    noise_multiplier: float


@dataclass(frozen=True)
class SampledGaussianEvent(Event):
    """One step of DP-SGD: Poisson sampling with probability q, then a Gaussian of that noise_multiplier.

    One example is added or removed, unless `scope` says otherwise.
    """

    kind: ClassVar[str] = "sampled_gaussian"
    positive: ClassVar[tuple[str, ...]] = ("noise_multiplier",)
    own: ClassVar[Scope | None] = CENTRAL.per(Unit.EXAMPLE)
    noise_multiplier: float
    q: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "q", arguments.probability("q", self.q))


@dataclass(frozen=True)
class ConcentratedEvent(Event):
    """One sum by secure aggregation that is rho-zCDP: its Renyi divergence of any order is at most rho times it.

    The guarantee compares one client's update with zeros in its place, for whoever sees the sum.
    """

    kind: ClassVar[str] = "concentrated"
    positive: ClassVar[tuple[str, ...]] = ("rho",)
    own: ClassVar[Scope | None] = SUMMED
    earlier: ClassVar[float] = EARLIER
    rho: float


@dataclass(frozen=True)
class SkellamEvent(Event):
    """One sum by secure aggregation with Skellam noise, in units of its grid: a client's update against zeros.

    `variance` is that of all honest clients' noise together. `l2` and `l1` bound what one client adds to the sum. The
    Renyi divergence uses the bound of Agarwal, Kairouz and Liu (2021): docs/mechanisms/distributed.md.
    """

    kind: ClassVar[str] = "skellam"
    positive: ClassVar[tuple[str, ...]] = ("variance", "l2", "l1")
    own: ClassVar[Scope | None] = SUMMED
    earlier: ClassVar[float] = EARLIER
    variance: float
    l2: float
    l1: float


@dataclass(frozen=True)
class MetricEvent(Event):
    """One alpha-CLDP release: the log-ratio of any two values is at most alpha times their distance.

    `diameter` is the largest distance between two values in that metric. So alpha * diameter is the epsilon in the
    worst case: between any two values, for whoever sees the release.

    >>> MetricEvent(0.5, "linf", 4.0).pure_epsilon
    2.0
    """

    kind: ClassVar[str] = "metric"
    own: ClassVar[Scope | None] = LOCAL
    alpha: float
    metric: str
    diameter: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alpha", arguments.non_negative("alpha", self.alpha))
        arguments.choice("metric", self.metric, ("linf", "l1"))
        object.__setattr__(self, "diameter", arguments.non_negative("diameter", self.diameter))
        if math.isinf(self.alpha * self.diameter):
            raise ValueError(
                f"alpha = {self.alpha!r} times diameter = {self.diameter!r} is not a finite number: lower one of them"
            )

    @property
    def _pure_epsilon(self) -> float:
        return self.alpha * self.diameter


@dataclass(frozen=True)
class ShuffledEvent(Event):
    """One position behind an ideal shuffler, to which so many clients send a report of the same local eps.

    `reports` says what is known about them. "randomized_response" means two outcomes, whose counts are compared
    exactly. "pure" means any eps-LDP mechanism, whose reports hide a client as clones. One client is replaced, for
    whoever sees what was shuffled.
    """

    kind: ClassVar[str] = "shuffled"
    positive: ClassVar[tuple[str, ...]] = ("eps",)
    own: ClassVar[Scope | None] = SHUFFLED
    eps: float
    clients: int
    reports: str = RandomizedResponseEvent.kind

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "clients", arguments.count("clients", self.clients))
        arguments.choice("reports", self.reports, (RandomizedResponseEvent.kind, PureEvent.kind))

    @property
    def _pure_epsilon(self) -> float:
        return self.eps  # shuffling doesn't lower it


@runtime_checkable
class Mechanism(Protocol):
    """Anything with an `event`: every mechanism of the library."""

    @property
    def event(self) -> Event:
        """What one call releases about one element."""


def event_of(source: Event | Mechanism) -> Event:
    """Return the event itself, or the event of a mechanism."""
    event = source if isinstance(source, Event) else getattr(source, "event", None)
    if not isinstance(event, Event) or not event.kind:
        raise TypeError(
            f"{source!r} is neither an event nor a mechanism with an event: give for example PureEvent(1.0), or a"
            " mechanism whose .event is one"
        )
    return event


def scope_of(events: Iterable[Event]) -> Scope | None:
    """Return the scope of all these releases together, None where none is said; a mixture is refused."""
    scopes: dict[Scope | None, Event] = {}
    for event in events:
        scopes.setdefault(event.scope and event.scope.composed, event)
    if len(scopes) > 1:
        told = "; ".join(f"{event!r} is {event.scope or 'of no scope'}" for event in scopes.values())
        raise ValueError(
            f"the events belong to different views or neighbours: {told}. Account for each by itself, add the missing "
            "scope, or convert both to the same neighbours (to_replace_one)"
        )
    return next(iter(scopes), None)


def to_replace_one(source: Event | Mechanism) -> Event:
    """Return the same release between any two values, for an event against zeros or against nothing.

    By the triangle inequality two values are at most twice as far apart as each is from nothing. rho-zCDP and eps-DP
    know no distance; there a group of two costs 4 rho (Bun and Steinke, 2016) or 2 eps. Who sees what stays as the
    `scope` says, and the slack stays too, because it is that of each input by itself.

    >>> central = GaussianEvent(2.0, scope=CENTRAL)
    >>> to_replace_one(central), print(to_replace_one(central).scope)
    central view, replace-one of a client
    (GaussianEvent(noise_multiplier=1.0), None)
    """
    event = event_of(source)
    if event.scope is None:
        raise ValueError(f"{event!r} has no scope, so it cannot be converted: give it one")
    if event.scope.relation is Relation.REPLACE_ONE:
        return event
    scope = replace(event.scope, relation=Relation.REPLACE_ONE)
    if isinstance(event, GaussianEvent):
        return replace(event, noise_multiplier=event.noise_multiplier / 2, scope=scope)
    if isinstance(event, ConcentratedEvent):
        return replace(event, rho=4 * event.rho, scope=scope)
    if isinstance(event, SkellamEvent):
        return replace(event, l2=2 * event.l2, l1=2 * event.l1, scope=scope)
    if isinstance(event, PureEvent):
        return replace(event, eps=2 * event.eps, scope=scope)
    raise ValueError(
        f"{event!r} cannot be converted to an event for any two values: if it is (eps, delta), they have 2 eps at (1 + "
        "e^eps) delta"
    )


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        PureEvent,
        RandomizedResponseEvent,
        GaussianEvent,
        SampledGaussianEvent,
        ConcentratedEvent,
        SkellamEvent,
        MetricEvent,
        ShuffledEvent,
    )
}


def event_from_dict(data: Mapping[str, object]) -> Event:
    """Read an event that `to_dict` wrote, in this version or in those before events had a slack and a scope.

    A Gaussian of those versions is read as that of `VectorGaussian`: local, between any two updates.

    >>> event_from_dict(GaussianEvent(2.0).to_dict())
    GaussianEvent(noise_multiplier=2.0)
    """
    values = dict(data)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"event kind {kind!r} is unknown: use one of {', '.join(KINDS)}")
    cls = KINDS[kind]
    make: Callable[..., Event] = cls
    scope = values.pop("scope", (cls.own or LOCAL).to_list())
    try:
        return make(**{"slack": cls.earlier, **values}, scope=scope and Scope.of(scope))
    except TypeError as error:
        raise ValueError(f"the fields {sorted(values)} don't make a {kind} event: {error}") from error
