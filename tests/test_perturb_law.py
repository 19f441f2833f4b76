# SPDX-License-Identifier: Apache-2.0
# The law of what comes out: mean, variance, eps; with the power to see 2% and the traps that others fell into.
import math

import ml_dtypes
import numpy as np
import pytest

import ldpkernels
from ldpkernels import TwoPoint, perturb_
from tests.kernels import unpack
from tests.statistics import binomial_test, chi_square, fits, mean_test, measured_eps, rejected, variance_test

DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]
N = 2_000_000


def name(dtype):
    return dtype.name


def sample(w, c, r, eps, dtype, key, n=N):
    return perturb_(np.full(n, w, dtype), c, r, eps, generator=key).astype(np.float64)


def law(w, c, r, eps, dtype):
    """Mean, variance and fourth central moment of the output for a weight w."""
    lower, upper = TwoPoint(eps).outputs(c, r, dtype)
    mean = min(max(w, c - r), c + r)
    p = (mean - lower) / (upper - lower)
    fourth = (upper - mean) ** 4 * p + (lower - mean) ** 4 * (1 - p)
    return mean, TwoPoint(eps).variance(w, c, r, dtype), fourth


@pytest.mark.parametrize("w", [-3.0, -0.25, 0.125, 0.5])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_mean_and_variance(w, dtype, key):
    """C and R are numbers of every dtype, so that the law has no other rounding than the outputs'. 2% would be seen."""
    c, r, eps = 0.125, 0.375, 1.2
    x = sample(w, c, r, eps, dtype, key)
    mean, variance, fourth = law(w, c, r, eps, dtype)
    fits(mean_test(x, mean, variance))
    fits(variance_test(x, mean, variance, fourth))
    if w == c + r:
        scaled = c + 1.02 * (x - c)
        rejected(mean_test(scaled, mean, variance))
        rejected(variance_test(scaled, mean, variance, fourth))


@pytest.mark.parametrize(
    ("dtype", "r", "eps", "bias"), [(DTYPES[2], 0.01, 1.0, 0.083), (DTYPES[3], 1e-3, 4.0, -0.059)], ids=str
)
def test_outputs_rounded_to_nearest_are_biased_and_ours_are_not(dtype, r, eps, bias, key):
    """A weight at the end of the range: plain rounding is off the same way for a whole layer."""
    c, r = 1.0, float(np.float32(r))
    x = sample(2.0, c, r, eps, dtype, key)
    mean, variance, _ = law(2.0, c, r, eps, dtype)
    fits(mean_test(x, mean, variance))
    reach = r * TwoPoint(eps).scale
    upper = np.random.default_rng(0).random(N) < 0.5 + r / (2 * reach)
    naive = np.array([c - reach, c + reach]).astype(dtype).astype(float)[upper.astype(int)]
    rejected(mean_test(naive, c + r, reach**2 - r**2))
    assert (naive.mean() - c - r) / r == pytest.approx(bias, abs=0.008)
    rejected(mean_test(x + bias * r, mean, variance))


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_a_share_of_bits_is_its_threshold(dtype, key, isa):
    """The bits of a report against the exact T / 2^32, and power against T for a scale 2% off."""
    w, c, r, eps = 0.375, 0.125, 0.375, 0.5
    (threshold,) = ldpkernels.two_point_threshold(np.full(1, w, dtype), c, r, eps)
    x = np.full(N, w, dtype)
    ones = int(unpack(ldpkernels.report(x, c, r, eps, generator=key).bits, N).sum())
    fits(binomial_test(ones, N, int(threshold) / 2**32))
    wrong = 0.5 + (int(threshold) / 2**32 - 0.5) / 1.06  # at this w the 2% of the scale are 0.3% of a share: 6 show
    rejected(binomial_test(ones, N, wrong))


def test_the_bits_of_a_byte_are_independent(key, isa):
    """All 256 bytes of eight fair coins; then at eps = 2, where bytes have the weights of their ones."""
    n = 8 * 2**18
    for w, p in [(0.0, 0.5), (1.0, math.exp(2) / (1 + math.exp(2)))]:
        bits = ldpkernels.report(np.full(n, w), 0.0, 1.0, 2.0, generator=key).bits
        ones = np.bitwise_count(np.arange(256, dtype=np.uint8)).astype(int)
        expected = n / 8 * p**ones * (1 - p) ** (8 - ones)
        counts = np.bincount(bits, minlength=256)
        rare = expected < 8
        merged = np.append(counts[~rare], counts[rare].sum()) if rare.any() else counts
        wanted = np.append(expected[~rare], expected[rare].sum()) if rare.any() else expected
        fits(chi_square(merged, wanted))


def test_neighbours_in_the_stream_are_uncorrelated(key):
    """Products of elements 1, 2, 4, 8, ... apart: a repeated word, block or register would show as a mean."""
    x = sample(0.0, 0.0, 1.0, 1.0, DTYPES[0], key) / TwoPoint(1.0).scale
    for lag in (1, 2, 3, 4, 7, 8, 16, 32, 64, 128, 1024, 65536):
        fits(mean_test(x[lag:] * x[:-lag], 0.0, 1.0))


@pytest.mark.parametrize("eps", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_measured_eps_is_below_the_claim_and_close_to_it(dtype, eps):
    c, r = 0.125, 0.375
    hits, reported = [], []
    for i, w in enumerate((c + r, c - r)):
        x = sample(w, c, r, eps, dtype, ldpkernels.key(i))
        hits.append(int((x == x.max()).sum()))
        bits = ldpkernels.report(np.full(N, w, dtype), c, r, eps, generator=ldpkernels.key(2 + i)).bits
        reported.append(int(unpack(bits, N).sum()))
    claimed = TwoPoint(eps).executed_eps(c, r, dtype)
    assert 0.9 * claimed < measured_eps(tuple(hits), N) <= claimed <= eps
    assert 0.9 * eps < measured_eps(tuple(reported), N) <= TwoPoint(eps).effective_eps


def test_measured_eps_sees_broken_mechanisms():
    """An eps 2% above the claim; a forgotten clamp; a position that is not randomised."""
    eps = 1.0
    pairs = [sample(w, 0.0, 1.0, 1.02 * eps, DTYPES[0], ldpkernels.key(5 + i)) > 0 for i, w in enumerate((1.0, -1.0))]
    assert measured_eps((int(pairs[0].sum()), int(pairs[1].sum())), N) > eps
    rng, scale = np.random.default_rng(0), TwoPoint(eps).scale
    unclamped = [int((rng.random(N) < 0.5 + w / (2 * scale)).sum()) for w in (1.5, -1.5)]
    assert measured_eps(tuple(unclamped), N) > eps
    exact = [int((rng.random(N) < 0.5).sum()), 0]
    assert measured_eps(tuple(exact), N) > eps


@pytest.mark.parametrize("w", [-1e30, -2.0, 7.0, 3e38])
def test_outliers_are_clipped_to_the_range(w, key):
    """Far outside is as at the end: the same thresholds, so nothing more can be learnt."""
    end = math.copysign(1.0, w)
    assert np.array_equal(*[sample(v, 0.0, 1.0, 1.0, DTYPES[0], key, 1000) for v in (w, end)])
