# SPDX-License-Identifier: Apache-2.0
# The total is never above its target; more to spend is never worse; and whatever is asked has an answer or a reason.
import math
import re

import numpy as np
import pytest

import ldpkernels
from ldpkernels.accounting import GaussianEvent, PureEvent, SampledGaussianEvent, ShuffledEvent, composed_epsilon
from ldpkernels.laws.registry import NAMES as WEIGHTWISE
from ldpkernels.planning import TRUSTS
from ldpkernels.planning.calibration import index_below, number_at, strongest
from ldpkernels.planning.setting import HIDING


def test_parameters_are_the_numbers_of_five_digits():
    rng = np.random.default_rng(0)
    for value in 10.0 ** rng.uniform(-300, 300, 2000):
        index = index_below(value)
        assert number_at(index) <= value < number_at(index + 1)
        assert float(f"{number_at(index):.4e}") == number_at(index)
    assert [index_below(number_at(i)) for i in (-90_001, -1, 0, 1, 90_000)] == [-90_001, -1, 0, 1, 90_000]


def test_the_strongest_is_the_last_that_fits():
    rng = np.random.default_rng(1)
    for _ in range(300):
        power, factor = rng.uniform(0.3, 3), 10 ** rng.uniform(-6, 6)
        target, near = 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-12, 12)

        def epsilon(x, factor=factor, power=power):
            return factor * x**power

        found = strongest(epsilon, target, 1e-30, 1e30, near)
        assert epsilon(found) <= target < epsilon(number_at(index_below(found) + 1))
        found = strongest(lambda x, e=epsilon: e(1 / x), target, 1e30, 1e-30, near)
        assert epsilon(1 / found) <= target < epsilon(1 / number_at(index_below(found) - 1))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -1.0])
def test_no_number_is_no_permission(broken):
    assert strongest(lambda x: broken, 1.0, 1e-9, 500.0) is None
    found = strongest(lambda x: x if x < 0.5 else broken, 1.0, 1e-9, 500.0)
    assert found == 0.49999


def recomputed(one):
    """The total by the event of the candidate's law, composed over rounds, and over weights that report one by one."""
    s, delta = one.setting, one.setting.kept_delta
    if one.law is None:
        return recomputed_by_hand(one)
    event, times = one.law.event, s.rounds * (s.weights if one.name in WEIGHTWISE else 1)
    total = composed_epsilon([(event, times)], delta, "exact" if delta else "basic")
    if s.trust in HIDING and isinstance(event, PureEvent) and total != one.epsilon:  # which says what is enough
        total = min(total, composed_epsilon([(ShuffledEvent(event.eps, s.sure, event.kind), times)], delta))
    return total


def recomputed_by_hand(one):
    """Of clients that a server draws in secret."""
    s = one.setting
    event = (
        SampledGaussianEvent(one.parameter, s.participation) if s.participation < 1 else GaussianEvent(one.parameter)
    )
    return composed_epsilon([(event, s.rounds)], s.delta)


def random_settings(n, first_seed, most_positions, most_clients, trusts, sampled):
    """Log-uniform in everything."""
    for seed in range(first_seed, first_seed + n):
        rng = np.random.default_rng(seed)

        def whole(most, rng=rng):
            return int(10 ** rng.uniform(0, math.log10(most)))

        trust = TRUSTS[rng.choice(4, p=trusts)]
        drawn = trust == "central" and rng.random() < sampled
        yield {
            "epsilon": 10 ** rng.uniform(-2, 2),
            "delta": 0.0 if trust == "local" and rng.random() < 0.1 else 10 ** rng.uniform(-10, -2),
            "rounds": whole(1000 if trust in ("local", "central") else 100),
            "clients": whole(most_clients),
            "weights": whole(10**7 if trust in ("local", "central") else most_positions),
            "trust": trust,
            "radius": 10 ** rng.uniform(-3, 1),
            "norm": 10 ** rng.uniform(-3, 1) if rng.random() < 0.7 else None,
            "participation": 10 ** rng.uniform(-3, 0) if drawn else 1.0,
        }


def never_above(n, *law, sampled):
    answers = 0
    for setting in random_settings(n, *law, sampled):
        epsilon, delta = setting.pop("epsilon"), setting.pop("delta")
        for one in ldpkernels.plan(epsilon, delta, **setting):
            assert one.epsilon <= epsilon, (one, setting)
            assert recomputed(one) == one.epsilon if one.law else recomputed(one) <= epsilon, (one, setting)
            assert one.expected_error > 0
            answers += 1
    return answers


def test_the_total_is_never_above_its_target():
    assert never_above(16, 0, 30, 60, (0.5, 0.08, 0.08, 0.34), sampled=0.0) > 25


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(100))
def test_the_total_is_never_above_its_target_in_10000_settings(part):
    trusts = (0.55, 0.04, 0.04, 0.37)  # of the dear ones fewer
    assert never_above(100, 10_000 + 100 * part, 1000, 10**5, trusts, sampled=0.02) > 150


BASE = {"rounds": 8, "clients": 500, "weights": 40, "radius": 0.3, "norm": 1.0}


FEW = 60  # clients, where reports are mixed: nothing else makes a total dear


def errors(trust, epsilon=3.0, **changed):
    return {one.name: one.expected_error for one in ldpkernels.plan(epsilon, trust=trust, **{**BASE, **changed})}


VALUES = {
    "epsilon": [0.2, 0.4, 0.41, 1.0, 1.0001, 3.0, 8.0, 8.1, 20.0, 60.0, 61.0, 200.0, 900.0, 1e4],
    "rounds": [60, 30, 29, 8, 7, 2, 1],
    "weights": [900, 300, 299, 40, 39, 2, 1],
    "clients": [2, 30, 31, 500, 501, 20_000, 10**7],
    "delta": [1e-12, 1e-9, 1e-5, 1.01e-5, 1e-2],
}


