# SPDX-License-Identifier: Apache-2.0
"""What can be refused is refused before anything is spent, by all three drivers and their commands."""

import dataclasses

import pytest
import torch
from torch import nn

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.accounting import CENTRAL, GaussianEvent, Ledger
from ldpkernels.accounting.ledger import recorded
from ldpkernels.federated import data, han_xue, han_xue_privacy, ldp_fed, ldp_fl, networks, runs, training
from ldpkernels.federated.dp_gan import Recipe
from ldpkernels.federated.training import Local
from ldpkernels.federated.workers import WorkerError, Workers
from tests.federated import crews

FL = ldp_fl.Config(1.0, C=0.0, R=0.5, local=Local(batch=3))
FED = ldp_fed.Config(rounds=4, cycles=2, local=Local(batch=3))


def federation(clients=3):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(clients * 6, 4, generator=generator), torch.randint(3, (clients * 6,), generator=generator)
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    return network, training.clients_of(x, y, list(torch.arange(clients * 6).split(6)), ldpkernels.key(1))


def paid(driver, state, network, clients, config, ledger, **options):
    """A round, for which a ledger is asked as users do."""

    def spend(*turn):
        ledger.spend(turn[0].event(config) if turn else ldp_fl.event(config))

    return driver.round_(state, clients, network, config, before_upload=spend, **options)


def refused(message, driver, state, network, clients, config, **options):
    """Nothing is in the ledger after the refusal, and after a round that is not refused something is."""
    ledger = Ledger(None, epsilon=1e99, delta=1e-5)
    with pytest.raises((ValueError, OverflowError, WorkerError), match=message):
        paid(driver, state, network, clients, config, ledger, **options)
    assert ledger.epsilon == 0
    usual = FL if driver is ldp_fl else FED
    paid(driver, driver.init(network, usual), network, clients, usual, ledger)
    assert ledger.epsilon > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"R": -1.0}, r"R=-1\.0 must be finite and at least 0"),
        ({"R": 1e39}, "exceeds float32: use a smaller range"),
        ({"R": {"0": 0.5}}, "R names no range for '2.weight'"),
    ],
)
def test_ranges_that_a_later_round_came_to(changes, message):
    network, clients = federation()
    state = dataclasses.replace(ldp_fl.init(network, FL), round=3, **changes)
    refused(message, ldp_fl, state, network, clients, FL)


def test_ranges_of_which_no_next_ones_can_be_made():
    network, clients = federation()
    adaptive = dataclasses.replace(FL, C=None, R=None, adaptive=True)
    state = dataclasses.replace(ldp_fl.init(network, adaptive), R={"0.weight": 1, "0.bias": 1, "2": 1})
    refused("previous has no range for layer '0'", ldp_fl, state, network, clients, adaptive)


def test_workers_that_hold_other_clients_or_were_closed():
    network, clients = federation()
    others = crews.crew(network, federation()[1])
    with Workers(1, training.Shared(network, clients)) as closed:
        pass
    for driver, config in ((ldp_fl, FL), (ldp_fed, FED)):
        config = dataclasses.replace(config, local=Local(batch=3, together=False))
        state = driver.init(network, config)
        refused("started with another network or with other", driver, state, network, clients, config, workers=others)
        refused("workers were closed", driver, state, network, clients, config, workers=closed)


@pytest.mark.parametrize("chosen", [None, 1])
def test_a_client_without_a_budget_of_its_own(chosen):
    """Selected or not: the first round looks at all."""
    network, clients = federation()
    config = dataclasses.replace(FED, alpha={0: 1.0, 1: 1.0}, select=chosen)
    refused("no budget for client 2", ldp_fed, ldp_fed.init(network, config), network, clients, config)


def test_uploads_whose_sum_may_not_fit():
    network, clients = federation()
    config = dataclasses.replace(FED, c=4.0, rho=18, alpha=1.0)
    state = ldp_fed.init(network, config)
    refused("sum of 3 uploads may not fit 64 bits", ldp_fed, state, network, clients, config)
    weighed = [c._replace(data=(c.data[0][: 6 - c.id], c.data[1][: 6 - c.id])) for c in clients]  # a sum for each
    ldp_fed.round_(state, weighed, network, dataclasses.replace(config, weigh="examples"))


def test_a_turn_whose_noise_would_be_cut_off_is_refused_before_the_first():
    network, _ = federation()
    config = dataclasses.replace(FED, c=4.0, rho=18, mechanism="laplace", alpha={0: 1.0, 1: 1e-15})
    with pytest.raises(ValueError, match="laplace noise that would be cut off"):
        ldp_fed.init(network, config)


