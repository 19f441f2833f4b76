# SPDX-License-Identifier: Apache-2.0
"""The privacy loss as a law: on a grid, with a rest at infinity; and what lets every figure made of it err upward.

Roots are the upper ends of their brackets, sums of a binomial law leave out a part that is bounded, and what rounding
can do is counted with it. A law of the loss is replaced by one on multiples of h whose hockey-stick curve is nowhere
below ("connect the dots", Doroshenko et al., 2022): its error is of second order in h, so hundreds of thousands of
compositions stay sharp. What is cut off above, and a bound on the rounding of the FFT, is mass at an infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ldpkernels.common.arrays import Floats
from ldpkernels.common.optional import require

UNIT = 2.0**-53
LEAST_INFINITE = 16 * UNIT  # of a law from a curve: what rounding can do to it
# A bracket that was halved so often is narrower than anything that a caller could tell apart.
HALVINGS = 200


class TooLarge(ArithmeticError):
    """The computation would need more points than are worth it; a weaker bound takes its place."""


def bisect_upper(exceeds: Callable[[float], bool], low: float, high: float, close: float = 1e-12) -> float:
    """Return the upper end of a bracket of the point where `exceeds` turns false; it must be false at high.

    The bracket is at most `close` times its end wide. Callers write `not delta(x) <= target`, so that a NaN can't pass
    for a small delta.
    """
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if high - low <= close * high or not low < middle < high:
            break
        if exceeds(middle):
            low = middle
        else:
            high = middle
    return high


def root_upper(
    exceeds: Callable[[float], bool], top: float, first: float, h: float, masses: Floats, delta: float
) -> float:
    """Return what `bisect_upper(exceeds, 0.0, top)` does: where the divergence of masses at `first + h i` is delta.

    Between two losses the divergence is mass - e^epsilon weight, of the losses beyond: solved, and then checked.
    """
    last = int(np.searchsorted(-_tail_divergences(masses, h), -delta))
    beyond = masses[last:]
    mass, weight = float(np.sum(beyond)), float(np.sum(beyond * np.exp(-h * np.arange(len(beyond)))))
    if mass > delta and weight > 0:
        root = max(0.0, first + h * last + math.log((mass - delta) / weight))
        for rounded in (1e-12, 1e-11, 1e-10, 1e-9):
            if not exceeds(root * (1 + rounded)):
                return root * (1 + rounded)
    return bisect_upper(exceeds, 0.0, top)


MOST_ATOMS = 1 << 20


def binomial_window(trials: int, p: float, outside: float) -> tuple[int, int]:
    """Return lo, hi with P(lo <= X <= hi) >= 1 - 2 * outside for X ~ Bin(trials, p).

    By Hoeffding's inequality, or by Bernstein's where it is the sharper one: where successes or failures are few.
    """
    rate = -math.log(outside)
    bernstein = rate / 3 + math.sqrt(rate * rate / 9 + 2 * trials * p * (1 - p) * rate)
    half = min(math.sqrt(trials * rate / 2), bernstein * (1 + 1e-9)) + 1
    return max(0, math.floor(trials * p - half)), min(trials, math.ceil(trials * p + half))


def binomial_support(trials: int, p: float, outside: float) -> Floats:
    """The whole numbers of the window; where they are too many to list, `TooLarge`."""
    lo, hi = binomial_window(trials, p, outside)
    if hi - lo >= MOST_ATOMS:
        raise TooLarge(f"{trials} trials have {hi - lo} outcomes that matter, above {MOST_ATOMS}")
    return np.arange(lo, hi + 1, dtype=np.float64)


def log_binomial(trials: int, log_p: float, log_q: float, x: Floats) -> tuple[Floats, float]:
    """Return ln P(X = x) for X ~ Bin(trials, p) and consecutive x, and a bound on its absolute error.

    One of them by factorials, near the mode, and the others from it by the ratios of neighbours.
    """
    gammaln = require("scipy.special", "accounting", "this computation").gammaln
    middle = min(max(math.floor(trials * math.exp(log_p) - float(x[0])), 0), len(x) - 1)
    at = float(x[middle])
    factorials = float(gammaln(trials + 1.0))
    linear = at * log_p + (trials - at) * log_q
    base = factorials - float(gammaln(at + 1.0)) - float(gammaln(trials - at + 1.0)) + linear
    steps: Floats = np.log((trials - x[:-1]) / x[1:]) + (log_p - log_q)
    values: Floats = np.concatenate([[0.0], np.cumsum(steps)])
    # gammaln is good to a few units of the last place; each of the terms is at most the first one, or a linear one
    size = 3 * factorials + float(np.max(np.abs(x * log_p + (trials - x) * log_q)))
    sums = len(x) * (float(np.max(np.abs(values))) + float(np.max(np.abs(steps), initial=0.0)) + 4)
    return values + (base - values[middle]), UNIT * (8 * (size + 8) + 4 * sums)


MAX_POINTS = 1 << 24
MOST_COMPOSED = 1 << 21  # points of a law of many losses: its transforms take some tenths of a second
NEGLECTED = 1e-44  # of a frequency of a composed law, whose largest is 1


@dataclass(frozen=True)
class LossDistribution:
    """Masses at the losses h * (low + i), and one at infinity."""

    h: float
    low: int
    masses: Floats
    infinite: float

    @property
    def losses(self) -> Floats:
        """The losses of the grid."""
        return self.h * np.arange(self.low, self.low + len(self.masses), dtype=np.float64)

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at epsilon."""
        first = max(0, math.floor(epsilon / self.h) - self.low)
        gaps = epsilon - self.h * (self.low + np.arange(first, len(self.masses)))
        return float(self.infinite - np.sum(self.masses[first:] * np.expm1(np.minimum(gaps, 0.0))))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon whose divergence is at most delta, rounded up; infinite where there is none."""
        if not self.infinite <= delta:
            return math.inf
        top = self.h * (self.low + len(self.masses))
        if top <= 0 or self.delta(0.0) <= delta:
            return 0.0

        def exceeds(epsilon: float) -> bool:
            return not self.delta(epsilon) <= delta

        return root_upper(exceeds, top, self.h * self.low, self.h, self.masses, delta - self.infinite)

    def chernoff_epsilon(self, k: int, delta: float) -> float:
        """A bound on the epsilon of k compositions by moments: weaker, but good at any delta."""
        gone = -math.expm1(k * math.log1p(-min(self.infinite, 0.5)))
        if gone >= delta:
            return math.inf
        losses, _, spread = self._moments()
        guess = math.sqrt(-2 * math.log(delta) / (k * spread + 1e-300))
        best = math.inf
        for order in guess * np.geomspace(1 / 64, 64, 49):
            best = min(best, (k * self._log_mgf(float(order), losses) - math.log(delta - gone)) / order)
        return max(best, 0.0)

    @property
    def deviation(self) -> float:
        """The standard deviation of the finite losses."""
        return math.sqrt(self._moments()[2])

    def _moments(self) -> tuple[Floats, float, float]:
        losses = self.losses
        mean = float(np.sum(self.masses * losses))
        return losses, mean, float(np.sum(self.masses * (losses - mean) ** 2))

    def _log_mgf(self, order: float, losses: Floats) -> float:
        held = self.masses > 0
        if not held.any():
            return -math.inf
        exponents = order * losses[held]
        shift = float(np.max(exponents))
        return shift + math.log(float(np.sum(self.masses[held] * np.exp(exponents - shift))))

    def self_compose(self, k: int, delta: float) -> LossDistribution:
        """Return the law of k independent losses, of use at delta: of that a millionth is cut, and counts as infinite.

        Raises `TooLarge` where the law would be, or where rounding alone is worth delta.
        """
        if k == 1:
            return self
        fft = require("scipy.fft", "accounting", "this computation")
        outside = delta * 1e-6
        losses, _, spread = self._moments()
        guess = math.sqrt(-2 * math.log(outside) / (k * spread + 1e-300))
        low, high = k * self.low, k * (self.low + len(self.masses) - 1)
        for order in guess * np.geomspace(1 / 32, 32, 41):
            up = (k * self._log_mgf(float(order), losses) - math.log(outside)) / order
            down = (k * self._log_mgf(-float(order), losses) - math.log(outside)) / -order
            high, low = min(high, math.ceil(up / self.h)), max(low, math.floor(down / self.h))
        size = max(high - low + 1, len(self.masses))
        if size > MOST_COMPOSED:
            raise TooLarge(f"the composed loss needs {size} grid points, above {MOST_COMPOSED}")
        size = fft.next_fast_len(size, real=True)
        # first-order bound: each factor of the power is off by a few units of the last place per FFT stage
        stages = (8 + 4 * math.log2(size)) * k * UNIT * 2
        if stages * math.exp(-2 * k * self.infinite) >= delta:  # of the first frequency alone
            raise TooLarge(f"the rounding of {k} factors hides delta = {delta}")
        spectrum = fft.rfft(self.masses, size)
        sizes = np.abs(spectrum)
        left = sizes > NEGLECTED ** (1 / k)  # of many losses few frequencies are left
        power = sizes[left] ** float(k)
        spectrum[~left] = 0.0
        spectrum[left] **= float(k)
        composed = np.roll(fft.irfft(spectrum, size, overwrite_x=True), -((low - k * self.low) % size))
        composed = composed[: high - low + 1]
        rounding = stages * float(np.sum(power)) + 2 * NEGLECTED * size
        gone = -math.expm1(k * math.log1p(-min(self.infinite, 0.5)))
        return LossDistribution(self.h, low, np.maximum(composed, 0.0), min(1.0, gone + outside + rounding))

    def compose(self, other: LossDistribution) -> LossDistribution:
        """Return the law of the sum of two independent losses on the same grid."""
        signal = require("scipy.signal", "accounting", "this computation")
        size = len(self.masses) + len(other.masses)
        if size > MAX_POINTS:
            raise TooLarge(f"the composed loss needs {size} grid points, above {MAX_POINTS}")
        masses = np.maximum(signal.fftconvolve(self.masses, other.masses), 0.0)
        # of two laws: the sum of squares is at most the largest mass
        norm = math.sqrt(float(np.max(self.masses)) * float(np.max(other.masses)))
        rounding = (8 + 4 * math.log2(size)) * UNIT * norm * size
        return LossDistribution(
            self.h, self.low + other.low, masses, min(1.0, self.infinite + other.infinite + rounding)
        )


def from_atoms(losses: Floats, masses: Floats, h: float, infinite: float) -> LossDistribution:
    """Split every atom between its two neighbours on the grid so that both laws keep their mass: connect the dots."""
    cells = np.floor(losses / h).astype(np.int64)
    upper = np.clip(np.expm1(-(losses - cells * h)) / math.expm1(-h), 0.0, 1.0)
    low = int(cells.min())
    size = int(cells.max()) - low + 2
    if size > MAX_POINTS:
        raise TooLarge(f"the loss needs {size} grid points, above {MAX_POINTS}")
    out = np.zeros(size)
    np.add.at(out, cells - low, masses * (1 - upper))
    np.add.at(out, cells - low + 1, masses * upper)
    return LossDistribution(h, low, out, infinite)


def from_symmetric_curve(h: float, deltas: Floats) -> LossDistribution:
    """Return the law that connects the dots of a curve at 0, h, 2h, ... of a pair that is its own mirror image.

    deltas must come from a convex curve in e^epsilon. The mirror image puts the mass p(x) e^-x at -x.
    """
    deltas = np.minimum.accumulate(deltas)
    steps = np.diff(deltas)
    positive = np.empty(len(deltas) - 1)
    positive[:-1] = (steps[1:] - steps[:-1] * math.exp(h)) / math.expm1(h)
    positive[-1] = steps[-1] / math.expm1(-h)
    positive = np.maximum(positive, 0.0)
    grid = h * np.arange(1, len(deltas))
    negative = positive * np.exp(-grid)
    centre = max(0.0, 1.0 - float(deltas[-1]) - float(np.sum(positive + negative)))
    masses = np.concatenate([negative[::-1], [centre], positive])
    # second differences round; whatever the rebuilt curve lost is put at infinity, where it counts in full
    rebuilt = np.append(_tail_divergences(positive, h), 0.0) + deltas[-1]
    lost = max(0.0, float(np.max(deltas - rebuilt)))
    return LossDistribution(h, 1 - len(deltas), masses, float(deltas[-1]) + lost + LEAST_INFINITE)


def _tail_divergences(positive: Floats, h: float) -> Floats:
    """sum over j > i of p_j (1 - e^(h(i-j))), for every i: the tail of p less its discounted tail."""
    signal = require("scipy.signal", "accounting", "this computation")
    # D_i = sum_j>i p_j (1 - e^(h(i-j))) obeys D_i = e^-h D_(i+1) + (1 - e^-h) T_i, T_i = sum_j>i p_j: no cancellation
    tails = np.cumsum(positive[::-1])
    divergences: Floats = signal.lfilter([-math.expm1(-h)], [1.0, -math.exp(-h)], tails)[::-1]
    return divergences
