# SPDX-License-Identifier: Apache-2.0
"""The binomial law in a window: what lies outside and what rounding does are bounded, so that sums can err upward."""

from __future__ import annotations

import math

import numpy as np

from ldpkernels.accounting.rounding import UNIT, TooLarge
from ldpkernels.arrays import Floats
from ldpkernels.optional import require

MOST_ATOMS = 1 << 20


def window(trials: int, p: float, outside: float) -> tuple[int, int]:
    """Return lo, hi with P(lo <= X <= hi) >= 1 - 2 * outside for X ~ Bin(trials, p), by Hoeffding's inequality."""
    half = math.sqrt(trials * -math.log(outside) / 2) + 1
    return max(0, math.floor(trials * p - half)), min(trials, math.ceil(trials * p + half))


def support(trials: int, p: float, outside: float) -> Floats:
    """The whole numbers of the window; where they are too many to list, `TooLarge`."""
    lo, hi = window(trials, p, outside)
    if hi - lo >= MOST_ATOMS:
        raise TooLarge(f"{trials} trials have {hi - lo} outcomes that matter, above {MOST_ATOMS}")
    return np.arange(lo, hi + 1, dtype=np.float64)


def log_pmf(trials: int, log_p: float, log_q: float, x: Floats) -> tuple[Floats, float]:
    """Return ln P(X = x) for X ~ Bin(trials, p), and a bound on its absolute error."""
    gammaln = require("scipy.special", "accounting", "this computation").gammaln
    linear = x * log_p + (trials - x) * log_q
    values: Floats = gammaln(trials + 1.0) - gammaln(x + 1.0) - gammaln(trials - x + 1.0) + linear
    # gammaln is good to a few units of the last place; each of the terms is at most the first one, or the linear one
    size = 3 * float(gammaln(trials + 1.0)) + (float(np.max(np.abs(linear))) if np.size(linear) else 0.0)
    return values, 8 * UNIT * (size + 8)
