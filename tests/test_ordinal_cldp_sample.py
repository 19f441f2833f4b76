# SPDX-License-Identifier: Apache-2.0
# Samples of ordinal CLDP against its exact law: chi-square with tails binned by expected counts, bias, power.
import math
from itertools import pairwise

import numpy as np
import pytest

import ldpkernels
from ldpkernels import OrdinalCLDP, cldp_, cldp_sample
from tests.statistics import MIN_EXPECTED, chi_square, fits, mean_test, rejected, variance_test

SAMPLES = 1 << 20


def side(rate, begin, end):
    """The sum of e^(-rate g) for g from begin to end - 1, over that of all g from 0."""
    return math.exp(-rate * begin) * -math.expm1(-rate * (end - begin)) if end > begin else 0.0


def bins_of(rate, below, above, n):
    """Edges of steps y - v and the exact probabilities between them, each with an expected count of at least 5.

    `below` and `above` are how far a step may go. Edges lie evenly in probability, and ever further out in the tails.
    """
    total = side(rate, 0, below + 1) + side(rate, 1, above + 1)
    shares = [k / 40 for k in range(1, 40)]
    tail = 1 / 40
    while (tail := tail / 2) * n > 4 * MIN_EXPECTED:
        shares += [tail, 1 - tail]
    edges = {0, 1}
    for share in shares:  # where the law's one side has this much below it
        g = -math.log1p(-share) / rate
        edges |= {int(g) + 1, -int(g)}
    inside = sorted(e for e in edges if -below < e <= above)
    edges = [-below, *inside, above + 1]
    p = []
    for a, b in pairwise(edges):
        down = side(rate, max(1 - b, 0), -a + 1) if a <= 0 else 0.0
        up = side(rate, max(a, 1), b) if b > 1 else 0.0
        p.append((down + up) / total)
    return merged(np.array(edges), np.array(p), n)


def merged(edges, p, n):
    """Bins too small to be tested join the next."""
    keep, mass = [edges[0]], []
    gathered = 0.0
    for edge, share in zip(edges[1:], p, strict=True):
        gathered += share
        if gathered * n >= MIN_EXPECTED:
            keep.append(edge)
            mass.append(gathered)
            gathered = 0.0
    keep[-1] = edges[-1]
    mass[-1] += gathered
    return np.array(keep), np.array(mass)


def steps_test(y, v, rate, below, above):
    """Chi-square of y - v against the two-sided geometric law on [-below, above]."""
    edges, p = bins_of(rate, below, above, len(y))
    counts = np.histogram(y - v, np.append(edges[:-1], edges[-1] - 1))[0]  # histogram's last bin holds both its ends
    return chi_square(counts, p / p.sum() * len(y))


def sampled(alpha, m, v, seed, n=SAMPLES, mechanism="exponential"):
    return cldp_sample(np.full(n, v, np.int64), alpha, m, mechanism=mechanism, generator=ldpkernels.key(seed))


SMALL = [
    (0.02, 64, -64), (0.1, 64, 0), (0.3, 20, 20), (0.7, 9, -3), (1.0, 5, 5), (1.0, 64, 10), (2.0, 3, 0), (4.0, 2, -2),
    (1e-9, 50, 13), (8.0, 4, 1),
]  # fmt: skip


@pytest.mark.parametrize(("alpha", "m", "v"), SMALL)
def test_small_boxes(alpha, m, v):
    y = sampled(alpha, m, v, 11)
    assert abs(y).max() <= m
    p = OrdinalCLDP(alpha, m, 0).pmf(v)
    edges, mass = merged(np.arange(-m, m + 2), p, SAMPLES)
    fits(chi_square(np.histogram(y, np.append(edges[:-1], edges[-1] - 1))[0], mass / mass.sum() * SAMPLES))


