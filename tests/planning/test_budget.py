# SPDX-License-Identifier: Apache-2.0
# The benchmark's means have the law of the calls that they stand for, and a run goes on from where it was stopped.
import math
from dataclasses import replace

import numpy as np
import pytest

import ldpkernels
from benchmarks.budget.means import SIMULATORS, at_norm, mean_of, next_norm, shrunk
from tests.planning.test_calls import CANDIDATES, D, N
from tests.statistics import Z

SIMULATED = [
    one
    for one in CANDIDATES
    if one.name in SIMULATORS
    and (one.setting.trust, one.setting.epsilon) in (("local", 60), ("central", 16), ("secure-aggregation", 16))
]


def test_every_candidate_can_be_simulated():
    assert {one.name for one in CANDIDATES} <= SIMULATORS.keys()


@pytest.mark.parametrize("one", SIMULATED, ids=lambda one: one.name)
def test_means_are_right_on_average_and_as_far_off_as_expected(one):
    """4 of 40 are trained. Six standard errors are below a fifth of the expected error, so 1.2 times it would fail."""
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((4, D))
    updates *= np.array([[1.0], [0.7], [1.0], [0.0]]) / np.linalg.norm(updates, axis=1, keepdims=True)
    updates = np.clip(updates, -0.25, 0.25)
    rounds = 400
    means = np.stack([mean_of(one, updates, N, ldpkernels.key(i)) for i in range(rounds)])
    deviation = means.mean(0) - updates.mean(0)
    assert (np.abs(deviation) < Z * means.std(0) / math.sqrt(rounds) + 1e-6).all()
    errors = np.sum((means - updates.mean(0)) ** 2, axis=1)
    measured, standard_error = float(errors.mean()), float(errors.std() / math.sqrt(rounds))
    assert Z * standard_error < 0.2 * one.expected_error
    expected = expected_at(one, updates)
    assert abs(measured - expected) < Z * standard_error
    assert measured < one.expected_error + Z * standard_error


def expected_at(one, updates):
    """The expected error for these updates by the laws' own variances."""
    s = one.setting
    if one.name in ("two-point", "piecewise", "hybrid"):
        mechanism = ldpkernels.laws.registry.mechanism_named(one.name, one.parameter)
        return float(np.sum(mechanism.variance(updates, 0.0, s.box, "float32"))) / len(updates) / N
    if one.name in ("k-of-d", "privunitg"):
        law = (
            ldpkernels.KOfD(one.parameter, D, s.ball, s.box)
            if one.name == "k-of-d"
            else ldpkernels.PrivUnitG(one.parameter, D, s.ball)
        )
        return float(np.mean([law.error(x) for x in updates])) / N
    return one.expected_error


def test_norms_that_follow_the_median_have_noise_in_proportion():
    followed = [one for one in SIMULATED if one.adaptive]
    assert {one.name for one in followed} == {"adaptive discrete", "adaptive skellam"}
    for one in followed:
        wide = at_norm(one, 3 * one.setting.ball)
        errors = [[float(np.sum(mean_of(c, np.zeros((4, D)), N, ldpkernels.key(i)) ** 2)) for i in range(300)]
                  for c in (one, wide)]  # fmt: skip
        assert np.mean(errors[0]) == pytest.approx(one.expected_error, rel=0.2)
        assert np.mean(errors[1]) == pytest.approx(9 * one.expected_error, rel=0.2)
    rows = np.diag([0.5, 1.5, 1.6, 3.0])
    norms = [1.0]
    for i in range(40):
        quiet = replace(one, expected_error=1e-6 * one.expected_error)
        norms.append(next_norm(quiet, norms[-1], rows, ldpkernels.key(i)))
    assert norms[1] == pytest.approx(math.exp(0.2 * 0.25), rel=1e-2)  # one of four is within
    assert 1.4 < min(norms[20:]) < max(norms[20:]) < 1.7


def test_a_number_of_clients_that_cannot_be_dealt_is_refused():
    with pytest.raises(ValueError, match="multiple of the 4 that are trained"):
        mean_of(CANDIDATES[0], np.zeros((4, D)), 41, ldpkernels.key(0))


def test_shrinking():
    mean = np.array([3.0, 4.0])
    assert shrunk(mean, 0.0).tolist() == [3.0, 4.0]
    assert shrunk(mean, 12.5).tolist() == [1.5, 2.0]
    assert shrunk(mean, 30.0).tolist() == [0.0, 0.0]
    assert shrunk(np.zeros(2), 1.0).tolist() == [0.0, 0.0]
