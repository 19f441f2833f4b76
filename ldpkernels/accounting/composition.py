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
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from ldpkernels.accounting import arguments, exact, renyi
from ldpkernels.accounting.events import Event, Mechanism, SampledGaussianEvent, event_of
from ldpkernels.accounting.gaussian import gaussian_epsilon
from ldpkernels.accounting.rounding import TooLarge
from ldpkernels.accounting.views import view_of

METHODS = ("basic", "advanced", "rdp", "exact")


class Composed(NamedTuple):
    """An epsilon, and the method that it comes from: where "exact" would be too large, the best of the others."""

    epsilon: float
    method: str


def composed_epsilon(terms: Iterable[tuple[Event | Mechanism, int]], delta: float, method: str = "exact") -> float:
    """Return the epsilon at delta of releases given as (event or mechanism, how often).

    >>> from ldpkernels.accounting import PureEvent
    >>> composed_epsilon([(PureEvent(0.5), 4)], 0.0, "basic")
    2.0
    """
    return composed(terms, delta, method).epsilon


def composed(terms: Iterable[tuple[Event | Mechanism, int]], delta: float, method: str) -> Composed:
    """Return what `composed_epsilon` does, and how it was found."""
    arguments.choice("method", method, METHODS)
    delta = arguments.excluded(delta, zero=True)
    groups: dict[Event, int] = {}
    for source, times in terms:
        event = event_of(source)
        groups[event] = groups.get(event, 0) + arguments.count("times", times, 0)
    groups = {event: times for event, times in groups.items() if times}
    _check_views(groups)
    groups = {event: times for event, times in groups.items() if event.pure_epsilon > 0}
    basic = _sum_up(groups)
    if method == "basic" or delta == 0 or not groups:
        return Composed(basic, "basic" if delta == 0 else method)
    if method == "advanced":
        if math.isinf(basic):
            raise ValueError("method = 'advanced' needs events with an epsilon at delta = 0: use 'rdp' or 'exact'")
        return Composed(min(basic, _advanced(groups, delta)), method)
    others = {"rdp": renyi.composed_epsilon(groups, delta) * (1 + 1e-12)}
    if method == "rdp":
        return Composed(min(basic, others["rdp"]), method)
    others |= {"basic": basic, "advanced": _advanced(groups, delta), "everyone": _everyone(groups, delta)}
    weaker = min(others, key=others.__getitem__)
    try:
        return Composed(min(others[weaker], exact.composed_epsilon(groups, delta, others[weaker])), method)
    except TooLarge:
        return Composed(others[weaker], weaker)


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
    events = [(event, times) for event, times in groups.items() if isinstance(event, SampledGaussianEvent)]
    if len(events) < len(groups):
        return math.inf
    return gaussian_epsilon(math.hypot(*(math.sqrt(times) / event.noise_multiplier for event, times in events)), delta)


def _check_views(groups: dict[Event, int]) -> None:
    views = {view_of(event) for event in groups}
    if len(views) > 1:
        raise ValueError(
            f"the events belong to different views ({', '.join(sorted(views))}), whose adversaries and neighbours"
            " differ: account for each view by itself"
        )
