# SPDX-License-Identifier: Apache-2.0
"""What a cell of the papers' tables keeps is what ran, on data that is small, and by which algorithm."""

import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import ldpkernels
from benchmarks.budget import means
from benchmarks.papers import (
    cifar_networks,
    han_xue_tables,
    han_xue_tries,
    ldp_fed_runs,
    ldp_fl_others,
    ldp_fl_plan,
    ldp_fl_runs,
)
from ldpkernels.federated import data, ldp_fed, networks, training
from ldpkernels.federated import han_xue as parties_driver
from ldpkernels.federated import ldp_fl as algorithm
from ldpkernels.federated import workers as processes
from ldpkernels.federated.dp_gan import Recipe
from tests.federated import crews

TINY = ldp_fl_plan.Setting("mnist", 1.0, 4, 3, 0.075, "updates")


@pytest.fixture
def tiny(monkeypatch):
    """MNIST in name: a few images of noise."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 1, 28, 28, generator=generator), torch.randint(10, (60,), generator=generator)
    monkeypatch.setattr(ldp_fl_runs, "dataset_of", lambda name, root: data.Dataset(name, x[:40], y[:40], x, y, 10))
    monkeypatch.setattr(training, "crew", crews.crew)  # tests/federated/test_workers.py has the processes


def test_a_cell_keeps_the_configuration_that_the_rounds_got(tiny, tmp_path, monkeypatch):
    got, round_ = [], algorithm.round_

    def spy(state, clients, network, config, **options):
        got.append((config, len(clients)))
        return round_(state, clients, network, config, **options)

    monkeypatch.setattr(algorithm, "round_", spy)
    cell = ldp_fl_runs.compute(TINY, "", 1, tmp_path / "unfinished")
    assert len(got) == cell["ran"]["rounds"] == 3
    assert all((asdict(config), n) == (cell["ran"]["config"], cell["ran"]["clients"]) for config, n in got)


def test_few_clients_send_the_reports_of_all_whom_the_round_selects(tiny, tmp_path, monkeypatch):
    trained, keys = [], []
    train, perturb = training.train, algorithm.data_perturbation

    def counted(network, weights, clients, *arguments, **options):
        trained.append(len(clients))
        return train(network, weights, clients, *arguments, **options)

    def told(weights, state, config, key):
        keys.append(key.words)
        return perturb(weights, state, config, key)

    monkeypatch.setattr(training, "train", counted)
    monkeypatch.setattr(algorithm, "data_perturbation", told)
    few = replace(TINY, clients=8, fraction=0.5, trained=2, rounds=1)
    cell = ldp_fl_runs.compute(few, "", 1, tmp_path)
    assert trained == [2]
    assert cell["ran"]["reports of a model"] == 2
    assert len(set(keys)) == 4 + 1  # two of each client's, and that of the check before the first round


def test_clients_own_ranges_are_those_of_their_weights(tiny, tmp_path, monkeypatch):
    """Corollary 1. Where nothing is perturbed, it is the run without noise."""
    got = []
    monkeypatch.setattr(ldpkernels, "perturb_", lambda w, C, R, eps, generator: got.append((w, C, R, generator.words)))
    own = replace(TINY, clients=8, radius=None, upload="weights", adapts="own", trained=4)
    cell = ldp_fl_runs.compute(own, "", 1, tmp_path / "own")
    assert cell["accuracy"] == ldp_fl_runs.compute(own.twin, "", 1, tmp_path / "twin")["accuracy"]
    assert cell["honest_eps"] is None
    assert len(got) == len({words for *_, words in got}) == 3 * 4 * 2  # rounds, clients, and those whom each stands for
    assert all(ldpkernels.ranges(w) == (C, R) for w, C, R, _ in got)


def test_clients_that_send_all_layers_keep_none_of_their_own(monkeypatch):
    monkeypatch.setattr(ldp_fed_runs, "CLIENTS", 3)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 1, 8, 8, generator=generator), torch.randint(10, (30,), generator=generator)
    network = networks.network("digits-mlp", 0)
    clients = training.clients_of(x, y, list(torch.arange(30).split(10)), ldpkernels.key(0))
    for method, same in (("basic", True), ("single-layer", False)):
        config = ldp_fed.Config(1.0, 4, method, trains="all", select=2)
        state = ldp_fed.init(network, config)
        own = ldp_fed.State(0, ldp_fed_runs.stacked([state.weights] * 4))
        crew = crews.crew(network, clients, 1)
        for _ in range(2):
            state, _ = ldp_fed.round_(state, clients, network, config)
            own, _ = ldp_fed_runs.keeping(own, clients, network, config, crew)
        mine = [{name: w[i] for name, w in own.weights.items()} for i in range(4)]
        assert all(torch.equal(w, mine[0][name]) for name, w in state.weights.items()) == same
        assert all(torch.equal(w, mine[1][name]) for name, w in mine[0].items()) == same


@pytest.mark.parametrize("method", ["geyer", "bhowmick"])
def test_another_method_keeps_the_total_that_its_cell_says(tiny, tmp_path, method):
    other = ldp_fl_others.Other(method, 4, 2, 8.0, 1e-3 if method == "geyer" else 0.0, 1.0, 1, trained=2)
    cell = ldp_fl_others.compute(other, "", tmp_path)
    plain = ldp_fl_others.compute(other.twin, "", tmp_path)
    assert 0.99 * 8 < cell["spent"] <= 8
    assert plain["spent"] is None
    assert len(cell["accuracy"]) == len(plain["accuracy"]) == 2
    assert ldp_fl_others.planned(other, 21_840).setting.clients == 4  # the noise is that of four, of whom two train


@pytest.mark.parametrize("method", ["geyer", "bhowmick"])
def test_a_run_of_another_method_is_its_papers_algorithm(tiny, tmp_path, monkeypatch, method):
    """Clients descend from the server's weights, clip what changed to a norm and send it; the server adds the mean.

    Its noise, whose law tests/planning/test_budget.py has, is left out here.
    """
    clients, rounds, norm, rate, sent = 4, 2, 0.3, 0.03, []
    monkeypatch.setitem(ldp_fl_plan.NETWORK, "mnist", "softmax")
    monkeypatch.setattr(means, "mean_of", lambda candidate, updates, n, key: (sent.append(updates), updates.mean(0))[1])
    other = ldp_fl_others.Other(method, clients, rounds, 8.0, 1e-3 if method == "geyer" else 0.0, norm, 2, trained=4)
    cell = ldp_fl_others.compute(other, "", tmp_path)

    dataset = ldp_fl_runs.dataset_of("mnist", "")
    parts = data.deal(dataset.train_y, clients, 0)
    dealt = training.clients_of(dataset.train_x, dataset.train_y, parts, ldpkernels.key(0))
    weight, bias = np.zeros((10, 784)), np.zeros(10)
    for round_ in range(rounds):
        updates = []
        for client in dealt:
            x, y = (t.double().flatten(1).numpy() if t.dim() > 1 else t.numpy() for t in client.data)
            w, b = weight.copy(), bias.copy()
            for epoch in training.orders(client, training.Local(epochs=2, batch=10, rate=rate), round_):
                for i in epoch.split(10):
                    scores = np.exp(x[i] @ w.T + b)
                    slope = scores / scores.sum(1, keepdims=True) - np.eye(10)[y[i]]
                    w, b = w - rate * slope.T @ x[i] / len(i), b - rate * slope.mean(0)
            update = np.concatenate([(w - weight).ravel(), b - bias])
            updates.append(update / max(1.0, np.linalg.norm(update) / norm))
        assert any(np.linalg.norm(u) == pytest.approx(norm) for u in updates)  # the norm clips
        order = [int(np.abs(np.stack(updates) - row).sum(1).argmin()) for row in sent[round_]]
        assert sorted(order) == list(range(clients))
        assert np.abs(sent[round_] - np.stack(updates)[order]).max() < 1e-6
        mean = np.mean(updates, axis=0)
        weight, bias = weight + mean[:-10].reshape(weight.shape), bias + mean[-10:]
        right = (dataset.test_x.double().flatten(1).numpy() @ weight.T + bias).argmax(1) == dataset.test_y.numpy()
        assert cell["accuracy"][round_] == pytest.approx(right.mean())
    assert cell["ran"]["task"]["local"] == asdict(training.Local(epochs=2, batch=10, rate=rate))


def test_a_killed_cell_goes_on_to_the_same_figures_with_any_number_of_workers(tiny, tmp_path, monkeypatch):
    whole = ldp_fl_runs.compute(TINY, "", 1, tmp_path / "whole")
    rounds, round_ = [], algorithm.round_

    def dies(*arguments, **options):
        rounds.append(1)
        if len(rounds) == 3:
            raise KeyboardInterrupt
        return round_(*arguments, **options)

    monkeypatch.setattr(algorithm, "round_", dies)
    with pytest.raises(KeyboardInterrupt):
        ldp_fl_runs.compute(TINY, "", 1, tmp_path / "unfinished")
    for workers in (1, 3):
        rounds.clear()
        shutil.copytree(tmp_path / "unfinished", tmp_path / str(workers))
        assert ldp_fl_runs.compute(TINY, "", workers, tmp_path / str(workers)) == whole
        assert len(rounds) == 1  # the one that was killed


def test_the_global_model_of_real_samples_and_of_better_labels(tmp_path, monkeypatch):
    """Classes that a network tells apart at once: labels of real samples are right, and those of the teacher too."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (150,), generator=generator)
    x = 0.1 * torch.randn(150, 1, 28, 28, generator=generator) + (2.0 * y - 1).view(-1, 1, 1, 1)
    tiny = data.Dataset("fashion-mnist", x[:100], y[:100], x[100:], y[100:], 2)
    recipe = Recipe(steps=3, batch=8)
    config = parties_driver.Config(
        5, recipe, ("gan",), ("network",), local_epochs=10, epochs=10, baseline=False, chunk=2
    )
    monkeypatch.setattr(han_xue_tries, "dataset_of", lambda name, root: tiny)
    monkeypatch.setattr(processes, "Workers", lambda count, world: crews.Here(world))
    monkeypatch.setattr(han_xue_tries, "config_of", lambda s: replace(config, seed=s.seed))
    label = han_xue_tries.name(han_xue_tries.SWAPPED, 3)
    cell = han_xue_tries.swap(3, "", 1, label, tmp_path / "unfinished")
    assert cell["vote is right of real"] == cell["kept of real"] == cell["real, vote"] == cell["teacher"] == 1
    world = parties_driver.World(tiny, replace(config, seed=3))
    state = parties_driver.State()
    while state.accuracy is None:
        state, _ = parties_driver.round_(state, world)
    assert cell["generated, vote"] == state.accuracy
    assert cell["kept of generated"] == float(state.keep.float().mean())
    assert cell["standalone"] == list(state.standalone)
    assert cell["ran"] == {"config": asdict(replace(config, seed=3)), "examples of a party": world.examples}
    table = han_xue_tables.samples_or_labels([cell, {**cell, "real, vote": 0.5}])
    assert "0.7500 ± 0.3536 (2 seeds)" in table

    wide, log = (han_xue_tries.name(kind, 0) for kind in (han_xue_tries.WIDE, han_xue_tries.LOG))
    real = han_xue_tries.by_real(0, "", 1, wide, tmp_path / "wide")
    made = han_xue_tries.by_log(0, "", 1, log, tmp_path / "log")
    assert real["by epochs"] == {"10": 1.0}
    assert list(made["by epochs"]) == ["10", "20", "30"]
    assert (real["ran"]["config"]["recipe"]["loss"], made["ran"]["config"]["recipe"]["loss"]) == (None, "log")
    assert len(han_xue_tries.tries({wide: real, log: made}).splitlines()) == 4


