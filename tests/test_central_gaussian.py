# SPDX-License-Identifier: Apache-2.0
"""A trusted server's noise: clipped integers, one discrete Gaussian on their sum, and what a sum costs."""

import math

import numpy as np
import pytest

import ldpkernels
from ldpkernels import CentralGaussian
from ldpkernels.accounting import composed_epsilon
from ldpkernels.laws.vector_gaussian import GRID_STD, MARGIN, VectorGaussian

LAW = CentralGaussian(0.5, dimension=1000, norm=2.0, clients=10)


def test_every_client_counts_within_the_norm():
    """In integers, whatever it sent: the exact sum of squares is what the guarantee stands on."""
    rng = np.random.default_rng(1)
    for scale in (1e-6, 1.0, 1e6):
        for dtype in (np.float32, np.float64):
            x = (rng.normal(size=1000) * scale).astype(dtype)
            squares = sum(int(i) ** 2 for i in LAW.integers(x))
            assert squares <= LAW.grid.square_bound <= (2.0 / LAW.grid.unit) ** 2
    with pytest.raises(OverflowError):
        LAW.integers(np.full(1000, np.inf))
    with pytest.raises(ValueError, match="dimension=1000"):
        LAW.integers(np.zeros(999))


def test_noise_is_added_once_whoever_came():
    """The deviation of what is released is sigma / clients, for no client as for many; the mean is over `clients`."""
    for came in (0, 3, 25):
        total = sum((LAW.integers(np.full(1000, 0.02)) for _ in range(came)), np.zeros(1000, np.int64))
        released = LAW.released(total, generator=ldpkernels.key(came))
        error = released - came * 0.02 / 10
        assert abs(error.mean()) < 5 * 0.05 / math.sqrt(1000)
        assert abs(error.std() / 0.05 - 1) < 5 / math.sqrt(2000)
        assert np.array_equal(released, LAW.released(total, generator=ldpkernels.key(came)))
        assert not np.array_equal(released, LAW.released(total))
    with pytest.raises(ValueError, match="int64"):
        LAW.released(np.zeros(1000))


def test_noise_is_a_whole_number_of_units():
    released = LAW.released(np.zeros(1000, np.int64)) * 10 / LAW.grid.unit
    assert np.abs(released - np.rint(released)).max() < 1e-6
    assert abs(released.std() / GRID_STD - 1) < 5 / math.sqrt(2000)


def test_a_sum_costs_a_gaussian_of_the_norm_and_not_twice_that():
    multiplier = LAW.event.noise_multiplier
    assert 0.25 * (1 - 2 * MARGIN) < multiplier <= 0.25 * (1 - MARGIN)
    local = ldpkernels.VectorGaussian(0.5, 1000, norm=2.0).event.noise_multiplier
    assert multiplier == pytest.approx(2 * local)


@pytest.mark.parametrize("rounds", [1, 20])
def test_calibration_is_for_all_rounds(rounds):
    law = CentralGaussian.calibrated(8.0, 1e-5, dimension=10_000, clients=100, norm=0.3, rounds=rounds)
    assert 7.99 < law.epsilon(1e-5, rounds) <= 8.0
    assert composed_epsilon([(law.event, rounds)], 1e-5) <= 8.0
    local = ldpkernels.VectorGaussian.calibrated(8.0, 1e-5, dimension=10_000, norm=0.3, rounds=rounds)
    assert local.sigma == pytest.approx(2 * law.sigma, rel=1e-6)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": 1e-4}, "2\\^-9"),
        ({"sigma": 1e6}, "so large"),
        ({"clients": 0}, "clients"),
        ({"norm": -1.0}, "norm"),
        ({"dimension": 0}, "dimension"),
    ],
)
def test_what_is_no_law_is_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        CentralGaussian(**{"sigma": 1.0, "dimension": 10**6, "norm": 1.0, "clients": 5, **changed})


def test_neighbours_are_an_update_and_zeros_as_who_takes_part_is_seen():
    event = CentralGaussian(2.0, dimension=10).event
    assert str(event.scope) == "central view, zero-out of a client"
    alike = VectorGaussian(2.0, dimension=10, norm=0.5).event
    assert (event.noise_multiplier, event.slack) == (alike.noise_multiplier, alike.slack)