def never_worse(trust, name, values, **base):
    """For every mechanism, and so for the best of them."""
    before: dict[str, float] = {}
    for value in values:
        now = errors(trust, **{**base, name: value})
        worse = {one: (before[one], error) for one, error in now.items() if error > before.get(one, math.inf)}
        assert not worse, (name, value)
        assert not before or min(now.values()) <= min(before.values())
        before = now


@pytest.mark.parametrize("trust", ["local", "central"])
@pytest.mark.parametrize("name", VALUES)
def test_more_to_spend_is_never_worse(trust, name):
    """More epsilon, delta or clients, fewer rounds or weights."""
    never_worse(trust, name, VALUES[name])


@pytest.mark.parametrize("name", ["epsilon", "clients"])
def test_more_to_spend_is_never_worse_where_reports_are_mixed(name):
    never_worse("shuffled", name, VALUES[name][1:3], clients=FEW)


@pytest.mark.exhaustive
@pytest.mark.parametrize("trust", ["shuffled", "secure-aggregation"])
@pytest.mark.parametrize("name", VALUES)
def test_more_to_spend_is_never_worse_at_all_values(trust, name):
    never_worse(trust, name, VALUES[name])


@pytest.mark.parametrize("epsilon", [4.0, *(pytest.param(e, marks=pytest.mark.exhaustive) for e in (0.5, 40.0))])
def test_more_trust_is_never_worse(epsilon):
    best = [min(errors(trust, epsilon, clients=FEW).values()) for trust in ("local", "shuffled", "central")]
    assert best == sorted(best, reverse=True)


REFUSED = [
    ({"epsilon": 0.0}, "epsilon = 0.0 is not a finite number above 0"),
    ({"epsilon": math.nan}, "epsilon = nan"),
    ({"epsilon": math.inf}, "epsilon = inf"),
    ({"epsilon": "8"}, "epsilon = '8'"),
    ({"delta": 1.0}, "delta = 1.0"),
    ({"delta": 0.0, "trust": "central"}, "delta = 0.0"),
    ({"delta": 1e-301}, "delta = 1e-301 is below"),
    ({"rounds": 0}, "rounds = 0 is not a whole number of 1 or more"),
    ({"rounds": 2.5}, "rounds = 2.5"),
    ({"clients": 0}, "clients = 0"),
    ({"clients": -3}, "clients = -3"),
    ({"weights": 0}, "weights = 0"),
    ({"weights": 10**18, "rounds": 10**3}, "weights * rounds"),
    ({"trust": "nobody"}, "trust = 'nobody' is unknown: choose one of local, shuffled"),
    ({"trust": None}, "trust = None"),
    ({"radius": math.nan}, "radius = nan"),
    ({"radius": 0.0}, "radius = 0.0"),
    ({"radius": 1e-40}, "radius = 1e-40 is outside"),
    ({"norm": math.inf}, "norm = inf"),
    ({"norm": True}, "norm = True"),
    ({"radius": None, "norm": None}, "radius and norm are both missing"),
    ({"participation": 0.0}, "participation = 0.0"),
    ({"participation": 1.5}, "participation = 1.5"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_refused(changed, message):
    setting = {"epsilon": 3.0, "trust": "local", **BASE, **changed}
    with pytest.raises(ValueError, match=re.escape(message)):
        ldpkernels.plan(setting.pop("epsilon"), **setting)


ABSURD = [
    {"epsilon": 1e-99},
    {"epsilon": 1e-9, "delta": 1e-300},
    {"epsilon": 1e6},
    {"epsilon": 1e300},
    {"clients": 10**18},
    {"clients": 1},
    {"weights": 1, "rounds": 1},
    {"weights": 10**12},
    {"rounds": 10**9},
    {"delta": 0.999},
    {"delta": 1e-250},
    {"radius": 1e-30, "norm": None},
    {"radius": None, "norm": 1e30},
    {"radius": 1e30, "norm": 1e-30},
    {"participation": 1e-9},
]


def dear(trust, changed):
    if trust in ("shuffled", "secure-aggregation"):
        return changed != {"clients": 1}
    return trust == "central" and "participation" in changed


CASES = [
    pytest.param(trust, changed, marks=pytest.mark.exhaustive if dear(trust, changed) else [])
    for trust in TRUSTS
    for changed in ABSURD
]


@pytest.mark.parametrize(("trust", "changed"), CASES, ids=str)
def test_absurd_settings_have_an_answer_or_a_reason(trust, changed):
    setting = {"epsilon": 3.0, **BASE, **changed}
    epsilon = setting.pop("epsilon")
    found = ldpkernels.plan(epsilon, trust=trust, **setting)
    for one in found:
        assert one.epsilon <= epsilon
        assert 0 < one.expected_error < math.inf
        assert one.bytes > 0
        assert str(one)
        assert one.to_dict()["noise_to_signal"] == one.noise_to_signal
    assert found or found.left_out
    assert str(found).startswith(("Use ", "No mechanism "))


def test_the_smallest_and_the_largest_totals_are_planned_or_refused_by_name():
    setting = {"rounds": 1, "clients": 100, "weights": 10, "norm": 1.0}
    for trust in ("local", "central"):
        for epsilon in (1e-100, 1e300):
            assert all(one.epsilon <= epsilon for one in ldpkernels.plan(epsilon, trust=trust, **setting))
        with pytest.raises(ValueError, match=r"epsilon = 5e-324 is below 1e-100"):
            ldpkernels.plan(5e-324, trust=trust, **setting)
