# SPDX-License-Identifier: Apache-2.0
# Rounds of random size: the total holds in the smallest that is to be expected, and a part of delta pays for smaller.
import math
from fractions import Fraction

import pytest

import ldpkernels
from ldpkernels.accounting import shuffle_epsilon
from ldpkernels.planning.setting import Setting
from ldpkernels.planning.turnout import largest, population, smallest


def below(m, trials, p):
    """P(fewer than m of them), exactly."""
    p = Fraction(p)
    return sum(math.comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(m))


@pytest.mark.parametrize(("trials", "p"), [(1, 0.5), (7, 0.3), (200, 0.1), (400, 0.5), (150, 0.99)])
@pytest.mark.parametrize("tail", [0.3, 1e-3, 1e-7, 1e-20])
def test_tails_are_exact(trials, p, tail):
    m = smallest(trials, p, tail)
    assert below(m, trials, p) <= Fraction(tail) < below(m + 1, trials, p) * Fraction(1 + 1e-5)
    most = largest(trials, p, tail)
    assert 1 - below(most + 1, trials, p) <= Fraction(tail)


def test_of_more_than_can_be_listed_it_is_chernoffs_bound():
    assert 0.99e12 < smallest(10**13, 0.1, 1e-9) < 1e12 < largest(10**13, 0.1, 1e-9) < 1.01e12
    assert smallest(population(500, 1e-9), 1e-9, 1e-7) == 388
    assert smallest(5, 1.0, 1e-9) == largest(5, 1.0, 1e-9) == 5


# (clients on average, of how many, a round that comes) of which the total used to be 9.64, 8.53 for 8
SMALL = [(20, 200, 15), (100, 1000, 90)]
HIDDEN = {"rounds": 2, "weights": 10, "radius": 0.1, "norm": 0.3}


@pytest.mark.parametrize(("clients", "of", "came"), SMALL)
def test_a_small_round_keeps_the_total(clients, of, came):
    one = next(c for c in plan(clients, clients / of) if c.name == "two-point")
    sure, setting = one.setting.sure, one.setting
    assert setting.population == of
    assert sure < came
    for n in (sure, came):
        assert shuffle_epsilon(one.law, n, d=10, rounds=2, delta=setting.kept_delta).epsilon <= 8.0
    assert shuffle_epsilon(plan(clients, 1.0)[0].law, came, d=10, rounds=2).epsilon > 8.0  # what it was
    assert 2 * below(sure, of, clients / of) + Fraction(setting.kept_delta) <= Fraction(1e-5)
    assert one.guarantee.delta == pytest.approx(1e-5, rel=1e-12)
    assert f"at least {sure} clients each, but with a probability of 1e-06, which is a part of delta" in str(one)


def plan(clients, participation, trust="shuffled", **other):
    return ldpkernels.plan(8.0, clients=clients, participation=participation, trust=trust, **HIDDEN, **other)


def test_secure_sums_open_with_those_who_come():
    """Half of them fell below `law.clients`; and a round of more than `clients` was refused by `decode`."""
    one = plan(100, 0.1, "secure-aggregation")[0]
    setting = one.setting
    assert one.law.clients == setting.sure < 80
    assert setting.opened == setting.sure + 1
    assert below(one.law.clients, 1000, 0.1) < 1e-6
    assert one.law.invited > 130
    assert 1 - below(one.law.invited, 1000, 0.1) < 1e-6


def test_at_least_and_threshold_are_enforced_by_whoever_serves():
    for trust, given in (("shuffled", {"at_least": 80}), ("secure-aggregation", {"threshold": 81, "invited": 150})):
        one = plan(100, 0.1, trust, **given)[0]
        assert (one.setting.sure, one.setting.excluded) == (80, 0)
        assert one.guarantee.delta == 1e-5
        assert "rounds of fewer than 80 honest clients are dropped" in str(one)
    assert (one.law.clients, one.law.invited) == (80, 150)


def test_counts_that_contradict_each_other_are_refused():
    setting = {"epsilon": 8.0, "delta": 1e-5, "clients": 100, "trust": "secure-aggregation", **HIDDEN}
    for wrong, message in (
        ({"at_least": 101}, "at_least = 101 is more than the clients = 100"),
        ({"invited": 99}, "invited = 99 is less than the clients = 100"),
        ({"invited": 120, "threshold": 121}, "or than the threshold = 121"),
        ({"threshold": 1}, "threshold = 1 is not a whole number of 2 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            Setting(**setting, **wrong)
    assert Setting(**setting, at_least=40).of_clients(10).at_least == 400
