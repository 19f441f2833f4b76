# SPDX-License-Identifier: Apache-2.0
"""Tests of random code with a declared false-alarm rate: one in a million, printed where a test fails.

A test returns a `Verdict`; `fits` asserts that data of the claimed law came out, and `rejected` that the same test sees
through a law that is not quite the claimed one. p-values are exact, or normal with z = 6 as the limit, where the normal
tail is 2e-9 and leaves room for the approximation. Keys are fixed, so a test that passes does so every time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6
Z = 6.0
MIN_EXPECTED = 5


@dataclass(frozen=True)
class Verdict:
    """What a test says of some data."""

    rejects: bool
    detail: str


def fits(verdict: Verdict) -> None:
    """The data are as the law says."""
    assert not verdict.rejects, f"{verdict.detail}; a right sampler fails this once in {1 / FALSE_ALARM:.0e} keys"


def rejected(verdict: Verdict) -> None:
    """The data are seen not to be as the law says: the test has power."""
    assert verdict.rejects, f"{verdict.detail}: a wrong sampler passed (false-alarm rate {FALSE_ALARM:g})"


def mean_test(x: np.ndarray, mean: float, variance: float) -> Verdict:
    """The mean of independent samples of a known mean and variance."""
    found = float(np.mean(x, dtype=np.float64))
    if variance <= 0:
        return Verdict(found != mean, f"mean {found!r} of a constant {mean!r}")
    z = (found - mean) * math.sqrt(len(x) / variance)
    return Verdict(abs(z) > Z, f"mean {found:.8g} of {len(x)} samples, expected {mean:.8g}: z = {z:.2f} (limit {Z:g})")


def variance_test(x: np.ndarray, mean: float, variance: float, fourth_moment: float) -> Verdict:
    """The variance of independent samples whose mean, variance and fourth central moment are known."""
    squares = (np.asarray(x, np.float64) - mean) ** 2
    spread = max(fourth_moment - variance**2, (1e-9 * variance) ** 2)
    verdict = mean_test(squares, variance, spread)
    return Verdict(verdict.rejects, f"variance as the {verdict.detail}")


def chi_square(counts: np.ndarray, expected: np.ndarray) -> Verdict:
    """Pearson's test; every expected count is at least 5 and their sum is that of the counts."""
    counts, expected = np.asarray(counts, np.float64), np.asarray(expected, np.float64)
    assert expected.min() >= MIN_EXPECTED, f"an expected count of {expected.min():g}: merge bins until each has 5"
    assert math.isclose(counts.sum(), expected.sum(), rel_tol=1e-9), "the counts do not add up to the expected ones"
    statistic = float(((counts - expected) ** 2 / expected).sum())
    p = float(stats.chi2.sf(statistic, len(counts) - 1))
    return Verdict(p < FALSE_ALARM, f"chi-square {statistic:.1f} on {len(counts) - 1} degrees of freedom: p = {p:.1e}")


def binomial_test(hits: int, trials: int, p: float) -> Verdict:
    """A number of hits, against the exact binomial law."""
    law = stats.binom(trials, p)
    tail = min(1.0, 2 * float(min(law.cdf(hits), law.sf(hits - 1))))
    return Verdict(tail < FALSE_ALARM, f"{hits} of {trials} hits, expected {trials * p:.1f}: p = {tail:.1e}")


def clopper_pearson(hits: int, trials: int, alpha: float = FALSE_ALARM) -> tuple[float, float]:
    """An interval that holds the true probability but for `alpha`, whatever it is."""
    low = float(stats.beta.ppf(alpha / 2, hits, trials - hits + 1)) if hits else 0.0
    high = float(stats.beta.isf(alpha / 2, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def measured_eps(hits: tuple[int, int], trials: int) -> float:
    """An eps that two neighbouring inputs prove: below the true one, but for one false alarm in a million.

    `hits` are how often each input gave the one output of two. Four intervals share the rate: Clopper-Pearson.
    """
    (low_a, high_a), (low_b, high_b) = (clopper_pearson(h, trials, FALSE_ALARM / 2) for h in hits)
    ratios = [(low_a, high_b), (low_b, high_a), (1 - high_a, 1 - low_b), (1 - high_b, 1 - low_a)]
    return max(0.0, *(math.log(p / q) for p, q in ratios if p > 0 and q > 0))
