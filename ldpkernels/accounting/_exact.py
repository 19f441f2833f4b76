# SPDX-License-Identifier: Apache-2.0
"""Exact and privacy-loss-distribution composition, one law per group of equal events."""

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ldpkernels.accounting import arguments
from ldpkernels.accounting._binomial import bisect_upper, randomized_response_atoms, randomized_response_epsilon
from ldpkernels.accounting._lattice import Lattice, from_atoms
from ldpkernels.accounting.events import Event, GaussianEvent, SampledGaussianEvent, ShuffledEvent


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of Gaussians whose means lie mu standard deviations apart (Balle and Wang, 2018), rounded up.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    log_ndtr = arguments.require("scipy.special").log_ndtr

    def exceeds(epsilon: float) -> bool:
        first, second = float(log_ndtr(mu / 2 - epsilon / mu)), epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        # the difference of the two terms cancels: what the logarithms can be wrong by is added
        return not math.exp(first) * (-math.expm1(second - first) + 1e-12 * (1 + epsilon)) <= delta

    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return bisect_upper(exceeds, 0.0, high) if exceeds(0.0) else 0.0


def _cell_masses(ndtr: Any, edges: Any) -> Any:
    """The normal masses between the edges, each taken from the side on which the tail is small."""
    return np.where(edges[:-1] > 0, -np.diff(ndtr(-edges)), np.diff(ndtr(edges)))


def _gaussian_lattice(mu: float, h: float, outside: float) -> Lattice:
    ndtr = arguments.require("scipy.special").ndtr
    reach = math.sqrt(-2 * math.log(outside))
    low, high = math.floor((mu * mu / 2 - mu * reach) / h), math.ceil((mu * mu / 2 + mu * reach) / h)
    edges = h * np.arange(low, high + 1)
    # the cell's two masses, under both laws, decide how it splits between its ends
    p = _cell_masses(ndtr, (edges - mu * mu / 2) / mu)
    q = _cell_masses(ndtr, (edges + mu * mu / 2) / mu)
    share = np.clip(np.where(p > 0, (1 - np.exp(edges[:-1]) * q / np.maximum(p, 1e-300)) / -math.expm1(-h), 1.0), 0, 1)
    masses = np.zeros(len(edges))
    masses[:-1] += p * (1 - share)
    masses[1:] += p * share
    masses[0] += outside
    return Lattice(h, low, masses, outside)


def _group_lattice(event: Event, times: int, h: float, outside: float) -> Lattice:
    if isinstance(event, GaussianEvent):
        return _gaussian_lattice(math.sqrt(times) / event.noise_multiplier, h, outside)
    losses, masses, error = randomized_response_atoms(times, event.pure_epsilon, outside)
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


@lru_cache(maxsize=64)
def sampled_gaussian_epsilon(noise_multiplier: float, q: float, steps: int, delta: float) -> float:
    """The epsilon of DP-SGD by dp-accounting's pessimistic privacy loss distribution (add or remove one)."""
    dp = arguments.require("dp_accounting")
    accountant = arguments.require("dp_accounting.pld").PLDAccountant(value_discretization_interval=1e-4)
    step = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(noise_multiplier))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountant.compose(dp.SelfComposedDpEvent(step, steps))
    return float(accountant.get_epsilon(delta))


def composed_epsilon(terms: Sequence[tuple[Event, int]], delta: float) -> float:
    """The epsilon of all the releases at delta, exact up to upward rounding (an upper bound for a PureEvent)."""
    groups: dict[Event, int] = {}
    for event, times in terms:
        pure = event.pure_epsilon
        if pure == 0:
            continue
        groups[event] = groups.get(event, 0) + times
    if not groups:
        return 0.0
    events = list(groups)
    if all(isinstance(event, GaussianEvent) for event in events):
        mu = math.sqrt(sum(k / e.noise_multiplier**2 for e, k in groups.items() if isinstance(e, GaussianEvent)))
        return gaussian_epsilon(mu, delta)
    if any(isinstance(event, ShuffledEvent | SampledGaussianEvent) for event in events):
        if len(events) > 1:
            raise ValueError(f"method='exact' can't mix {events[0]!r} with other events: use method='rdp' or 'basic'")
        event = events[0]
        if isinstance(event, SampledGaussianEvent):
            return sampled_gaussian_epsilon(event.noise_multiplier, event.q, groups[event], delta)
        from ldpkernels.accounting.shuffle import shuffled_epsilon

        assert isinstance(event, ShuffledEvent)
        return shuffled_epsilon(event.eps, event.clients, groups[event], delta)
    pure_values = {event.pure_epsilon for event in events}
    if len(pure_values) == 1:
        return randomized_response_epsilon(sum(groups.values()), pure_values.pop(), delta)
    outside = delta * 1e-6 / len(events)
    # A grid of a hundredth of the narrowest group, but at most about four million points in all.
    h = min(_spread(event, times) for event, times in groups.items()) / 100
    h = max(h, sum(_reach(event, times, outside) for event, times in groups.items()) / (1 << 22))
    total: Lattice | None = None
    for event, times in groups.items():
        law = _group_lattice(event, times, h, outside)
        total = law if total is None else total.compose(law)
    assert total is not None
    return total.epsilon(delta)
