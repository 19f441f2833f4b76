# SPDX-License-Identifier: Apache-2.0
"""Composition: the epsilon of many releases together.

Four ways, from the plainest to the sharpest; each is an upper bound, so the smallest may be quoted.

- basic: the epsilons add up.
- advanced: sum of eps tanh(eps/2), plus sqrt(2 ln(1/delta) sum of eps^2) (Hoeffding on the privacy loss).
- rdp: Renyi divergences add up.
- exact: the law of the privacy loss itself. For randomized response nothing is lost; for another eps-LDP mechanism it
  is the best that eps alone allows (Kairouz, Oh and Viswanath, 2015), also where the later inputs depend on earlier
  reports. Where the law would be too large to compute (more than some 10^10 reports), the best of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ldpkernels.accounting.events import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    Mechanism,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    SkellamEvent,
    event_of,
    scope_of,
)
from ldpkernels.accounting.gaussian import gaussian_epsilon, gaussian_losses, renyi_epsilon, sampled_gaussians_epsilon
from ldpkernels.accounting.losses import (
    LossDistribution,
    TooLarge,
    binomial_support,
    from_atoms,
    log_binomial,
    root_upper,
)
from ldpkernels.accounting.shuffle import Method, shuffled_epsilon
from ldpkernels.common import arguments
from ldpkernels.common.arrays import Floats

METHODS = ("basic", "advanced", "rdp", "exact")


class Composed(NamedTuple):
    """An epsilon, its delta, and the method used: if "exact" would be too large, the best of the others."""

    epsilon: float
    method: str
    delta: float


def composed_epsilon(terms: Iterable[tuple[Event | Mechanism, int]], delta: float, method: str = "exact") -> float:
    """Return the epsilon at delta of releases given as (event or mechanism, how often).

    The `scope` of the events says who is held off, and which neighbours are compared (replace-one, zero-out or
    add/remove). All events must have the same scope. Weights and vectors may be mixed, as both are parts of a client's
    input.

    >>> from ldpkernels.accounting import PureEvent
    >>> composed_epsilon([(PureEvent(0.5), 4)], 0.0, "basic")
    2.0
    """
    return composed(terms, delta, method).epsilon


def composed(terms: Iterable[tuple[Event | Mechanism, int]], delta: float, method: str) -> Composed:
    """Return what `composed_epsilon` does, and how it was found.

    What is executed is within the sum t of the events' slacks of the composed laws, since distances add up (replace one
    release after the other). P, Q executed and P', Q' laws that are (eps, delta')-DP, for any set S:

        P(S) <= P'(S) + t <= e^eps Q'(S) + delta' + t <= e^eps Q(S) + delta' + (1 + e^eps) t.

    So (1 + e^eps) t is a part of delta: what is set aside for it grows until it is enough. Every figure of the library
    that has an event is this function's.

    >>> from ldpkernels.accounting import PureEvent
    >>> [composed([(PureEvent(1.0, slack=slack), 1)], 1e-5, "basic").epsilon for slack in (0.0, 1e-20, 1e-5)]
    [1.0, 1.0, inf]
    """
    arguments.choice("method", method, METHODS)
    delta = arguments.excluded(delta, zero=True)
    given = [(event_of(source), arguments.count("times", times, 0)) for source, times in terms]
    given = [(event, times) for event, times in given if times]
    scope_of(event for event, _ in given)  # a mixture is refused
    slack = math.fsum(event.slack * times for event, times in given) * (1 + 1e-12)
    laws: dict[Event, int] = {}
    for event, times in given:
        if event.ideal.pure_epsilon > 0:
            laws[event.ideal] = laws.get(event.ideal, 0) + times
    if not slack:
        return _of_laws(laws, delta, method)
    spent = 1e-6 * delta
    for _ in range(8):
        if not spent < delta:
            break
        found = _of_laws(laws, delta - spent, method)
        needed = (1 + math.exp(min(found.epsilon, 700.0))) * slack
        if needed <= spent:
            return found._replace(delta=delta)
        spent = min(1.5 * needed, max(needed, (needed + delta) / 2))
    return Composed(math.inf, method, delta)


def _of_laws(groups: dict[Event, int], delta: float, method: str) -> Composed:
    """The releases, were their laws executed."""
    basic = _sum_up(groups)
    if method == "basic" or delta == 0 or not groups:
        return Composed(basic, "basic", 0.0) if delta == 0 or method == "basic" else Composed(basic, method, delta)
    if method == "advanced":
        if math.isinf(basic):
            raise ValueError("method = 'advanced' needs events with an epsilon at delta = 0: use 'rdp' or 'exact'")
        return Composed(min(basic, _advanced(groups, delta)), method, delta)
    parts = [math.sqrt(times) / e.noise_multiplier for e, times in groups.items() if isinstance(e, GaussianEvent)]
    if method == "exact" and len(parts) == len(groups):  # Gaussians compose to one, of which nothing is lost
        return Composed(gaussian_epsilon(math.hypot(*parts), delta), method, delta)
    others = {"rdp": renyi_epsilon(groups, delta) * (1 + 1e-12)}
    if method == "rdp":
        return Composed(min(basic, others["rdp"]), method, delta)
    others |= {"basic": basic, "advanced": _advanced(groups, delta), "everyone": _everyone(groups, delta)}
    weaker = min(others, key=others.__getitem__)
    try:
        return Composed(min(others[weaker], _exact_epsilon(groups, delta)), method, delta)
    except TooLarge:
        return Composed(others[weaker], weaker, 0.0 if weaker == "basic" else delta)


def _sum_up(groups: dict[Event, int]) -> float:
    """The sum of times * epsilon, exact, then rounded up to a double."""
    if any(math.isinf(event.pure_epsilon) for event in groups):
        return math.inf
    total = sum((Fraction(event.pure_epsilon) * times for event, times in groups.items()), Fraction(0))
    try:
        nearest = float(total)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= total else math.nextafter(nearest, math.inf)


def _advanced(groups: dict[Event, int], delta: float) -> float:
    if any(math.isinf(event.pure_epsilon) for event in groups):
        return math.inf
    mean = sum(times * (e.pure_epsilon * math.tanh(e.pure_epsilon / 2)) for e, times in groups.items())
    length = math.hypot(*(math.sqrt(times) * e.pure_epsilon for e, times in groups.items()))
    return (mean + length * math.sqrt(-2 * math.log(delta))) * (1 + 1e-12)


def _everyone(groups: dict[Event, int], delta: float) -> float:
    """DP-SGD as if every step took everyone: no less than what a sample loses."""
    runs = _runs(groups)
    return (
        gaussian_epsilon(math.hypot(*(math.sqrt(steps) / sigma for sigma, _, steps in runs)), delta)
        if runs
        else math.inf
    )


def _runs(groups: Mapping[Event, int]) -> tuple[tuple[float, float, int], ...]:
    """The noise multiplier, rate and steps of each, where all are Gaussians, sampled or of everyone."""
    gaussians = [event for event in groups if isinstance(event, GaussianEvent | SampledGaussianEvent)]
    if len(gaussians) < len(groups):
        return ()
    return tuple((event.noise_multiplier, getattr(event, "q", 1.0), groups[event]) for event in gaussians)


# Beyond this e^-eps is not a number any more that a sum of probabilities could notice.
LARGEST_EPS = 700.0


def response_atoms(k: int, eps: float, outside: float) -> tuple[Floats, Floats, float]:
    """Return the losses and probabilities of k composed responses in a window, and a relative error bound."""
    if eps > LARGEST_EPS:
        raise TooLarge(f"eps = {eps} is above {LARGEST_EPS}")
    log_p, log_q = -math.log1p(math.exp(-eps)), -eps - math.log1p(math.exp(-eps))
    x = binomial_support(k, math.exp(log_p), outside)
    logs, error = log_binomial(k, log_p, log_q, x)
    return eps * (2 * x - k), np.exp(logs), math.expm1(error)


def responses_epsilon(k: int, eps: float, delta: float) -> float:
    """Return the epsilon of k composed eps-randomized responses at delta; 0 < delta < 1."""
    outside = delta * 1e-9
    losses, masses, error = response_atoms(k, eps, outside)

    def exceeds(epsilon: float) -> bool:
        first = int(np.searchsorted(losses, epsilon, side="right"))
        total = float(np.sum(masses[first:] * -np.expm1(epsilon - losses[first:])))
        return not total * (1 + error) + outside <= delta

    if not exceeds(0.0):
        return 0.0
    least = (delta - outside) / (1 + error)
    return root_upper(exceeds, k * eps, float(losses[0]), 2 * eps, masses, least)


# A grid of a hundredth of the narrowest group, but at most about four million points in all.
MOST_POINTS, MOST_GROUPS = 1 << 22, 64


def _losses(event: Event, times: int, h: float, outside: float) -> LossDistribution:
    if isinstance(event, GaussianEvent):
        return gaussian_losses(math.sqrt(times) / event.noise_multiplier, h, outside)
    losses, masses, error = response_atoms(times, event.pure_epsilon, outside)
    return from_atoms(losses, masses * (1 + error), h, 2 * outside)


def _spread(event: Event, times: int) -> float:
    if isinstance(event, GaussianEvent):
        return math.sqrt(times) / event.noise_multiplier
    return math.sqrt(times) * min(event.pure_epsilon, 2 * event.pure_epsilon * math.exp(-event.pure_epsilon / 2))


def _reach(event: Event, times: int, outside: float) -> float:
    if isinstance(event, GaussianEvent):
        mu = math.sqrt(times) / event.noise_multiplier
        return mu * mu + 2 * mu * math.sqrt(-2 * math.log(outside))
    return 2 * min(times, math.sqrt(times * -math.log(outside) / 2)) * event.pure_epsilon


def _exact_epsilon(groups: Mapping[Event, int], delta: float) -> float:
    """The epsilon of all the releases at delta, exact up to upward rounding (an upper bound for a PureEvent).

    Raises `TooLarge` where the law of the loss would be.
    """
    events = list(groups)
    if any(isinstance(event, ConcentratedEvent | SkellamEvent) for event in events):
        raise TooLarge("a bound on Renyi divergences, which gives no distribution of the loss")
    if any(isinstance(event, ShuffledEvent | SampledGaussianEvent) for event in events):
        if runs := _runs(groups):
            return sampled_gaussians_epsilon(runs, delta)
        event = events[0]
        if len(events) > 1:
            raise ValueError(f"method='exact' can't mix {event!r} with other events: use method='rdp' or 'basic'")
        assert isinstance(event, ShuffledEvent)
        method: Method = "exact" if event.reports == RandomizedResponseEvent.kind else "stronger_clones"
        return shuffled_epsilon(event.eps, event.clients, groups[event], delta, method)
    pure_values = {event.pure_epsilon for event in events}
    if len(pure_values) == 1:
        return responses_epsilon(sum(groups.values()), pure_values.pop(), delta)
    if len(events) > MOST_GROUPS:
        raise TooLarge(f"{len(events)} different events, above {MOST_GROUPS}")
    outside = delta * 1e-6 / len(events)
    h = min(_spread(event, times) for event, times in groups.items()) / 100
    h = max(h, sum(_reach(event, times, outside) for event, times in groups.items()) / MOST_POINTS)
    if not 0 < h < math.inf:
        raise TooLarge(f"a grid of {h} for losses of so different sizes")
    total: LossDistribution | None = None
    for event, times in groups.items():
        law = _losses(event, times, h, outside)
        total = law if total is None else total.compose(law)
    assert total is not None
    return total.epsilon(delta)