def test_crops_are_moved_and_mirrored_images():
    x = torch.arange(1.0, 65).reshape(1, 1, 8, 8).expand(50, -1, -1, -1)
    assert torch.equal(cifar_networks.Cropped().eval()(x), x)
    torch.manual_seed(0)
    found = cifar_networks.Cropped()(x)
    wide = torch.nn.functional.pad(x[:1], [4] * 4)
    of_corners = [wide[0, :, i : i + 8, j : j + 8] for i in range(9) for j in range(9)]
    allowed = {tuple(w.flatten().tolist()) for one in of_corners for w in (one, one.flip(-1))}
    seen = {tuple(one.flatten().tolist()) for one in found}
    assert seen <= allowed
    assert len(seen) > 25


def test_changed_networks_are_the_same_but_for_their_change():
    """The initial weights of the tables' network are those that were always run."""
    small, seeded = "small-vgg-normalised", networks.network("small-vgg-normalised", 5)
    for name in (small, f"{small} batch", f"{small} cropped"):
        weights = cifar_networks.changed(name, 5).state_dict().values()
        assert all(torch.equal(*pair) for pair in zip(seeded.state_dict().values(), weights, strict=True))
    kinds = [type(layer) for layer in cifar_networks.changed(f"{small} batch", 5)]
    assert (kinds.count(torch.nn.BatchNorm2d), kinds.count(torch.nn.GroupNorm)) == (4, 0)
    plain = cifar_networks.changed(f"{small} plain", 5)
    assert sum(p.numel() for p in plain.parameters()) == 181_882 - 2 * (32 + 32 + 64 + 64)
    assert not [layer for layer in plain if isinstance(layer, torch.nn.GroupNorm)]
    assert sum(p.numel() for p in cifar_networks.changed("tutorial", 5).parameters()) == 62_006
    assert not torch.equal(plain[0].weight, seeded[0].weight)
