# SPDX-License-Identifier: Apache-2.0
"""Exact and privacy-loss-distribution composition, one law per group of equal events."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ldpkernels.accounting import randomized_response
from ldpkernels.accounting.amplification import Method, shuffled_epsilon
from ldpkernels.accounting.events import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    SkellamEvent,
)
from ldpkernels.accounting.gaussian import gaussian_epsilon, gaussian_losses, sampled_gaussian_epsilon
from ldpkernels.accounting.loss_distribution import LossDistribution, from_atoms
from ldpkernels.accounting.rounding import TooLarge

# A grid of a hundredth of the narrowest group, but at most about four million points in all.
MOST_POINTS, MOST_GROUPS = 1 << 22, 64


def _losses(event: Event, times: int, h: float, outside: float) -> LossDistribution:
    if isinstance(event, GaussianEvent):
        return gaussian_losses(math.sqrt(times) / event.noise_multiplier, h, outside)
    losses, masses, error = randomized_response.atoms(times, event.pure_epsilon, outside)
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


def composed_epsilon(groups: Mapping[Event, int], delta: float, weaker: float) -> float:
    """The epsilon of all the releases at delta, exact up to upward rounding (an upper bound for a PureEvent).

    `weaker` is any other bound of it, which says how large the loss can be. Raises `TooLarge` where its law would be.
    """
    events = list(groups)
    if all(isinstance(event, GaussianEvent) for event in events):
        parts = [math.sqrt(k) / e.noise_multiplier for e, k in groups.items() if isinstance(e, GaussianEvent)]
        return gaussian_epsilon(math.hypot(*parts), delta)
    if any(isinstance(event, ConcentratedEvent | SkellamEvent) for event in events):
        raise TooLarge("a claim about Renyi divergences, which has no law of the loss")
    if any(isinstance(event, ShuffledEvent | SampledGaussianEvent) for event in events):
        event = events[0]
        if len(events) > 1:
            raise ValueError(f"method='exact' can't mix {event!r} with other events: use method='rdp' or 'basic'")
        if isinstance(event, SampledGaussianEvent):
            return sampled_gaussian_epsilon(event.noise_multiplier, event.q, groups[event], delta, weaker)
        assert isinstance(event, ShuffledEvent)
        method: Method = "exact" if event.reports == RandomizedResponseEvent.kind else "stronger_clones"
        return shuffled_epsilon(event.eps, event.clients, groups[event], delta, method)
    pure_values = {event.pure_epsilon for event in events}
    if len(pure_values) == 1:
        return randomized_response.composed_epsilon(sum(groups.values()), pure_values.pop(), delta)
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