def normalised(*norm):
    return nn.Sequential(*norm[:-1], nn.Conv2d(1, 4, 8), norm[-1], nn.ReLU(), nn.Flatten(), nn.Linear(4, 10))


@pytest.mark.parametrize(
    "norm",
    [
        (nn.BatchNorm2d(4, track_running_stats=False),),
        (nn.GroupNorm(4, 4),),
        (networks.Mirrored(), nn.BatchNorm2d(4, track_running_stats=False)),
    ],
    ids=["batch", "group", "mirrored"],
)
def test_a_chain_that_cpp_refuses_trains_in_torch(norm):
    """Normalisation over images of one pixel, of batches above one."""
    network, (x, y) = normalised(*norm), (torch.randn(12, 1, 8, 8), torch.arange(12) % 10)
    clients = training.clients_of(x, y, list(torch.arange(12).split(6)), ldpkernels.key(1))
    weights = training.weights_of(network)
    assert training.chains.fits(network, weights, *clients[0].data)
    order = training.orders(clients[0], FL.local, 0)
    with pytest.raises(ValueError, match="no deviation"):
        training.chains.train(network, weights, clients[0].data, order, 3, 0.1)
    found, by_torch = (
        training.train(network, weights, clients, Local(batch=3, together=together), 0) for together in (None, False)
    )
    for (_, one), (_, other) in zip(found, by_torch, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in weights)
    uneven = dataclasses.replace(FL, local=Local(batch=5))
    refused("a batch of one example cannot be", ldp_fl, ldp_fl.init(network, FL), network, clients, uneven)


def test_a_description_that_no_checkpoint_can_hold(tmp_path):
    with pytest.raises(TypeError, match="should be called on dataclass"):
        runs.run(lambda state: pytest.fail("a round was taken"), ldp_fl.State(0, {}, 0.0, 1.0), 1, folder=tmp_path,
                 described={"network": nn.ReLU()}, progress=False)  # fmt: skip


OWN = """
import torch
from torch import nn

def labelled():
    x, y = torch.randn(66, 4), torch.arange(66) % 3
    return x[:60], y[:60], x[60:], y[60:] + 1

def linear():
    return nn.Sequential(nn.Linear(4, 3))
"""


@pytest.mark.parametrize("algorithm", [["ldp-fl", "--radius", "1"], ["ldp-fed", "--method", "basic", "--select", "3"]])
def test_a_test_label_without_an_output(algorithm, tmp_path, monkeypatch):
    (tmp_path / "my_labels.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["fl", *algorithm, "--data", "my_labels:labelled", "--model", "my_labels:linear", "--clients", "6"]
    command += ["--rounds", "1", "--quiet", "--ledger", str(tmp_path / "spent"), "--budget", "1e30"]
    with pytest.raises(SystemExit, match="test label 3 has no output: the network has 3"):
        main(command)
    ledger, rounds = recorded(tmp_path / "spent")
    assert (ledger.epsilon, len(rounds)) == (0, 0)


def parties_paid(config, models, ledger):
    """As whoever runs the parties does."""
    world = han_xue.World(data.load("digits"), config, models)
    ledger.spend(GaussianEvent(1.0, scope=CENTRAL))
    han_xue.round_(han_xue.State(), world)


@pytest.mark.parametrize(
    ("changes", "models", "message"),
    [
        ({"recipe": Recipe(steps=2, batch=8, C=1e35)}, None, "1e"),
        ({"recipe": Recipe(steps=2, batch=8, C=1e35, sound=True)}, None, "1e"),
        ({"vote_sigma": 1e300}, None, "sigma"),
        ({}, [nn.ReLU(), nn.ReLU()], "model 0 is a ReLU: a model has fit"),
    ],
)
def test_parties_are_refused_before_a_real_example_is_seen(changes, models, message):
    usual = han_xue.Config(2, Recipe(steps=2, batch=8), models=("tree",), vote_sigma=1.0)
    ledger = Ledger(None, epsilon=1e99, delta=1e-5)
    with pytest.raises((ValueError, OverflowError), match=message):
        parties_paid(dataclasses.replace(usual, **changes), models, ledger)
    assert ledger.epsilon == 0
    parties_paid(usual, None, ledger)
    assert ledger.epsilon > 0


def test_the_report_of_the_parties_is_made_before_their_run(monkeypatch):
    monkeypatch.setattr(han_xue, "round_", lambda *_, **__: pytest.fail("a turn was taken"))

    def fails(*_):
        raise ValueError("no figure")

    monkeypatch.setattr(han_xue_privacy, "report", fails)
    with pytest.raises(SystemExit, match="no figure"):
        main(["fl", "han-xue", "--parties", "2", "--steps", "2", "--models", "tree", "--workers", "1", "--quiet"])
