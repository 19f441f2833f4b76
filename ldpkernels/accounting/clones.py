# SPDX-License-Identifier: Apache-2.0
"""Hiding among clones: what shuffling whole reports of any eps0-LDP randomizer hides.

Each of the n-1 others is, with probability `share`, a clone: it reports as the client would, under the one or the other
of the client's two inputs with even odds, whatever it holds. Given C clones the adversary tells apart A + Bern(p) and
A + Bern(q), where A ~ Bin(C, 1/2), p = e^eps0/(1+e^eps0) and q = 1 - p. Two shares are proved, for reports of one and
the same randomizer:

- e^-eps0 (Feldman, McMillan and Talwar, FOCS 2021);
- 2/(e^eps0 + 1): the "stronger clones" of the same authors (SODA 2023). By their erratum, their proof no longer covers
  every randomizer; docs/privacy.md has another, by the privacy blanket of Balle, Bell, Gascon and Nissim (2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ldpkernels.accounting.binomial import log_pmf, support, window
from ldpkernels.accounting.rounding import TooLarge
from ldpkernels.arrays import Floats
from ldpkernels.optional import require

OUTSIDE = 1e-20
SHARES = {
    "stronger_clones": lambda eps0: 2 / (math.exp(eps0) + 1),
    "clones": lambda eps0: math.exp(-eps0),
}
# Elements of a table of epsilons by numbers of clones that are computed at a time.
TABLE = 1 << 20


@dataclass(frozen=True)
class ClonePair:
    """The two laws, by the number C of clones, which the adversary sees.

    Fewer clones are easier to tell apart (adding one is post-processing), so C is rounded down to a few hundred values.
    """

    eps0: float
    clones: Floats
    weights: Floats

    def deltas(self, epsilons: Floats) -> Floats:
        """The divergence at each epsilon >= 0, rounded up."""
        epsilons = np.asarray(epsilons, dtype=np.float64)
        rows = max(1, TABLE // len(self.clones))
        parts = [self._deltas(epsilons[i : i + rows, None]) for i in range(0, len(epsilons), rows)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _deltas(self, epsilons: Floats) -> Floats:
        binom = require("scipy.stats", "accounting", "this computation").binom
        q = 1 / (1 + math.exp(self.eps0))
        a = -q * np.expm1(np.minimum(epsilons - self.eps0, 0.0)) * math.exp(self.eps0)
        gap = np.expm1(np.minimum(epsilons, self.eps0))
        # a f(j-1) > b f(j), where b = a + gap, first holds at the first j above (C + 1) b / (a + b)
        with np.errstate(invalid="ignore"):
            j = np.minimum(np.floor((self.clones + 1) * ((a + gap) / (2 * a + gap))) + 1, self.clones + 1)
        # the binomial's own error was measured below a quarter of this; the two terms cancel, so it counts on both
        error = 1e-12 + 4e-15 * np.sqrt(self.clones)
        terms = a * (1 + error) * binom.pmf(j - 1, self.clones, 0.5)
        terms -= gap * (1 - error) * binom.sf(j - 1, self.clones, 0.5)
        deltas = np.sum(np.maximum(terms, 0.0) * self.weights, axis=1) * (1 + 1e-12) + 4 * OUTSIDE
        return np.where(a[:, 0] > 0, np.minimum(deltas, 1.0), 0.0)

    def delta(self, epsilon: float) -> float:
        """The divergence at one epsilon."""
        return float(self.deltas(np.array([epsilon]))[0])


def clone_pair(n: int, eps0: float, method: str, buckets: int = 512) -> ClonePair:
    """Return the pair of a method of `SHARES` for n clients."""
    # a share that rounds to 1 would leave no law: fewer clones are safe
    share = min(SHARES[method](eps0), 1 - 2.0**-53)
    try:
        x = support(n - 1, share, OUTSIDE)
    except TooLarge:
        # the least number that there are but with probability OUTSIDE: by Hoeffding, or by Chernoff where they are few
        mean = (n - 1) * share
        least = max(window(n - 1, share, OUTSIDE)[0], math.floor(mean - math.sqrt(-2 * mean * math.log(OUTSIDE))))
        return ClonePair(eps0, np.array([max(float(least), 0.0)]), np.ones(1))
    logs, error = log_pmf(n - 1, math.log(share), math.log1p(-share), x)
    masses = np.exp(logs) * (1 + error)
    starts = np.unique(np.linspace(0, len(x) - 1, min(buckets, len(x))).astype(np.int64))
    return ClonePair(eps0, x[starts], np.add.reduceat(masses, starts))
