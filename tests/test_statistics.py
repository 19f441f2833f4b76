# SPDX-License-Identifier: Apache-2.0
# The tests that test: they pass what is right, and see what is wrong by 2%.
import numpy as np
import pytest

from tests.statistics import (
    FALSE_ALARM,
    binomial_test,
    chi_square,
    clopper_pearson,
    fits,
    mean_test,
    measured_eps,
    rejected,
    variance_test,
)


def test_right_data_fit_and_scaled_data_are_rejected():
    x = np.random.default_rng(0).normal(3.0, 2.0, 10**6)
    fits(mean_test(x, 3.0, 4.0))
    fits(variance_test(x, 3.0, 4.0, 3 * 16.0))
    rejected(mean_test(x * 1.02, 3.0, 4.0))
    rejected(variance_test(3.0 + (x - 3.0) * 1.02, 3.0, 4.0, 3 * 16.0))


def test_chi_square_and_binomial():
    rng = np.random.default_rng(1)
    p = np.arange(1, 21) / 210
    counts = rng.multinomial(10**6, p)
    fits(chi_square(counts, p * 10**6))
    tilted = p * np.linspace(0.98, 1.02, 20)
    rejected(chi_square(rng.multinomial(10**6, tilted / tilted.sum()), p * 10**6))
    fits(binomial_test(int(rng.binomial(10**6, 0.3)), 10**6, 0.3))
    rejected(binomial_test(int(rng.binomial(10**6, 0.306)), 10**6, 0.3))
    with pytest.raises(AssertionError, match="merge bins"):
        chi_square(np.array([1, 9]), np.array([4.0, 6.0]))


def test_a_failure_prints_the_rate():
    with pytest.raises(AssertionError, match=r"once in 1e\+06"):
        fits(mean_test(np.ones(100), 0.0, 1.0))
    with pytest.raises(AssertionError, match="false-alarm rate 1e-06"):
        rejected(mean_test(np.zeros(100), 0.0, 1.0))


@pytest.mark.parametrize("p", [0.001, 0.2689, 0.5, 0.97])
def test_intervals_hold_the_truth(p):
    hits = np.random.default_rng(2).binomial(5000, p, 300)
    bounds = [clopper_pearson(int(h), 5000) for h in hits]
    assert all(low <= p <= high for low, high in bounds), f"an interval of error {FALSE_ALARM:g} misses the truth"
    assert all(0 <= low < h / 5000 < high <= 1 or h in (0, 5000) for h, (low, high) in zip(hits, bounds, strict=True))


def test_clopper_pearson_at_the_ends():
    assert clopper_pearson(0, 1000)[0] == 0.0
    assert clopper_pearson(1000, 1000)[1] == 1.0
    assert clopper_pearson(0, 1000, 0.05)[1] == pytest.approx(1 - 0.025 ** (1 / 1000))


def test_measured_eps_is_close_and_never_above():
    n = 10**6
    p = np.e / (np.e + 1)
    rng = np.random.default_rng(3)
    found = measured_eps((int(rng.binomial(n, p)), int(rng.binomial(n, 1 - p))), n)
    assert 0.97 < found < 1.0
    assert measured_eps((500, 500), 1000) == 0.0
