# SPDX-License-Identifier: Apache-2.0
"""What a crowd leaves of one position behind an ideal shuffler: counts of reports with two outcomes, or clones.

**Counts.** n clients send eps0-randomized responses; the shuffler leaves only how many ones there are. With one client
replaced, the adversary tells apart Bern(p) + R and Bern(q) + R, where p = e^eps0/(1+e^eps0), q = 1 - p, and R = Bin(m,
q) + Bin(n-1-m, p) is the count of the others, m of whom hold the other extreme. Inputs between the extremes are
mixtures of them, and the hockey-stick divergence is jointly convex, so extremes are worst.

Which m is worst? Adding a client is post-processing of the count, so for any s, the pair (n, m) is no easier to tell
apart than (n-s, m') for every m' with m-s <= m' <= m. A block m' <= m <= m'+s is thus bounded, rigorously, by the one
pair (n-s, m'). Blocks of one m are exact; wider ones cost s of n clients. Nothing here relies on where the worst m was
seen to lie.

**Clones.** Each of the n-1 others is, with probability `share`, a clone: it reports as the client would, under the one
or the other of the client's two inputs with even odds, whatever it holds. Given C clones the adversary tells apart A +
Bern(p) and A + Bern(q), where A ~ Bin(C, 1/2), p = e^eps0/(1+e^eps0) and q = 1 - p. Two shares are proved, for reports
of one and the same randomizer:

- e^-eps0 (Feldman, McMillan and Talwar, FOCS 2021);
- 2/(e^eps0 + 1): the "stronger clones" of the same authors (SODA 2023). By their erratum, their proof no longer covers
  every randomizer; docs/bounds.md has another, by the privacy blanket of Balle, Bell, Gascon and Nissim (2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ldpkernels.accounting.losses import UNIT, TooLarge, binomial_support, binomial_window, log_binomial
from ldpkernels.common.arrays import Floats
from ldpkernels.common.optional import require

OUTSIDE = 1e-20
DIRECT = 1 << 22


@dataclass(frozen=True)
class CountPair:
    """The law of the others' count R in a window, and a bound on what delta may miss."""

    eps0: float
    masses: Floats
    tails: Floats
    slack: float
    error: float

    def deltas(self, epsilons: Floats) -> Floats:
        """The divergence of (Bern(p) + R) from (Bern(q) + R) at each epsilon >= 0, rounded up.

        R is log-concave, so the best test is "the count is at least j", which gives a P(R >= j-1) - b P(R >= j) with
        a = p - e^eps q and b = e^eps p - q; the j is found by the ratio of neighbouring masses.
        """
        epsilons = np.asarray(epsilons, dtype=np.float64)
        q = 1 / (1 + math.exp(self.eps0))
        # a in the form that doesn't cancel near eps0; b - a = e^eps - 1
        a = -q * np.expm1(epsilons - self.eps0) * math.exp(self.eps0)
        gap = np.expm1(epsilons)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = self.masses[:-1] / np.maximum(self.masses[1:], 1e-300)
            # the j in question lies beyond the mode: rounding noise in the lower tail must not decide
            ratios[: int(np.argmax(self.masses))] = 0.0
            j = 1 + np.searchsorted(np.maximum.accumulate(ratios), (a + gap) / np.maximum(a, 1e-300), side="right")
        # a f(j-1) - (e^eps - 1) P(R >= j); j runs to one past the window, where the tail is empty
        value = a * (1 + self.error) * self.masses[j - 1] - gap * (1 - self.error) * self.tails[j]
        return np.where(a > 0, np.minimum(np.maximum(value, 0.0) + self.slack, 1.0), 0.0)

    def delta(self, epsilon: float) -> float:
        """The divergence at one epsilon."""
        return float(self.deltas(np.array([epsilon]))[0])

    def log_moments(self, excesses: Floats) -> Floats:
        """ln E[e^(x L)] for each excess x = order - 1, rounded up: x times the Renyi divergence."""
        q = 1 / (1 + math.exp(self.eps0))
        mode = int(np.argmax(self.masses))
        absent = np.flatnonzero(self.masses <= 1e-22)
        low = int(np.max(absent[absent < mode], initial=-1)) + 1
        high = int(np.min(absent[absent > mode], initial=len(self.masses)))
        cut = self.slack + float(np.sum(self.masses[:low]) + np.sum(self.masses[high:]))
        masses = np.pad(self.masses[low:high], 1)
        first = (1 - q) * masses[:-1] + q * masses[1:]
        second = q * masses[:-1] + (1 - q) * masses[1:]
        losses = np.log(first / second)
        excesses = np.asarray(excesses, dtype=np.float64)
        with np.errstate(over="ignore"):  # an order that is too large bounds nothing
            terms = first * np.expm1(excesses[:, None] * losses)
        # what is cut weighs at most its mass times e^(x eps0)
        sums, sizes = terms.sum(axis=1), np.abs(terms).sum(axis=1)
        rows = zip(excesses.tolist(), sums.tolist(), sizes.tolist(), strict=True)
        return np.array([math.log1p(sum_ + self.error * size + cut * _exp(x * self.eps0)) for x, sum_, size in rows])


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


def _binomial(trials: int, log_p: float, log_q: float) -> tuple[Floats, float]:
    logs, error = log_binomial(trials, log_p, log_q, binomial_support(trials, math.exp(log_p), OUTSIDE))
    return np.exp(logs), error


def count_pair(n: int, eps0: float, m: int) -> CountPair:
    """Return the pair for n clients of whom m others hold the other extreme."""
    log_p, log_q = -math.log1p(math.exp(-eps0)), -eps0 - math.log1p(math.exp(-eps0))
    first, first_error = _binomial(m, log_q, log_p)
    second, second_error = _binomial(n - 1 - m, log_p, log_q)
    error = 2 * (first_error + second_error) + 1e-14
    slack = 8 * OUTSIDE
    if len(first) * len(second) <= DIRECT:
        masses = np.convolve(first, second)
    else:
        masses = np.maximum(require("scipy.signal", "accounting", "this computation").fftconvolve(first, second), 0.0)
        # of two laws: the sum of squares is at most the largest mass
        norm = math.sqrt(float(np.max(first)) * float(np.max(second)))
        slack += 8 * UNIT * math.log2(len(masses)) * norm * math.sqrt(len(masses))
    return CountPair(eps0, masses, np.append(np.cumsum(masses[::-1])[::-1], 0.0), slack, error)


def blocks(n: int, pieces: int) -> list[tuple[int, int]]:
    """Split m = 0 .. n-1 into blocks (first m, width s), each bounded by the pair of n - s clients with that m."""
    width = max(1, math.ceil(n / pieces))
    return [(first, min(width, n - first) - 1) for first in range(0, n, width)]


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
        x = binomial_support(n - 1, share, OUTSIDE)
    except TooLarge:
        # the least number that there are but with probability OUTSIDE: by Hoeffding, or by Chernoff where they are few
        mean = (n - 1) * share
        least = max(
            binomial_window(n - 1, share, OUTSIDE)[0], math.floor(mean - math.sqrt(-2 * mean * math.log(OUTSIDE)))
        )
        return ClonePair(eps0, np.array([max(float(least), 0.0)]), np.ones(1))
    logs, error = log_binomial(n - 1, math.log(share), math.log1p(-share), x)
    masses = np.exp(logs) * (1 + error)
    starts = np.unique(np.linspace(0, len(x) - 1, min(buckets, len(x))).astype(np.int64))
    return ClonePair(eps0, x[starts], np.add.reduceat(masses, starts))
