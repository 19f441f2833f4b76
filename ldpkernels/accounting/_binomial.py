# SPDX-License-Identifier: Apache-2.0
"""Exact composition of k equal randomized responses, by the binomial law of the privacy loss.

L = eps (2X - k) with X ~ Bin(k, e^eps/(1+e^eps)), and delta(e) = E[(1 - e^(e-L))_+]: a sum of terms that are all of one
sign, so nothing cancels. Rounded against us: the rounding of the log-gammas is bounded and multiplied on, what lies
outside the summed window is added to delta, and the root is the upper end of its bracket.
"""

import math
from typing import Any

import numpy as np

from ldpkernels.accounting import arguments

UNIT = 2.0**-53


def window(trials: int, p: float, outside: float) -> tuple[int, int]:
    """Return lo, hi with P(lo <= X <= hi) >= 1 - 2 * outside for X ~ Bin(trials, p), by Hoeffding's inequality."""
    half = math.sqrt(trials * math.log(1 / outside) / 2) + 1
    return max(0, math.floor(trials * p - half)), min(trials, math.ceil(trials * p + half))


def log_pmf(trials: int, log_p: float, log_q: float, x: Any) -> tuple[Any, float]:
    """Return ln P(X = x) for X ~ Bin(trials, p), and a bound on its absolute error."""
    gammaln = arguments.require("scipy.special").gammaln
    linear = x * log_p + (trials - x) * log_q
    values = gammaln(trials + 1.0) - gammaln(x + 1.0) - gammaln(trials - x + 1.0) + linear
    # gammaln is good to a few units of the last place; each of the terms is at most the first one, or the linear one
    size = 3 * float(gammaln(trials + 1.0)) + (float(np.max(np.abs(linear))) if np.size(linear) else 0.0)
    return values, 8 * UNIT * (size + 8)


def bisect_upper(exceeds: Any, low: float, high: float) -> float:
    """Return the upper end of a bracket of the point where `exceeds` turns false; it must be false at high.

    Callers write `not delta(x) <= target`, so that a NaN can't pass for a small delta.
    """
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if exceeds(middle):
            low = middle
        else:
            high = middle
    return high


def randomized_response_atoms(k: int, eps: float, outside: float) -> tuple[Any, Any, float]:
    """Return the losses and probabilities of k composed responses in a window, and a relative error bound."""
    log_p, log_q = -math.log1p(math.exp(-eps)), -eps - math.log1p(math.exp(-eps))
    lo, hi = window(k, math.exp(log_p), outside)
    x = np.arange(lo, hi + 1, dtype=np.float64)
    logs, error = log_pmf(k, log_p, log_q, x)
    return eps * (2 * x - k), np.exp(logs), math.expm1(error)


def randomized_response_epsilon(k: int, eps: float, delta: float) -> float:
    """Return the epsilon of k composed eps-randomized responses at delta; 0 < delta < 1."""
    outside = delta * 1e-9
    losses, masses, error = randomized_response_atoms(k, eps, outside)

    def exceeds(epsilon: float) -> bool:
        above = losses > epsilon
        total = float(np.sum(masses[above] * -np.expm1(epsilon - losses[above])))
        return not total * (1 + error) + outside <= delta

    if not exceeds(0.0):
        return 0.0
    return bisect_upper(exceeds, 0.0, k * eps)
