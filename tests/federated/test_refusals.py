# SPDX-License-Identifier: Apache-2.0
"""What no client could train with is refused before a ledger is asked; what is frozen stays as everybody has it."""

import copy

import pytest
import torch
from torch import nn

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.federated import ldp_fed, ldp_fl, networks, training
from ldpkernels.federated.training import Local
from tests.federated import crews
from tests.federated.test_federated_models import DRIVERS, clients, driver, init, mlp, refused  # noqa: F401


def images(count=3, size=6, classes=10):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count * size, 1, 28, 28, generator=generator)
    y = torch.randint(classes, (count * size,), generator=generator)
    return training.clients_of(x, y, list(torch.arange(count * size).split(size)), ldpkernels.key(1))


@pytest.mark.parametrize(("label", "at"), [(3, 1), (-1, 2), (-100, 1)])
def test_a_label_without_an_output_at_any_client(driver, label, at):  # noqa: F811
    everyone = clients()
    everyone[at].data[1][-1] = label
    refused(driver, mlp(nn.ReLU()), everyone, f"label {label} of client {at} has no output: the network has 3, for")


@pytest.mark.parametrize("driver", [name for name in DRIVERS if name != "dpsgd"])  # which refuses it altogether
def test_a_last_batch_of_one_that_cannot_be_normalised(driver):  # noqa: F811
    network = mlp(nn.BatchNorm1d(16, track_running_stats=False))
    x, y = clients(1, 21)[0].data
    uneven = training.clients_of(x, y, list(torch.arange(21).split([10, 11])), ldpkernels.key(1))
    refused(driver, network, uneven, "client 1 has 11 examples in batches of 10: take a GroupNorm", batch=10)
    module, config, state = init(driver, network, batch=8)
    module.round_(state, uneven, network, config)
    flat = mlp(nn.GroupNorm(4, 16))
    module, config, state = init(driver, flat, batch=10)
    module.round_(state, uneven, flat, config)


def frozen(network, *names):
    for name, p in network.named_parameters():
        p.requires_grad_(not name.startswith(names))
    return network


