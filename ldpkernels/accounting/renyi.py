# SPDX-License-Identifier: Apache-2.0
"""Renyi divergences of the events, and the conversion to (epsilon, delta)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ldpkernels.accounting.events import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    SampledGaussianEvent,
    SkellamEvent,
)
from ldpkernels.accounting.gaussian import sampled_gaussian_rdp

# Orders close to 1 decide for thousands of composed responses, large ones for a few.
ORDERS = tuple(1 + 10 ** (step / 40) for step in range(-240, 121))
# dp-accounting integrates fractional orders numerically; its own recommended range of orders is enough for DP-SGD.
SAMPLED_ORDERS = tuple([1 + x / 10 for x in range(1, 100)] + list(range(11, 65)) + [128.0, 256.0, 512.0])


def pure_rdp(order: float, eps: float) -> float:
    """The Renyi divergence of one eps-randomized response: by Kairouz, Oh and Viswanath the worst of all eps-LDP.

    >>> pure_rdp(1e6, 0.5) < 0.5 and abs(pure_rdp(1 + 1e-9, 1.0) - math.tanh(0.5)) < 1e-6
    True
    """
    if eps == 0:
        return 0.0
    # ln(p^a q^(1-a) + q^a p^(1-a)) with p = e^eps q and a = order, written for small a - 1 without cancellation
    log_q, excess = -eps - math.log1p(math.exp(-eps)), order - 1
    p, q = math.exp(eps + log_q), math.exp(log_q)
    if excess * eps < 1:
        value = math.log1p(p * math.expm1(excess * eps) + q * math.expm1(-excess * eps))
    else:
        value = excess * eps + math.log(p + q * math.exp(-2 * excess * eps))
    return min(eps, value / excess)


def skellam_rdp(order: float, event: SkellamEvent) -> float:
    """The Renyi divergence of a sum with Skellam noise: proved for whole orders, and it rises with the order."""
    whole, variance = math.ceil(order), event.variance
    extra = ((2 * whole - 1) * event.l2**2 + 6 * event.l1) / (4 * variance**2)
    return whole * event.l2**2 / (2 * variance) + min(extra, 3 * event.l1 / (2 * variance))


@lru_cache(maxsize=256)
def rdp_of(event: Event, orders: tuple[float, ...]) -> list[float]:
    """The Renyi divergence of one release at each order."""
    if isinstance(event, GaussianEvent):
        return [order / 2 / event.noise_multiplier / event.noise_multiplier for order in orders]
    if isinstance(event, SampledGaussianEvent):
        return sampled_gaussian_rdp(event.noise_multiplier, event.q, orders)
    if isinstance(event, ConcentratedEvent):
        return [event.rho * order for order in orders]
    if isinstance(event, SkellamEvent):
        return [skellam_rdp(order, event) for order in orders]
    return [pure_rdp(order, event.pure_epsilon) for order in orders]


@lru_cache(maxsize=1024)
def _parts(orders: tuple[float, ...]) -> list[tuple[float, float, float]]:
    return [(math.log1p(-1 / order), math.log(order), order - 1) for order in orders]


def _bounds(orders: Sequence[float], rdp: Sequence[float], delta: float) -> list[float]:
    """Of epsilon, one for each order: Proposition 12 of Canonne, Kamath and Steinke (2020)."""
    log_delta = math.log(delta)
    bounds = [
        value + first - (log_delta + log_order) / excess
        for (first, log_order, excess), value in zip(_parts(tuple(orders)), rdp, strict=True)
    ]
    if any(map(math.isnan, bounds)):
        raise ArithmeticError(f"a Renyi divergence is not a number at delta = {delta!r}: use method='basic'")
    return bounds


def to_epsilon(orders: Sequence[float], rdp: Sequence[float], delta: float) -> float:
    """Convert: the best over the orders."""
    return max(0.0, min(_bounds(orders, rdp, delta)))


@lru_cache(maxsize=1024)
def _around(order: float) -> tuple[float, ...]:
    """Finer than the grid, which is 6 % apart in order - 1."""
    return tuple(1 + (order - 1) * 10 ** (step / 2000) for step in range(-50, 51))


def composed_epsilon(groups: Mapping[Event, int], delta: float) -> float:
    """The epsilon of all the releases at delta."""
    sampled = any(isinstance(event, SampledGaussianEvent) for event in groups)
    orders = SAMPLED_ORDERS if sampled else ORDERS
    bounds = _bounds(orders, _composed(groups, orders), delta)
    best = min(bounds)
    if not sampled:  # refine: every order gives a valid bound
        fine = _around(orders[bounds.index(best)])
        best = min(best, to_epsilon(fine, _composed(groups, fine), delta))
    return max(0.0, best)


def _composed(groups: Mapping[Event, int], orders: tuple[float, ...]) -> list[float]:
    total = [0.0] * len(orders)
    for event, times in groups.items():
        total = [sum_ + times * value for sum_, value in zip(total, rdp_of(event, orders), strict=True)]
    return total
