# SPDX-License-Identifier: Apache-2.0
"""Gaussian noise, alone and on Poisson samples (DP-SGD)."""

from __future__ import annotations

import logging
import math
import warnings
from functools import lru_cache

import numpy as np

from ldpkernels.accounting.loss_distribution import LossDistribution
from ldpkernels.accounting.rounding import TooLarge, bisect_upper
from ldpkernels.arrays import Floats
from ldpkernels.optional import require

# Beyond this distance of the means, in standard deviations, the plain tail bound is as good as the root.
FAR = 1e5
# Beyond this e^loss is no number.
LARGEST_LOSS = 700.0
# What dp-accounting can be asked. A larger noise, or a smaller rate, is rounded against us to these.
LEAST_NOISE, MOST_NOISE, LEAST_RATE, MOST_STEPS = 1e-2, 1e6, 1e-12, 10**6
# The grid of its losses, finest for a small epsilon, with some millions of points at most.
FINEST, COARSEST, GRID_POINTS = 1e-4, 1.0, 1e6
# A smaller delta can drown in the rounding of its Fourier transforms, which it doesn't add.
LEAST_DELTA = 1e-10


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


@lru_cache(maxsize=64)
def sampled_gaussian_epsilon(noise_multiplier: float, q: float, steps: int, delta: float, weaker: float) -> float:
    """The epsilon of DP-SGD by dp-accounting's pessimistic privacy loss distribution (add or remove one).

    `weaker` is any other bound of it, and decides how fine the distribution's grid can be. Raises `TooLarge` where a
    grid would have too many points, or be so coarse that it says nothing, and where rounding could decide.
    """
    if weaker == 0:
        return 0.0
    one_step = (1 / noise_multiplier + 20) / noise_multiplier
    coarse = max(weaker, one_step) / GRID_POINTS
    if noise_multiplier < LEAST_NOISE or steps > MOST_STEPS or coarse > COARSEST or delta < LEAST_DELTA:
        raise TooLarge(f"{steps} steps with noise {noise_multiplier} at delta = {delta}")
    dp = require("dp_accounting", "accounting", "DP-SGD's accounting")
    accountant = require("dp_accounting.pld", "accounting", "DP-SGD's accounting").PLDAccountant(
        value_discretization_interval=max(FINEST, coarse)
    )
    step = dp.PoissonSampledDpEvent(max(q, LEAST_RATE), dp.GaussianDpEvent(min(noise_multiplier, MOST_NOISE)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountant.compose(dp.SelfComposedDpEvent(step, steps))
    return float(accountant.get_epsilon(delta))