@pytest.mark.parametrize("together", [None, False, True])
def test_what_is_frozen_is_neither_trained_nor_sent(driver, together):  # noqa: F811
    network = frozen(mlp(nn.ReLU()), "0.")
    before = copy.deepcopy(network.state_dict())
    module, config, state = init(driver, network, together=together, batch=4, rate=0.5)
    assert sorted(state.weights) == ["2.bias", "2.weight"]
    after, _ = module.round_(state, clients(), network, config)
    assert sorted(after.weights) == ["2.bias", "2.weight"]
    assert any(not torch.equal(after.weights[name], w) for name, w in state.weights.items())
    assert all(torch.equal(w, before[name]) for name, w in network.state_dict().items())
    assert [p.requires_grad for p in network.parameters()] == [False, False, True, True]
    # Whoever has the frozen layers gets the same from a network of the others alone, behind what they make.
    with torch.no_grad():
        behind = [c._replace(data=(network[1](network[0](c.data[0])), c.data[1])) for c in clients()]
    alone = nn.Sequential(copy.deepcopy(network[2]))
    module, config, state = init(driver, alone, together=together, batch=4, rate=0.5)
    expected, _ = module.round_(state, behind, alone, config)
    for mine, theirs in zip(after.weights.values(), expected.weights.values(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_frozen_convolutions_train_in_torch_to_the_same_with_workers():
    network, everyone = frozen(networks.network("ldp-fl-cnn", 0), "0."), images()
    weights = training.weights_of(network)
    assert "0.weight" not in weights
    local = Local(batch=3, rate=0.1)
    crew = crews.crew(network, everyone)
    there = [w for _, w in training.train(network, weights, everyone, local, 0, workers=crew)]
    here = [w for _, w in training.train(network, weights, everyone, local, 0)]
    for a, b in zip(there, here, strict=True):
        assert a.keys() == weights.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_plan_and_its_honest_epsilon_leave_frozen_layers_out():
    network = frozen(mlp(nn.ReLU()), "0.")
    turns = ldp_fed.plan(network, ldp_fed.Config(rounds=4, cycles=1))
    assert {turn.names for turn in turns} == {("2.weight", "2.bias")}
    assert sum(turn.share for turn in turns) == 1


def test_a_network_that_is_all_frozen():
    with pytest.raises(ValueError, match="no parameter that trains: all are frozen"):
        ldp_fl.init(frozen(mlp(), "0.", "1."), ldp_fl.Config(eps=1.0, C=0.0, R=1.0))


def test_statistics_of_a_frozen_normalisation_in_eval_mode_are_constants():
    """A backbone that was trained elsewhere: nothing of it learns, and its statistics stay what everybody has."""
    network = frozen(mlp(nn.BatchNorm1d(16)), "0.", "1.")
    config = ldp_fl.Config(eps=None, C=0.0, R=1.0, local=Local(buffers="keep", batch=4))
    with pytest.raises(ValueError, match="keeps running statistics"):
        ldp_fl.init(network, config)
    network[1].eval()
    with pytest.raises(ValueError, match=r"In eval mode they are constants, which Local\(buffers='keep'\)"):
        ldp_fl.init(network, ldp_fl.Config(eps=None, C=0.0, R=1.0))
    before = copy.deepcopy(network.state_dict())
    state, _ = ldp_fl.round_(ldp_fl.init(network, config), clients(), network, config)
    assert sorted(state.weights) == ["2.bias", "2.weight"]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


OWN = """
import torch
from torch import nn

def tensors():
    x, y = torch.randn(66, 4, generator=torch.Generator().manual_seed(0)), torch.arange(66) % 3
    return x[:60], y[:60], x[60:], y[60:]

class Shifted(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3))
        self.register_buffer("shift", torch.ones(4))

def shifted():
    return Shifted()
"""


def test_the_command_line_keeps_constant_buffers(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_constants.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["fl", "ldp-fl", "--data", "my_constants:tensors", "--model", "my_constants:shifted", "--clients", "3"]
    command += ["--rounds", "1", "--radius", "1", "--quiet"]
    with pytest.raises(SystemExit, match="--buffers keep"):
        main(command)
    assert main([*command, "--buffers", "keep"]) == 0


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["ldp-fl"], 0),
        (["ldp-fl", "--uneven", "1"], 1),
        (["ldp-fed", "--method", "basic", "--rounds", "1", "--select", "2"], 0),
        (["ldp-fed", "--method", "basic", "--rounds", "1", "--select", "2", "--together", "no"], 1),
    ],
)
def test_workers_are_hired_where_clients_do_not_train_all_together(options, count, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_workers.py").write_text(OWN + "\ndef linear():\n    return nn.Sequential(nn.Linear(4, 3))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hired = []

    def counted(*arguments):
        hired.append(arguments[2])
        return crews.crew(*arguments)

    monkeypatch.setattr(training, "crew", counted)
    command = ["fl", *options, "--data", "my_workers:tensors", "--model", "my_workers:linear", "--clients", "6"]
    command += ["--batch", "2", "--workers", "2", "--quiet", "--seed", "1"]
    command += ["--rounds", "1", "--radius", "1"] if options[0] == "ldp-fl" else []
    assert main(command) == 0
    assert hired == [2] * count


def test_another_metric_would_be_l1():
    with pytest.raises(ValueError, match="metric='LINF' must be one of linf, l1"):
        ldp_fed.Config(metric="LINF")


def test_without_noise_the_epsilon_is_infinite():
    assert ldp_fl.honest_epsilon(ldp_fl.Config(None), 100, 3) == float("inf")
    assert ldp_fed.honest_epsilon(mlp(), ldp_fed.Config(None, rounds=2, cycles=1), 2) == float("inf")


def test_parameters_that_are_not_finite(driver):  # noqa: F811
    network = mlp(nn.ReLU())
    with torch.no_grad():
        network[0].bias[0] = float("nan")
    with pytest.raises(ValueError, match=r"parameter '0.bias' holds NaN or infinity"):
        init(driver, network)


@pytest.mark.parametrize("together", [True, False])
def test_training_that_diverges_is_told(together):
    network = mlp(nn.ReLU())
    weights = training.weights_of(network)
    with pytest.warns(UserWarning, match="the weights of client 0 are not finite after its training"):
        list(training.train(network, weights, clients(1), Local(epochs=9, rate=1e30, together=together), 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("upload", ["weights", "updates"])
def test_a_model_keeps_its_dtype_from_round_to_round(dtype, upload):
    network = mlp(nn.ReLU()).to(dtype)
    everyone = [c._replace(data=(c.data[0].to(dtype), c.data[1])) for c in clients()]
    config = ldp_fl.Config(4.0, 0.0, 0.5, upload=upload, local=Local(batch=8, rate=0.1, together=False))
    state = ldp_fl.init(network, config)
    for _ in range(2):
        state, _ = ldp_fl.round_(state, everyone, network, config)
    assert {w.dtype for w in state.weights.values()} == {dtype}


def test_a_test_label_without_an_output():
    network = mlp(nn.ReLU())
    x, y = clients(1, 6)[0].data
    with pytest.raises(ValueError, match="test label 3 has no output: the network has 3"):
        training.accuracy(network, training.weights_of(network), x, y.clamp(min=3))
