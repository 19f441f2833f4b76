# SPDX-License-Identifier: Apache-2.0
"""Means weighed by numbers of examples, and clients that fail: both drivers, and what LDP-Fed is compared with."""

import json
from fractions import Fraction

import pytest
import torch
from torch import nn

import ldpkernels
from benchmarks.papers import comparisons
from ldpkernels.__main__ import main
from ldpkernels.federated import ldp_fed, ldp_fl, training
from ldpkernels.federated.cldp_upload import Upload, terms_of
from ldpkernels.federated.selection import remaining, select
from ldpkernels.federated.training import NOISE, Local

SIZES = [3, 5, 3, 8, 5, 1]


def federation(sizes):
    torch.manual_seed(0)
    x, y = torch.randn(sum(sizes), 4), torch.randint(3, (sum(sizes),))
    network = nn.Linear(4, 3)
    clients = training.clients_of(x, y, list(torch.arange(sum(sizes)).split(sizes)), ldpkernels.key(2))
    return network, clients


@pytest.mark.parametrize("eps", [None, 2.0])
def test_a_weighed_mean_is_that_of_all_examples(eps):
    """A literal transcription: each report is decoded on its own, and counted once for each example."""
    network, clients = federation(SIZES)
    config = ldp_fl.Config(eps, C=0.0, R=0.5, local=Local(batch=2), weigh="examples")
    state = ldp_fl.init(network, config)
    after, _ = ldp_fl.round_(state, clients, network, config)
    expected = {name: torch.zeros(w.shape, dtype=torch.float64) for name, w in state.weights.items()}
    for client, weights in training.train(network, state.weights, clients, config.local, 0):
        if eps is not None:
            one = ldpkernels.Aggregate()
            one.add(ldpkernels.report(weights, 0.0, 0.5, eps, generator=client.round_key(0, NOISE)))
            weights = one.mean()
        for name in expected:
            expected[name] += weights[name].double() * len(client.data[1]) / sum(SIZES)
    for name, value in after.weights.items():
        torch.testing.assert_close(value, expected[name].float())
    alike, _ = ldp_fl.round_(state, clients, network, ldp_fl.Config(eps, C=0.0, R=0.5, local=Local(batch=2)))
    assert any(not torch.allclose(alike.weights[name], after.weights[name]) for name in expected)


def test_clients_that_fail_are_left_out_of_the_mean():
    network, clients = federation([4] * 50)
    config = ldp_fl.Config(None, C=0.0, R=0.5, local=Local(batch=2), dropout=0.4)
    state = ldp_fl.init(network, config)
    after, row = ldp_fl.round_(state, clients, network, config)
    again, _ = ldp_fl.round_(state, clients, network, config)
    assert (
        15 <= row["clients"] <= 45
    )  # 30 expected, deviation 3.5: outside with probability 5e-5, and the seed is fixed
    assert all(torch.equal(after.weights[n], again.weights[n]) for n in after.weights)
    survivors = remaining(clients, 0.4, 0, 0)
    assert len(survivors) == row["clients"]
    plain = ldp_fl.Config(None, C=0.0, R=0.5, local=Local(batch=2))
    alone, _ = ldp_fl.round_(state, survivors, network, plain)
    assert all(torch.equal(after.weights[n], alone.weights[n]) for n in after.weights)


def test_a_round_in_which_all_fail_changes_nothing():
    network, clients = federation([4, 4])
    config = ldp_fl.Config(1.0, C=0.0, R=0.5, dropout=0.99)
    state, paid = ldp_fl.init(network, config), []
    after, row = ldp_fl.round_(state, clients, network, config, before_upload=lambda: paid.append(1))
    assert (after.round, row["clients"], paid) == (1, 0, [])
    assert all(torch.equal(after.weights[n], state.weights[n]) for n in after.weights)


LOCAL = Local(batch=2, rate=0.3)


