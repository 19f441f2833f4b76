# SPDX-License-Identifier: Apache-2.0
"""Subsampling: the true figure for pure eps against a mechanism that attains it, and DP-SGD's published values."""

import math
from dataclasses import replace

import dp_accounting.pld
import pytest

from ldpkernels.accounting import (
    GaussianEvent,
    SampledGaussianEvent,
    composed_epsilon,
    sampled_gaussian,
    subsample_pure,
    subsampled_epsilon,
)
from ldpkernels.accounting.gaussian import gaussian_epsilon


@pytest.mark.parametrize(("eps", "q"), [(0.1, 0.5), (1.0, 0.18), (5.0, 0.01)])
def test_randomized_response_on_a_sample_attains_it(eps: float, q: float) -> None:
    """Without the member the answer is "no" with probability p; with it, on a sample, the answer turns."""
    p = 1 / (1 + math.exp(-eps))
    with_member = (1 - q) * (1 - p) + q * p
    assert math.log(with_member / (1 - p)) == pytest.approx(subsampled_epsilon(eps, q), rel=1e-12)


def test_limits() -> None:
    assert subsampled_epsilon(3.0, 1.0) == 3.0
    assert subsampled_epsilon(0.0, 0.5) == 0.0
    assert subsampled_epsilon(2e10, 0.18) == pytest.approx(2e10 + math.log(0.18))
    assert subsampled_epsilon(499.999, 0.3) == pytest.approx(subsampled_epsilon(500.001, 0.3), abs=0.003)
    assert subsample_pure(1.0, 0.18, rounds=10).epsilon == pytest.approx(10 * subsampled_epsilon(1.0, 0.18))
    assert (
        subsample_pure(1.0, 0.18, rounds=100, delta=1e-5, method="exact").epsilon
        < subsample_pure(1.0, 0.18, rounds=100).epsilon
    )


def test_small_rates_and_large_epsilons_against_high_precision() -> None:
    mpmath = pytest.importorskip("mpmath")
    for eps, q in (
        (500.0, 1e-300),
        (699.9, 1e-300),
        (700.1, 1e-300),
        (710.0, 5e-324),
        (2e4, 0.3),
        (1e-9, 1e-9),
        (600.0, 1.0),
    ):
        with mpmath.workdps(700):
            exact = mpmath.log1p(mpmath.mpf(q) * mpmath.expm1(mpmath.mpf(eps)))
            assert subsampled_epsilon(eps, q) == pytest.approx(float(exact), rel=1e-12)
            assert subsampled_epsilon(eps, q) >= exact * (1 - mpmath.mpf(10) ** -14)


def test_many_steps_that_lose_next_to_nothing_are_not_free() -> None:
    """Each step's divergence is far below rounding, which made it negative; together they are Gaussians 10 apart."""
    least = gaussian_epsilon(0.01 * math.sqrt(1e18) / 1e6, 1e-5)
    for method in ("pld", "rdp"):
        assert sampled_gaussian(1e6, 0.01, 10**18, method=method).epsilon > 0.9 * least


@pytest.mark.parametrize("sigma", [1.0, 5.0])
def test_renyi_divergences_are_the_weaker_way(sigma: float) -> None:
    """The figures themselves are in docs/privacy.md, which a test compares."""
    pld, renyi = (sampled_gaussian(sigma, 128 / 12000, 10000, method=method).epsilon for method in ("pld", "rdp"))
    assert pld < renyi < 1.2 * pld


def test_a_sample_of_everyone_is_the_plain_gaussian() -> None:
    plain = gaussian_epsilon(math.sqrt(10) / 5, 1e-5)
    assert plain <= sampled_gaussian(5.0, 1.0, 10).epsilon <= plain * (1 + 1e-5)
    assert sampled_gaussian(5.0, 1.0, 10, method="rdp").epsilon > plain


