# SPDX-License-Identifier: Apache-2.0
"""The local view: what one client loses to those who see all of its reports.

Four ways to compose, from the plainest to the sharpest; each is an upper bound, so the smallest may be quoted.

- basic: the epsilons add up.
- advanced: sum of eps tanh(eps/2), plus sqrt(2 ln(1/delta) sum of eps^2) (Hoeffding on the privacy loss).
- rdp: Renyi divergences add up.
- exact: the law of the privacy loss itself. For randomized response nothing is lost; for another eps-LDP mechanism it
  is the best that eps alone allows (Kairouz, Oh and Viswanath, 2015), also where the later inputs depend on earlier
  reports.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

from ldpkernels.accounting import _exact, _renyi, arguments
from ldpkernels.accounting.events import (
    Event,
    GaussianEvent,
    Mechanism,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    event_of,
)
from ldpkernels.accounting.records import LOCAL_ADVERSARY, LOCAL_NEIGHBOURS, PrivacyResult

METHODS = ("basic", "advanced", "rdp", "exact")

Terms = Iterable[tuple[Event | Mechanism, int]]


def composed_epsilon(terms: Terms, delta: float, method: str = "exact") -> float:
    """Return the epsilon at delta of releases given as (event or mechanism, how often).

    >>> composed_epsilon([(PureEvent(0.5), 4)], 0.0, "basic")
    2.0
    """
    arguments.choice("method", method, METHODS)
    listed = [(event_of(source), arguments.count("times", times, 0)) for source, times in terms]
    listed = [(event, times) for event, times in listed if times]
    arguments.probability("delta", delta, zero=True, one=False)
    _check_views(listed)
    basic = _sum_up(listed)
    if method == "basic" or delta == 0:
        return basic
    if not listed:
        return 0.0
    if method == "advanced":
        if math.isinf(basic):
            raise ValueError("method = 'advanced' needs events with an epsilon at delta = 0: use 'rdp' or 'exact'")
        mean = math.fsum(times * e.pure_epsilon * math.tanh(e.pure_epsilon / 2) for e, times in listed)
        square = math.fsum(times * e.pure_epsilon**2 for e, times in listed)
        return min(basic, (mean + math.sqrt(2 * square * -math.log(delta))) * (1 + 1e-14))
    if method == "rdp":
        return min(basic, _renyi.composed_epsilon(listed, delta) * (1 + 1e-12))
    return min(basic, _exact.composed_epsilon(listed, delta))


def _sum_up(listed: list[tuple[Event, int]]) -> float:
    """The sum of times * epsilon, exact, then rounded up to a double."""
    if any(math.isinf(event.pure_epsilon) for event, _ in listed):
        return math.inf
    exact = sum((Fraction(event.pure_epsilon) * times for event, times in listed), Fraction(0))
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def _check_views(listed: list[tuple[Event, int]]) -> None:
    views = {_view(event) for event, _ in listed}
    if len(views) > 1:
        raise ValueError(
            f"the events belong to different views ({', '.join(sorted(views))}), whose adversaries and neighbours"
            " differ: account for each view by itself"
        )


def _view(event: Event) -> str:
    if isinstance(event, ShuffledEvent):
        return "shuffled"
    return "sampled" if isinstance(event, SampledGaussianEvent) else "local"


def adversary_of(event: Event) -> tuple[str, str]:
    """Return the adversary and the neighbouring relation that an event's guarantee speaks of."""
    view = _view(event)
    if view == "shuffled":
        return (
            "anyone who sees the shuffled reports, and knows the inputs of all the other clients",
            "the inputs of all clients, one client's replaced (replace-one)",
        )
    if view == "sampled":
        return (
            "anyone who sees every noisy gradient or model, but not which examples were sampled",
            "training sets that differ by one example added or removed",
        )
    return LOCAL_ADVERSARY, LOCAL_NEIGHBOURS


def _assumptions(event: Event, reports: int) -> tuple[str, ...]:
    fixed = (
        f"{reports:,} reports in all, and no other release",
        "the random bits are uniform, secret and never reused",
    )
    if isinstance(event, RandomizedResponseEvent):
        return (*fixed, f"each report is a randomized response of eps = {event.eps:.6g} with public ranges")
    if isinstance(event, PureEvent):
        return (*fixed, f"each report is {event.eps:.6g}-LDP")
    if isinstance(event, GaussianEvent):
        return (
            *fixed,
            f"Gaussian noise of {event.noise_multiplier:.6g} times the L2 distance of any two inputs, in exact"
            " arithmetic",
        )
    return (*fixed, f"each report is {event}")


def local_epsilon(
    source: Event | Mechanism, *, d: int = 1, rounds: int = 1, delta: float = 1e-5, method: str = "exact"
) -> PrivacyResult:
    """Return what a client loses that reports d weights in each of so many rounds.

    Args:
        source: The event of one weight's report, or a mechanism that yields it.
        d: Weights a round.
        rounds: Rounds.
        delta: The probability that the bound excludes; 0 leaves only the basic figure.
        method: One of `METHODS`.

    >>> local_epsilon(RandomizedResponseEvent(1.0), d=100, delta=1e-5).epsilon  # doctest: +ELLIPSIS
    79.8...
    """
    event = event_of(source)
    reports = arguments.count("d", d) * arguments.count("rounds", rounds)
    if isinstance(event, ShuffledEvent):
        raise ValueError(f"{event!r} is central, not local: use shuffle_epsilon")
    epsilon = composed_epsilon([(event, reports)], delta, method)
    adversary, neighbouring = adversary_of(event)
    words = {
        "basic": "basic composition",
        "advanced": "advanced composition",
        "rdp": "Renyi composition",
        "exact": "exact composition of the privacy loss, rounded up",
    }
    used = "basic" if delta == 0 else method
    return PrivacyResult(
        epsilon, 0.0 if used == "basic" else delta, adversary, neighbouring, _assumptions(event, reports), words[used]
    )


def local_table(
    source: Event | Mechanism, *, d: int = 1, rounds: int = 1, delta: float = 1e-5
) -> dict[str, PrivacyResult]:
    """Return the figures of all methods that apply, by method.

    >>> [f"{r.epsilon:,.0f}" for r in local_table(RandomizedResponseEvent(1.0), d=21840).values()]
    ['21,840', '10,802', '10,714', '10,648']
    """
    event = event_of(source)
    methods = METHODS if math.isfinite(event.pure_epsilon) else ("rdp", "exact")
    return {m: local_epsilon(event, d=d, rounds=rounds, delta=delta, method=m) for m in methods}