@pytest.mark.parametrize("alpha", [None, 1e-3])
def test_ldp_fed_weighs_uploads_of_integers(alpha):
    """A literal transcription in rationals: each upload counts once for each example of its client."""
    network, clients = federation(SIZES)
    config = ldp_fed.Config(alpha=alpha, rounds=1, method="basic", rho=4, local=LOCAL, weigh="examples")
    state = ldp_fed.init(network, config)
    after, row = ldp_fed.round_(state, clients, network, config)
    (turn,) = ldp_fed.plan(network, config)
    terms = terms_of({n: state.weights[n].shape for n in turn.names}, config.c, config.rho, config.mechanism)
    totals = [Fraction(0)] * 15
    for client, weights in training.train(network, state.weights, clients, LOCAL, 0):
        update = ldp_fed.difference(weights, state.weights, turn.names)
        if alpha is None:
            sent = [Fraction(v) for n in turn.names for v in update[n].flatten().tolist()]
        else:
            upload = Upload.of(update, terms, turn.alpha_of_value(alpha, "linf"), client.round_key(0, NOISE))
            sent = [Fraction(v, 10**4) for v in upload.integers.tolist()]
        totals = [t + len(client.data[1]) * v for t, v in zip(totals, sent, strict=True)]
    expected = [float(t / sum(SIZES)) for t in totals]
    before = torch.cat([state.weights[n].flatten() for n in turn.names]).double()
    moved = torch.cat([after.weights[n].flatten() for n in turn.names])
    torch.testing.assert_close(moved, (before + torch.tensor(expected, dtype=torch.float64)).float())
    assert row["clients"] == 6
    alike, _ = ldp_fed.round_(state, clients, network, ldp_fed.Config(alpha, 1, "basic", rho=4, local=LOCAL))
    assert not torch.allclose(torch.cat([alike.weights[n].flatten() for n in turn.names]), moved)


def test_ldp_fed_spends_for_clients_that_fail():
    """Those that were not selected have uploaded too, so that their part of alpha is gone whoever fails."""
    network, clients = federation([4] * 40)
    config = ldp_fed.Config(alpha=1.0, rounds=4, cycles=2, select=30, local=LOCAL, dropout=0.4)
    state, paid = ldp_fed.init(network, config), []
    after, row = ldp_fed.round_(state, clients, network, config, before_upload=paid.append)
    survivors = remaining(select(clients, 30, 0, 0), 0.4, 0, 0)
    assert 8 <= len(survivors) == row["clients"] <= 28  # 18 expected, deviation 2.7
    alone, _ = ldp_fed.round_(state, survivors, network, ldp_fed.Config(alpha=1.0, rounds=4, cycles=2, local=LOCAL))
    assert all(torch.equal(after.weights[n], alone.weights[n]) for n in after.weights)
    everyone = ldp_fed.Config(alpha=1.0, rounds=4, cycles=2, select=2, local=LOCAL, dropout=0.999)
    same, row = ldp_fed.round_(state, clients, network, everyone, before_upload=paid.append)
    assert (same.round, row["clients"], len(paid)) == (1, 0, 2)
    assert all(torch.equal(same.weights[n], state.weights[n]) for n in same.weights)


@pytest.mark.parametrize(("changes", "message"), [({"weigh": "size"}, "weigh='size'"), ({"dropout": 1.0}, "dropout=1")])
def test_refusals(changes, message):
    for config in (lambda: ldp_fl.Config(1.0, C=0.0, R=0.5, **changes), lambda: ldp_fed.Config(**changes)):
        with pytest.raises(ValueError, match=message):
            config()


def test_a_client_without_examples_weighs_nothing_and_is_refused_before_its_round():
    network, clients = federation([4, 0, 4])
    paid = []
    fl = ldp_fl.Config(1.0, C=0.0, R=0.5, weigh="examples", fraction=0.1, seed=1)
    fed = ldp_fed.Config(rounds=2, cycles=1, weigh="examples", select=1, seed=1)
    assert select(clients, 1, 1, 0)[0].id != 1
    for driver, config in ((ldp_fed, fed), (ldp_fl, fl)):
        with pytest.raises(ValueError, match="client 1 has no examples, and weigh='examples'"):
            driver.round_(
                driver.init(network, config), clients, network, config, before_upload=lambda *_: paid.append(1)
            )
    assert not paid


def test_secure_sums_without_room_are_refused():
    network, clients = federation([200, 200])
    crowded = comparisons.Config("smc", rho=19, local=Local(batch=2, rate=0.3))
    with pytest.raises(ValueError, match="rho=19 leaves no room for a sum of 2 updates in 63 bits: lower it"):
        comparisons.round_(comparisons.init(network, crowded, clients), clients, network, crowded)


def test_the_command_line_of_ldp_fed(capsys):
    command = ["fl", "ldp-fed", "--clients", "30", "--select", "20", "--rounds", "4", "--cycles", "2", "--workers", "1"]
    assert main([*command, "--quiet", "--json", "--uneven", "1", "--weigh", "examples", "--dropout", ".3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["config"]["weigh"], found["config"]["dropout"]) == ("examples", 0.3)
    assert all(5 <= row["clients"] < 20 for row in found["rounds"])
