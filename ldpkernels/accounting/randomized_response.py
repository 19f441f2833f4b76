# SPDX-License-Identifier: Apache-2.0
"""Exact composition of k equal randomized responses, by the binomial law of the privacy loss.

L = eps (2X - k) with X ~ Bin(k, e^eps/(1+e^eps)), and delta(e) = E[(1 - e^(e-L))_+]: a sum of terms that are all of one
sign, so nothing cancels. Rounded against us: the rounding of the log-gammas is bounded and multiplied on, what lies
outside the summed window is added to delta, and the root is the upper end of its bracket.
"""

from __future__ import annotations

import math

import numpy as np

from ldpkernels.accounting.binomial import log_pmf, support
from ldpkernels.accounting.rounding import TooLarge, bisect_upper
from ldpkernels.arrays import Floats

# Beyond this e^-eps is no number any more that a sum of probabilities could notice.
LARGEST_EPS = 700.0


def atoms(k: int, eps: float, outside: float) -> tuple[Floats, Floats, float]:
    """Return the losses and probabilities of k composed responses in a window, and a relative error bound."""
    if eps > LARGEST_EPS:
        raise TooLarge(f"eps = {eps} is above {LARGEST_EPS}")
    log_p, log_q = -math.log1p(math.exp(-eps)), -eps - math.log1p(math.exp(-eps))
    x = support(k, math.exp(log_p), outside)
    logs, error = log_pmf(k, log_p, log_q, x)
    return eps * (2 * x - k), np.exp(logs), math.expm1(error)


def composed_epsilon(k: int, eps: float, delta: float) -> float:
    """Return the epsilon of k composed eps-randomized responses at delta; 0 < delta < 1."""
    outside = delta * 1e-9
    losses, masses, error = atoms(k, eps, outside)

    def exceeds(epsilon: float) -> bool:
        first = int(np.searchsorted(losses, epsilon, side="right"))
        total = float(np.sum(masses[first:] * -np.expm1(epsilon - losses[first:])))
        return not total * (1 + error) + outside <= delta

    if not exceeds(0.0):
        return 0.0
    return bisect_upper(exceeds, 0.0, k * eps)
