# SPDX-License-Identifier: Apache-2.0
"""LDP-Fed's plan: budgets that add up exactly, and which layer is sent when."""

from fractions import Fraction

import pytest

pytest.importorskip("torch")

from ldpkernels.federated import ldp_fed, networks
from ldpkernels.federated.ldp_fed import Config


@pytest.mark.parametrize("method", ldp_fed.METHODS)
@pytest.mark.parametrize(("rounds", "cycles"), [(80, 5), (80, 16), (81, 7), (17, 1)])
@pytest.mark.parametrize("alpha", [1.0, 0.1, 1e-9 / 3])
def test_the_plans_budgets_add_up_to_alpha_exactly(method, rounds, cycles, alpha):
    network = networks.ldp_fed_cnn()
    turns = ldp_fed.plan(network, Config(alpha=alpha, rounds=rounds, method=method, cycles=cycles))
    assert len(turns) == rounds
    assert sum(Fraction(alpha) * turn.share for turn in turns) == Fraction(alpha)
    # What the samplers get, all of it, is never more than that, and short of it by roundings of a double only.
    spent = sum(turn.size * Fraction(turn.alpha_of_value(alpha, "linf")) for turn in turns)
    assert 1 - Fraction(1, 2**50) < spent / Fraction(alpha) <= 1
    by_l1 = sum(Fraction(turn.alpha_of_value(alpha, "l1")) for turn in turns)
    assert 1 - Fraction(1, 2**50) < by_l1 / Fraction(alpha) <= 1
    assert {name for turn in turns for name in turn.names} == {name for name, _ in network.named_parameters()}


def test_which_layer_is_sent_when():
    network = networks.ldp_fed_cnn()

    def layers(method, **options):
        return [ldp_fed.layer_name(turn) for turn in ldp_fed.plan(network, Config(method=method, **options))]

    assert layers("basic") == ["all"] * 80
    assert layers("single-layer") == [layer for layer in "95410" for _ in range(16)]
    assert layers("single-layer", rounds=7) == ["9", "9", "5", "5", "4", "1", "0"]
    assert layers("alpha-cldp-fed", cycles=5) == 5 * (["9"] * 7 + ["5"] + ["4"] * 6 + ["1", "0"])
    assert layers("alpha-cldp-fed", cycles=16) == list("95410") * 16
    with pytest.raises(ValueError, match="too few for 5 layers"):
        ldp_fed.init(network, Config(cycles=17))


def test_more_budget_for_each_value_than_in_basic():
    network = networks.ldp_fed_cnn()
    least = {
        method: min(t.alpha_of_value(1.0, "linf") for t in ldp_fed.plan(network, Config(method=method, cycles=1)))
        for method in ldp_fed.METHODS
    }
    assert least["basic"] == pytest.approx(1 / (80 * 29034))
    assert least["single-layer"] == pytest.approx(1 / (80 * 15690))
    assert least["alpha-cldp-fed"] == pytest.approx(1 / (42 * 29034))
