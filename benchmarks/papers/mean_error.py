# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's Theorem 2 with its constants: how far the mean of n reports of a weight is from the mean of the weights."""

from __future__ import annotations

import math


def mean_error_bound(eps: float, radius: float, clients: int, beta: float) -> float:
    """The distance that the mean of a weight's reports passes with a probability of at most beta.

    The paper states O(r sqrt(-log beta) / (eps sqrt n)) and proves equation (9), Bernstein's inequality, whose
    constants are used here: with A = ((e^eps + 1) / (e^eps - 1))^2 and B = e^eps / (e^eps - 1) it is the positive root
    of n x^2 = log(2 / beta) (2 r^2 A + 4/3 x r B). It is for one weight: for all d of a model take beta / d.

    Args:
        eps: Privacy parameter of the two-point mechanism.
        radius: Of the weight's range.
        clients: How many reports are averaged.
        beta: The probability of being further off.

    >>> round(mean_error_bound(eps=1.0, radius=0.075, clients=100, beta=0.05), 4)
    0.0471
    >>> round(mean_error_bound(eps=1.0, radius=0.075, clients=10_000, beta=0.05), 5)
    0.00444
    """
    for name, value in (("eps", eps), ("radius", radius)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be above 0 and finite")
    if clients < 1:
        raise ValueError(f"clients={clients} must be at least 1")
    if not 0 < beta < 1:
        raise ValueError(f"beta={beta} must be between 0 and 1")
    variance = 1 / math.tanh(eps / 2) ** 2
    step = -1 / math.expm1(-eps)
    log = math.log(2 / beta)
    linear = 4 / 3 * step * log / clients
    return radius * (linear + math.sqrt(linear**2 + 8 * variance * log / clients)) / 2