@pytest.mark.parametrize(
    ("sigma", "q", "steps", "delta", "grid"),
    [
        (0.4448, 0.1, 1, 1e-5, 1e-2),
        (2.05, 0.1, 1000, 1e-5, 1e-3),
        (0.6, 0.02, 40, 1e-6, 1e-2),
        (1.0, 0.5, 3, 1e-8, 1e-3),
        (3.0, 1e-3, 10**4, 1e-5, 2e-5),
    ],
)
def test_the_law_of_the_loss_beside_dp_accounting(sigma, q, steps, delta, grid):
    """An independent computation, on a grid of its own."""
    dp = pytest.importorskip("dp_accounting")
    accountant = pytest.importorskip("dp_accounting.pld").PLDAccountant(value_discretization_interval=grid)
    step = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma))
    theirs = accountant.compose(dp.SelfComposedDpEvent(step, steps)).get_epsilon(delta)
    assert sampled_gaussian(sigma, q, steps, delta=delta).epsilon == pytest.approx(theirs, rel=3e-3)


@pytest.mark.parametrize(("sigma", "q"), [(0.5, 0.3), (1.0, 0.01), (4.0, 0.5), (0.05, 0.2)])
def test_one_step_against_high_precision(sigma, q):
    """The true delta at the epsilon that is stated is no more than delta, and little less."""
    mpmath = pytest.importorskip("mpmath")
    for delta in (1e-3, 1e-8):
        epsilon = sampled_gaussian(sigma, q, 1, delta=delta).epsilon
        with mpmath.workdps(60):

            def true(epsilon):
                e = mpmath.exp(epsilon)
                cdf = lambda x: mpmath.ncdf(x / sigma)  # noqa: E731
                x = mpmath.mpf(1) / 2 + sigma**2 * mpmath.log((e - 1 + q) / q)
                removed = (1 - q) * cdf(-x) + q * cdf(1 - x) - e * cdf(-x)
                if 1 / e <= 1 - q:
                    return removed
                x = mpmath.mpf(1) / 2 + sigma**2 * mpmath.log((1 / e - 1 + q) / q)
                return max(removed, cdf(x) - e * ((1 - q) * cdf(x) + q * cdf(x - 1)))

            assert true(mpmath.mpf(epsilon)) <= delta
            assert true(mpmath.mpf(epsilon) * (1 - mpmath.mpf(10) ** -3)) > delta


def test_the_event_composes_like_the_function() -> None:
    event = SampledGaussianEvent(2.0, 0.01)
    assert composed_epsilon([(event, 60), (event, 40)], 1e-5) == sampled_gaussian(2.0, 0.01, 100).epsilon
    two = composed_epsilon([(event, 60), (SampledGaussianEvent(3.0, 0.01), 40)], 1e-5, "rdp")
    assert 0 < two <= sampled_gaussian(2.0, 0.01, 100, method="rdp").epsilon


def test_runs_of_other_rates_and_noise_compose_exactly() -> None:
    """By dp-accounting's own composition of all steps, and beside the same release twice."""
    one, two, all_ = SampledGaussianEvent(2.0, 0.01), SampledGaussianEvent(3.0, 0.05), GaussianEvent(20.0)
    terms = [(one, 60), (two, 40), (replace(all_, scope=one.scope), 1)]
    found = composed_epsilon(terms, 1e-5)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    for sigma, q, times in ((2.0, 0.01, 60), (3.0, 0.05, 40), (20.0, 1.0, 1)):
        step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, times))
    theirs = accountant.get_epsilon(1e-5)
    assert found == pytest.approx(theirs, rel=1e-3)
    assert composed_epsilon(terms[:2], 1e-5) < found < composed_epsilon(terms, 1e-5, "rdp")


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"q = 1.5 is outside \(0, 1\]"):
        subsampled_epsilon(1.0, 1.5)
    with pytest.raises(ValueError, match="steps = 0"):
        sampled_gaussian(1.0, 0.1, 0)
    with pytest.raises(ValueError, match="method = 'moments' is unknown"):
        sampled_gaussian(1.0, 0.1, 10, method="moments")


@pytest.mark.parametrize("sigma", [0.15, 0.05, 0.5])
def test_a_sample_of_everyone_is_everyone(sigma: float) -> None:
    """Also where e^loss rounds to nothing."""
    everyone = composed_epsilon([(GaussianEvent(sigma, scope=SampledGaussianEvent(1.0, 0.5).scope), 2)], 1e-5)
    sampled = composed_epsilon([(SampledGaussianEvent(sigma, 1.0), 2)], 1e-5)
    assert everyone <= sampled * (1 + 1e-9)
    assert sampled <= everyone * 1.01
