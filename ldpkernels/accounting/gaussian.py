# SPDX-License-Identifier: Apache-2.0
"""Gaussian noise, alone and on Poisson samples (DP-SGD); Renyi divergences of all events, and their conversion."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce

import numpy as np

from ldpkernels.accounting.events import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    SampledGaussianEvent,
    SkellamEvent,
)
from ldpkernels.accounting.losses import LossDistribution, TooLarge, bisect_upper
from ldpkernels.common.arrays import Floats
from ldpkernels.common.optional import require

# Beyond this distance of the means, in standard deviations, the plain tail bound is as good as the root.
FAR = 1e5
# Beyond this e^loss is not a number.
LARGEST_LOSS = 700.0
# What is asked of dp-accounting, and of a law. A larger noise, or a smaller rate, is rounded against us to these.
LEAST_NOISE, MOST_NOISE, LEAST_RATE, MOST_STEPS = 1e-2, 1e6, 1e-12, 10**7
# Steps of a grid in the deviation of a step's loss; above SEVERAL steps fewer, down to COARSE: the variance of their
# sum is then at most 1/400 too large. And points of the grid at most.
FINE, COARSE, SEVERAL, POINTS = 100, 10, 1 << 16, 1 << 14
LEAST_OUTSIDE = 1e-280  # that is left out at an end: its logarithm has room
ROUNDED = 1e-13  # of the ratio of two masses of a cell


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of Gaussians whose means lie mu standard deviations apart (Balle and Wang, 2018), rounded up.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    log_ndtr = require("scipy.special", "accounting", "this computation").log_ndtr

    def exceeds(epsilon: float) -> bool:
        first, second = float(log_ndtr(mu / 2 - epsilon / mu)), epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        # the difference of the two terms cancels: what the logarithms can be wrong by is added
        return not math.exp(first) * (-math.expm1(second - first) + 1e-12 * (1 + epsilon)) <= delta

    if mu == 0:
        return 0.0
    # P(L > epsilon) alone is at most delta here, by exp(-t^2/2) on the normal tail
    high = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if mu > FAR:
        return high * (1 + 1e-14)
    return bisect_upper(exceeds, 0.0, high) if exceeds(0.0) else 0.0


def _cell_masses(edges: Floats) -> Floats:
    """The normal masses between the edges, each taken from the side on which the tail is small."""
    ndtr = require("scipy.special", "accounting", "this computation").ndtr
    masses: Floats = np.where(edges[:-1] > 0, -np.diff(ndtr(-edges)), np.diff(ndtr(edges)))
    return masses


def gaussian_losses(mu: float, h: float, outside: float) -> LossDistribution:
    """The law of the loss of Gaussians mu apart, on the multiples of h."""
    reach = math.sqrt(-2 * math.log(outside))
    if mu * mu / 2 + mu * reach > LARGEST_LOSS:
        raise TooLarge(f"losses beyond {LARGEST_LOSS}, for means {mu} apart")
    low, high = math.floor((mu * mu / 2 - mu * reach) / h), math.ceil((mu * mu / 2 + mu * reach) / h)
    edges = h * np.arange(low, high + 1, dtype=np.float64)
    # the cell's two masses, under both laws, decide how it splits between its ends
    p = _cell_masses((edges - mu * mu / 2) / mu)
    q = _cell_masses((edges + mu * mu / 2) / mu)
    share = np.clip(np.where(p > 0, (1 - np.exp(edges[:-1]) * q / np.maximum(p, 1e-300)) / -math.expm1(-h), 1.0), 0, 1)
    masses = np.zeros(len(edges))
    masses[:-1] += p * (1 - share)
    masses[1:] += p * share
    masses[0] += outside
    return LossDistribution(h, low, masses, outside)


def sampled_gaussian_rdp(noise_multiplier: float, q: float, orders: tuple[float, ...]) -> list[float]:
    """The Renyi divergence of one step of DP-SGD at each order, rounded up."""
    # a sample loses no more than everyone would, and no less than under more noise
    everyone = [order / 2 / noise_multiplier / noise_multiplier for order in orders]
    if noise_multiplier < LEAST_NOISE:
        return everyone
    sampled = _rdp(min(noise_multiplier, MOST_NOISE), max(q, LEAST_RATE), orders)
    # what dp-accounting was seen to lack, many times over: it counts where many steps lose next to nothing each
    return [min(e, max(s, 0.0) * (1 + 1e-9) + 1e-14) for e, s in zip(everyone, sampled, strict=True)]


def _nothing(record: logging.LogRecord) -> bool:
    return False


@lru_cache(maxsize=64)
def _rdp(noise_multiplier: float, q: float, orders: tuple[float, ...]) -> list[float]:
    dp = require("dp_accounting", "accounting", "DP-SGD's accounting")
    accountant = require("dp_accounting.rdp", "accounting", "DP-SGD's accounting").RdpAccountant(list(orders))
    log = logging.getLogger("absl")  # where it says which orders it could not compute: they are infinite then
    log.addFilter(_nothing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(noise_multiplier)))
    finally:
        log.removeFilter(_nothing)
    return [float(value) for value in accountant._rdp]


def _sampled_losses(sigma: float, q: float, removed: bool, h: float, outside: float) -> LossDistribution:
    """The law of the loss of one step on the multiples of h: of an example that is removed, or added.

    With the example the step is N(1, sigma^2) with probability q, else N(0, sigma^2), and the loss ln(dP/dQ) rises with
    it. A cell between two losses keeps its mass under both laws, which decide how it splits between its ends.
    """
    low, high = _loss_range(sigma, q, outside)
    first, last = math.floor(low / h) - 1, math.ceil(min(high, LARGEST_LOSS) / h) + 1
    edges = h * np.arange(first, last + 1, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        x = (0.5 + sigma * sigma * np.log1p(np.maximum(np.expm1(edges) / q, -1.0))) / sigma
    x = np.concatenate([[-np.inf], x, [np.inf]])
    without = _cell_masses(x)
    with_ = (1 - q) * without + q * _cell_masses(x - 1 / sigma)
    p, other = (with_, without) if removed else (without[::-1], with_[::-1])
    low_end = edges[:-1] if removed else -edges[:0:-1]
    inner, ratio = p[1:-1], other[1:-1] / np.maximum(p[1:-1], 1e-300)
    # what rounding can do to the two masses moves a loss by less than is added
    share = np.where(inner > 0, (1 - np.exp(low_end) * ratio + ROUNDED) / -math.expm1(-h), 1.0)
    share = np.clip(share, 0.0, 1.0)
    masses = np.zeros(len(edges))
    masses[:-1] += inner * (1 - share)
    masses[1:] += inner * share
    masses[0] += p[0]  # rounded up
    return LossDistribution(h, first if removed else -last, masses, min(1.0, float(p[-1]) * (1 + 1e-9)))


def _loss_range(sigma: float, q: float, outside: float) -> tuple[float, float]:
    """The losses of one step between which all of it lies, but for so much at either end."""
    reach = math.sqrt(-2 * math.log(outside))
    exponents = (-(reach + 1 / (2 * sigma)) / sigma, (reach + 1 / (2 * sigma)) / sigma)
    low, high = (_loss(q, z) for z in exponents)
    return max(low, -LARGEST_LOSS), high


def _loss(q: float, z: float) -> float:
    """ln(1 - q + q e^z), where the loss of everyone would be z."""
    if q == 1:
        return z
    return math.log1p(q * math.expm1(z)) if z < 30 else math.log(q) + z + 1e-9


def sampled_gaussian_epsilon(noise_multiplier: float, q: float, steps: int, delta: float) -> float:
    """The epsilon of DP-SGD by the law of its loss (an example is added or removed), rounded up.

    Raises `TooLarge` where that says nothing: rounding could decide, or losses leave what a double's exponential has.
    """
    return sampled_gaussians_epsilon(((noise_multiplier, q, steps),), delta)


@lru_cache(maxsize=256)
def sampled_gaussians_epsilon(runs: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """The same of several runs together, each with its noise multiplier, rate (1 of everyone) and steps."""
    total = sum(steps for _, _, steps in runs)
    outside = delta * 1e-6 / total
    runs = tuple((min(sigma, MOST_NOISE), max(q, LEAST_RATE), steps) for sigma, q, steps in runs)
    if min(sigma for sigma, _, _ in runs) < LEAST_NOISE or total > MOST_STEPS or outside < LEAST_OUTSIDE:
        raise TooLarge(f"noise multipliers, rates and steps {runs} at delta = {delta}")
    ranges = (_loss_range(sigma, q, outside) for sigma, q, _ in runs)
    least = max((min(high, LARGEST_LOSS) - low) / POINTS for low, high in ranges)
    found = 0.0
    for removed in (True, False):
        h, finer = math.inf, 256 * least
        while finer < h:  # a law on a coarse grid says how fine one should be
            h = finer
            laws = [_sampled_losses(sigma, q, removed, h, outside) for sigma, q, _ in runs]
            # of its deviation; the composed law has the root of `total` as many points
            deviation = min(law.deviation for law in laws)
            finer = max(least, deviation / max(COARSE, FINE * min(1.0, math.sqrt(SEVERAL / total))))
        composed = [law.self_compose(steps, delta) for law, (_, _, steps) in zip(laws, runs, strict=True)]
        found = max(found, reduce(LossDistribution.compose, composed).epsilon(delta))
    if math.isinf(found):
        raise TooLarge(f"noise multipliers, rates and steps {runs} at delta = {delta}")
    return found


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
        wholes = [math.ceil(order) for order in orders]
        by_whole = {whole: skellam_rdp(whole, event) for whole in dict.fromkeys(wholes)}
        return [by_whole[whole] for whole in wholes]
    return [pure_rdp(order, event.pure_epsilon) for order in orders]


@lru_cache(maxsize=1024)
def _parts(orders: tuple[float, ...]) -> list[tuple[float, float, float]]:
    return [(math.log1p(-1 / order), math.log(order), order - 1) for order in orders]


def _bounds(orders: Sequence[float], rdp: Sequence[float], delta: float) -> list[float]:
    """Bounds of epsilon, one for each order: Proposition 12 of Canonne, Kamath and Steinke (2020)."""
    log_delta = math.log(delta)
    bounds = [
        value + first - (log_delta + log_order) / excess
        for (first, log_order, excess), value in zip(_parts(tuple(orders)), rdp, strict=True)
    ]
    if any(map(math.isnan, bounds)):
        raise ArithmeticError(f"a Renyi divergence is not a number at delta = {delta!r}: use method='basic'")
    return bounds


def to_epsilon(orders: Sequence[float], rdp: Sequence[float], delta: float) -> float:
    """Return epsilon at delta: the least of the bounds that the orders give."""
    return max(0.0, min(_bounds(orders, rdp, delta)))


@lru_cache(maxsize=1024)
def _around(order: float) -> tuple[float, ...]:
    """Orders around one of the grid, finer than the grid, which is 6 % apart in order - 1."""
    return tuple(1 + (order - 1) * 10 ** (step / 2000) for step in range(-50, 51))


def renyi_epsilon(groups: Mapping[Event, int], delta: float) -> float:
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
