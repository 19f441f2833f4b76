# SPDX-License-Identifier: Apache-2.0
"""What a mechanism releases once, as accounting sees it, and whom its guarantee holds off.

A mechanism yields its event; accounting composes events and never looks at the mechanism. An event is a frozen value:
equal events are interchangeable, and an event survives a round trip through JSON (the ledger stores it so). Only events
of one view compose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol, runtime_checkable

from ldpkernels import arguments


@dataclass(frozen=True)
class Event:
    """The base of all events; not used by itself."""

    kind: ClassVar[str] = ""

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of one release at delta = 0; infinite where there is none."""
        return math.inf

    def to_dict(self) -> dict[str, object]:
        """Return the event as plain data, with its kind; `event_from_dict` reads it back."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class PureEvent(Event):
    """One release of any mechanism that is eps-LDP, of one weight or of a whole vector.

    >>> PureEvent(0.5).pure_epsilon
    0.5
    """

    kind: ClassVar[str] = "pure"
    eps: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", arguments.non_negative("eps", self.eps))

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of one release at delta = 0."""
        return self.eps


@dataclass(frozen=True)
class RandomizedResponseEvent(PureEvent):
    """One report with two outcomes whose probabilities stay within [1/(1+e^eps), e^eps/(1+e^eps)].

    Every two-point report is one; eps is the eps that the mechanism really executes. What holds for any PureEvent holds
    here, and the count-based bound of the shuffle model as well.
    """

    kind: ClassVar[str] = "randomized_response"


@dataclass(frozen=True)
class GaussianEvent(Event):
    """One release with Gaussian noise; noise_multiplier = standard deviation / L2 distance between neighbours.

    In the local view the neighbours are any two inputs: values clipped to norm C are 2C apart.
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", arguments.positive("noise_multiplier", self.noise_multiplier))


@dataclass(frozen=True)
class SampledGaussianEvent(Event):
    """One step of DP-SGD: Poisson sampling with probability q, then a Gaussian of that noise_multiplier."""

    kind: ClassVar[str] = "sampled_gaussian"
    noise_multiplier: float
    q: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", arguments.positive("noise_multiplier", self.noise_multiplier))
        object.__setattr__(self, "q", arguments.probability("q", self.q))


@dataclass(frozen=True)
class ConcentratedEvent(Event):
    """One sum by secure aggregation that is rho-zCDP: its Renyi divergence of any order is at most rho times it.

    The guarantee is about the sum: one client's update against zeros in its place.
    """

    kind: ClassVar[str] = "concentrated"
    rho: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", arguments.positive("rho", self.rho))


@dataclass(frozen=True)
class SkellamEvent(Event):
    """One sum by secure aggregation with Skellam noise, in units of its grid.

    variance is that of all honest clients' noise together, l2 and l1 bound what one client adds to the sum. Its Renyi
    divergence is by the bound of Agarwal, Kairouz and Liu (2021): docs/mechanisms/distributed.md.
    """

    kind: ClassVar[str] = "skellam"
    variance: float
    l2: float
    l1: float

    def __post_init__(self) -> None:
        for name in ("variance", "l2", "l1"):
            object.__setattr__(self, name, arguments.positive(name, getattr(self, name)))


@dataclass(frozen=True)
class MetricEvent(Event):
    """One alpha-CLDP release: the log-ratio of two inputs is at most alpha times their distance.

    diameter is the largest distance between two inputs in that metric; alpha * diameter is the epsilon in the worst
    case.

    >>> MetricEvent(0.5, "linf", 4.0).pure_epsilon
    2.0
    """

    kind: ClassVar[str] = "metric"
    alpha: float
    metric: str
    diameter: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", arguments.non_negative("alpha", self.alpha))
        arguments.choice("metric", self.metric, ("linf", "l1"))
        object.__setattr__(self, "diameter", arguments.non_negative("diameter", self.diameter))
        if math.isinf(self.alpha * self.diameter):
            raise ValueError(
                f"alpha = {self.alpha!r} times diameter = {self.diameter!r} is no finite number: lower one"
            )

    @property
    def pure_epsilon(self) -> float:
        """The epsilon in the worst case, alpha * diameter."""
        return self.alpha * self.diameter


@dataclass(frozen=True)
class ShuffledEvent(Event):
    """One position behind an ideal shuffler, to which so many clients send a report of the same local eps.

    reports says what is known of them: "randomized_response" (two outcomes, so the counts are compared themselves) or
    "pure" (any eps-LDP mechanism, so others hide a client as clones). The guarantee is central (replace-one), so it
    never composes with an event of the local view.
    """

    kind: ClassVar[str] = "shuffled"
    eps: float
    clients: int
    reports: str = RandomizedResponseEvent.kind

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", arguments.positive("eps", self.eps))
        object.__setattr__(self, "clients", arguments.count("clients", self.clients))
        arguments.choice("reports", self.reports, (RandomizedResponseEvent.kind, PureEvent.kind))

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of one release at delta = 0: shuffling doesn't lower it."""
        return self.eps


@runtime_checkable
class Mechanism(Protocol):
    """Anything with an `event`: every mechanism of the library."""

    @property
    def event(self) -> Event:
        """What one call releases about one element."""


def event_of(source: Event | Mechanism) -> Event:
    """Return the event itself, or the event that a mechanism yields."""
    event = source if isinstance(source, Event) else getattr(source, "event", None)
    if not isinstance(event, Event) or not event.kind:
        raise TypeError(
            f"{source!r} is neither an event nor a mechanism with an event: give for example PureEvent(1.0), or a"
            " mechanism whose .event is one"
        )
    return event


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
    """Read an event that `to_dict` wrote.

    >>> event_from_dict(GaussianEvent(2.0).to_dict())
    GaussianEvent(noise_multiplier=2.0)
    """
    fields = dict(data)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"event kind {kind!r} is unknown: known are {', '.join(KINDS)}")
    try:
        return KINDS[kind](**fields)
    except TypeError as error:
        raise ValueError(f"the fields {sorted(fields)} don't make a {kind} event: {error}") from error


LOCAL_ADVERSARY = "anyone who sees every report of the client, the server included, and can link them to the client"
LOCAL_NEIGHBOURS = "any two values of the client's whole input (its weights in every round)"


def view_of(event: Event) -> str:
    """Return "local", "shuffled", "sampled" or "aggregated"."""
    if isinstance(event, ConcentratedEvent | SkellamEvent):
        return "aggregated"
    if isinstance(event, ShuffledEvent):
        return "shuffled"
    return "sampled" if isinstance(event, SampledGaussianEvent) else "local"


def adversary_of(event: Event) -> tuple[str, str]:
    """Return the adversary and the neighbouring relation that an event's guarantee speaks of."""
    view = view_of(event)
    if view == "shuffled":
        return (
            "anyone who sees the shuffled reports, and knows the inputs of all the other clients",
            "the inputs of all clients, one client's replaced (replace-one)",
        )
    if view == "aggregated":
        return (
            "anyone who sees the sums that secure aggregation gives, and knows the inputs of all the other clients, but"
            " not the noise of the honest ones",
            "the updates of all clients, one client's replaced by zeros in every round",
        )
    if view == "sampled":
        return (
            "anyone who sees every noisy gradient or model, but not which examples were sampled",
            "training sets that differ by one example added or removed",
        )
    return LOCAL_ADVERSARY, LOCAL_NEIGHBOURS
