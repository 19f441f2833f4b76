# SPDX-License-Identifier: Apache-2.0
"""How few, and how many, come to a round that everybody enters by a draw of his own."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ldpkernels.accounting.losses import TooLarge, binomial_support, log_binomial

ROUNDING = 1e-12  # of clients / participation, which stands for a whole number


def population(clients: int, participation: float) -> int:
    """Of how many a round takes so many on average.

    >>> population(20, 0.1), population(7, 1.0)
    (200, 7)
    """
    return math.floor(clients / participation * (1 + ROUNDING))


@lru_cache(maxsize=64)
def smallest(trials: int, p: float, tail: float) -> int:
    """The largest m for which fewer than m of so many trials succeed with a probability of at most `tail`.

    The tail is summed, with what rounding can do to it; of more trials than can be listed it is Chernoff's bound.

    >>> smallest(200, 0.1, 0.1434), smallest(200, 0.1, 0.1430)
    (16, 15)
    """
    outside = tail * 1e-6
    try:
        x = binomial_support(trials, p, outside)
    except TooLarge:
        mean = trials * p
        return max(0, math.floor(mean - math.sqrt(-2 * mean * math.log(tail))))
    if p == 1:
        return trials
    logs, error = log_binomial(trials, math.log(p), math.log1p(-p), x)
    below = np.cumsum(np.exp(logs)) * math.exp(error) * (1 + 1e-9) + outside
    return int(x[0]) + int(np.searchsorted(below, tail, side="right"))


def largest(trials: int, p: float, tail: float) -> int:
    """The least m for which more than m of so many trials succeed with a probability of at most `tail`.

    >>> largest(200, 0.1, 1e-6)
    43
    """
    return trials if p == 1 else trials - smallest(trials, 1 - p, tail)