BIG = 10**10
LARGE = [
    (4.3e-7, BIG, 0), (4.3e-7, BIG, BIG), (4.3e-7, BIG, -BIG), (4.3e-7, BIG, BIG - 3_000_000), (1e-10, BIG, BIG // 3),
    (1e-13, BIG, 0), (1e-3, BIG, 17), (1e-12, 10**18, -(10**18)), (1e-18, 2**62 - 1, 2**61),
    (1e-30, 2**62 - 1, 1 - 2**62), (1.0, BIG, BIG - 2),
]  # fmt: skip


@pytest.mark.parametrize(("alpha", "m", "v"), LARGE)
def test_large_boxes(alpha, m, v):
    y = sampled(alpha, m, v, 12)
    assert y.min() >= -m
    assert y.max() <= m
    fits(steps_test(y, v, alpha / 2, v + m, m - v))


@pytest.mark.parametrize(("alpha", "m", "v"), [(4.3e-7, BIG, BIG), (4.3e-7, BIG, 0), (0.1, 64, 20), (1.0, BIG, 3)])
def test_the_test_sees_two_per_cent(alpha, m, v):
    y = sampled(alpha * 1.02, m, v, 13)
    rejected(steps_test(y, v, alpha / 2, v + m, m - v))


LAPLACE = [(4.3e-7, BIG, BIG), (1e-15, 2**62 - 1, 1 - 2**62), (0.1, 64, 0), (1.0, 5, 5), (3.0, 0, 0), (12.0, 1, 1)]


@pytest.mark.parametrize(("alpha", "m", "v"), LAPLACE)
def test_laplace(alpha, m, v):
    y = sampled(alpha, m, v, 14, mechanism="laplace")
    far = min(int(2000 / alpha) + 1, 2**63 - 1 - m)
    fits(steps_test(y, v, alpha, far, far))
    variance = OrdinalCLDP(alpha, 1, 0, "laplace").variance(0)
    noise = (y - v).astype(np.float64)  # exact before the conversion: differences of int64
    fits(mean_test(noise, 0.0, variance))
    if alpha < 4:
        b = math.exp(-alpha)
        fourth = 2 * b * (1 + 10 * b + b * b) / (1 - b) ** 4 if alpha > 0.01 else 24 / alpha**4
        fits(variance_test(noise, 0.0, variance, fourth))
        y = sampled(alpha * 1.02, m, v, 15, mechanism="laplace", n=4 * SAMPLES)
        rejected(steps_test(y, v, alpha, far, far))


@pytest.mark.parametrize(
    ("alpha", "m", "v"), [(4.3e-7, BIG, BIG), (4.3e-7, BIG, -BIG + 10**6), (0.1, 64, 60), (2.0, 3, 3)]
)
def test_bias_of_the_exponential_mechanism(alpha, m, v):
    mechanism = OrdinalCLDP(alpha, m, 0)
    y = sampled(alpha, m, v, 16)
    fits(mean_test((y - v).astype(np.float64), mechanism.bias(v), mechanism.variance(v)))
    rejected(mean_test((y - v).astype(np.float64), 0.0, mechanism.variance(v)))


@pytest.mark.parametrize("place", [0, 1, 2, 3, 30, 31, 511, 512, 4095])
def test_every_position_is_randomised(place):
    """Each element has its own law, wherever it stands: by key, for all positions of one call, and here for some."""
    y = np.array([sampled(0.5, 20, 0, seed, n=4096)[place] for seed in range(300)])
    expected = OrdinalCLDP(0.5, 20, 0)
    fits(mean_test(y.astype(np.float64), 0.0, expected.variance(0)))
    assert len(set(y.tolist())) > 8


def test_neighbours_are_independent():
    y = sampled(0.05, 10**6, 0, 17).astype(np.float64)
    variance = OrdinalCLDP(0.05, 10**6, 0).variance(0)
    for lag in (1, 2, 3, 4, 8, 512):
        fits(mean_test((y[lag:] * y[:-lag])[:: lag + 1], 0.0, variance**2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stochastic_rounding_is_unbiased(dtype):
    w = np.full(SAMPLES, 0.3141, dtype)
    exact = float(w[0])
    for mechanism in ("laplace", "exponential"):
        law = OrdinalCLDP(4.0, 1.0, 1, mechanism)
        y = cldp_(w.copy(), 4.0, 1.0, 1, mechanism=mechanism, rounding="stochastic", generator=ldpkernels.key(18))
        floor = math.floor(exact * 10)
        share = exact * 10 - floor
        mean = (floor + share + (1 - share) * law.bias(floor) + share * law.bias(floor + 1)) / 10
        fits(mean_test(y.astype(np.float64), mean, (law.variance(floor) + 0.25) / 100))
    nearest = cldp_(w.copy(), 4.0, 1.0, 1, mechanism="laplace", generator=ldpkernels.key(18))
    rejected(mean_test(nearest.astype(np.float64), exact, (law.variance(3) + 0.25) / 100))
