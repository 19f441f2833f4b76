# SPDX-License-Identifier: Apache-2.0
"""The methods that LDP-Fed is compared with: DP-SGD as it is defined, and honest figures."""

import doctest
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ldpkernels
from benchmarks.papers import comparisons, private_sgd, theorem_2
from benchmarks.papers.comparisons import Config
from benchmarks.papers.private_sgd import PrivateSteps
from ldpkernels.accounting import sampled_gaussian
from ldpkernels.federated import networks, training
from ldpkernels.federated.selection import select
from ldpkernels.federated.training import Local

SIZE = 12


def setting(clients=5, seed=1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * SIZE, 1, 8, 8, generator=generator)
    y = torch.randint(10, (clients * SIZE,), generator=generator)
    parts = list(torch.arange(clients * SIZE).split(SIZE))
    return networks.network("digits-mlp", 0), training.clients_of(x, y, parts, ldpkernels.key(seed))


def rounds(config, network, clients, count=2):
    state = comparisons.init(network, config, clients)
    for _ in range(count):
        state, _ = comparisons.round_(state, clients, network, config)
    return state


def test_secure_sums_train_like_bare_updates_up_to_their_digits():
    network, clients = setting()
    plain = rounds(Config("non-private", select=3), network, clients, 1)
    for rho in (3, 10):
        secure = rounds(Config("smc", select=3, rho=rho), network, clients, 1)
        for name, w in plain.weights.items():
            # Half a step of rounding each, and that of fp32.
            torch.testing.assert_close(secure.weights[name], w, rtol=1e-6, atol=0.5 * 10**-rho)
        coarse = torch.cat([(secure.weights[n] - w).ravel() for n, w in plain.weights.items()])
        assert (coarse.abs().max() > 1e-5) == (rho == 3)


def test_non_private_is_federated_averaging_of_the_selected():
    network, clients = setting()
    config = Config("non-private", select=3)
    state = comparisons.init(network, config, clients)
    after, row = comparisons.round_(state, clients, network, config)
    chosen = select(clients, 3, 0, 0)
    assert row == {"clients": 3}
    models = [w for _, w in training.train(network, state.weights, chosen, config.local, 0)]
    for name, w in after.weights.items():
        expected = torch.stack([m[name].double() for m in models]).mean(0).float()
        torch.testing.assert_close(w, expected, rtol=0, atol=1e-7)


def test_alone_means_alone():
    network, clients = setting()
    config = Config("local", local=Local(rate=0.1))
    state = rounds(config, network, clients)
    test = clients[0].data
    accuracies = []
    for i, client in enumerate(clients):
        weights = training.weights_of(network)
        for round_ in range(2):
            ((_, weights),) = training.train(network, weights, [client], config.local, round_)
        assert all(torch.equal(w[i], weights[name]) for name, w in state.weights.items())
        accuracies.append(training.accuracy(network, weights, *test))
    assert comparisons.accuracy(network, state, config, *test) == pytest.approx(sum(accuracies) / 5)


def dp_sgd_as_defined(network, client, private, round_):
    """Without noise: each example's gradient clipped to C, added up, over the expected size of a batch."""
    weights = training.weights_of(network)
    x, y = client.data
    drawn = torch.Generator().manual_seed(client.round_key(round_, training.BATCHES).words[0] % 2**63)
    q = private.rate(len(y))
    for _ in range(private.steps(len(y))):
        members = (torch.rand(len(y), generator=drawn, dtype=torch.float64) < q).nonzero()[:, 0].tolist()
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        for i in members:
            moving = {name: w.clone().requires_grad_() for name, w in weights.items()}
            loss = F.cross_entropy(torch.func.functional_call(network, moving, (x[i : i + 1],)), y[i : i + 1])
            gradient = torch.autograd.grad(loss, list(moving.values()))
            norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradient))
            for name, g in zip(weights, gradient, strict=True):
                total[name] += g * min(1.0, private.C / norm)
        weights = {n: w - private.local.rate * total[n] / (q * len(y)) for n, w in weights.items()}
    return weights


def test_private_steps_are_dp_sgd():
    network, clients = setting()
    private = PrivateSteps(Local(epochs=2, batch=4, rate=0.1), C=0.5, sigma=0.0)
    got = private_sgd.train(network, training.weights_of(network), clients[0], private, 3)
    for name, w in dp_sgd_as_defined(network, clients[0], private, 3).items():
        torch.testing.assert_close(got[name], w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("method", "divided"), [("dpsgd", 1.0), ("hybrid-one", math.sqrt(5))])
def test_the_noise_is_as_large_as_it_should_be(method, divided):
    """Gradients are clipped to almost nothing, so that what is left of a step is its noise."""
    network, clients = setting()
    config = Config(method, C=1e-9, sigma=2e9, local=Local(batch=SIZE, rate=1.0))
    private = config.private(5)
    start = training.weights_of(network)
    moved = private_sgd.train(network, start, clients[0], private, 0)
    steps = torch.cat([(moved[n] - w).ravel() for n, w in start.items()])
    expected = 2.0 / divided / SIZE  # rate C sigma over the batch
    assert float(steps.std()) == pytest.approx(expected, rel=6 / math.sqrt(2 * 2410))
    assert float(steps.mean()) == pytest.approx(0, abs=6 * expected / math.sqrt(2410))
    other = private_sgd.train(network, start, clients[1], private, 0)
    assert not torch.equal(moved["1.weight"], other["1.weight"])
    summed = rounds(config, network, clients, 1)
    mean = torch.cat([(summed.weights[n] - w).ravel() for n, w in start.items()])
    assert float(mean.std()) == pytest.approx(expected / math.sqrt(5), rel=6 / math.sqrt(2 * 2410))


def test_an_empty_batch_is_as_noisy_as_any():
    network, clients = setting()
    private = PrivateSteps(Local(batch=1, epochs=1, rate=1e-3), C=1.0, sigma=1.0)
    drawn = torch.Generator().manual_seed(clients[0].round_key(0, training.BATCHES).words[0] % 2**63)
    sizes = [int((torch.rand(SIZE, generator=drawn, dtype=torch.float64) < 1 / SIZE).sum()) for _ in range(SIZE)]
    assert 0 in sizes
    after = private_sgd.train(network, training.weights_of(network), clients[0], private, 0)
    assert all(w.isfinite().all() for w in after.values())


def test_batch_normalisation_is_replaced():
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.Flatten())
    replaced = private_sgd.group_normalised(network)
    assert isinstance(replaced[1], nn.GroupNorm)
    assert (replaced[1].num_groups, replaced[1].num_channels) == (4, 8)
    assert isinstance(network[1], nn.BatchNorm2d)


def test_the_figures_are_honest():
    _, clients = setting(clients=10)
    local = Local(epochs=2, batch=4)

    def epsilon(method, **changes):
        return comparisons.honest_epsilon(clients, Config(method, select=4, local=local, sigma=3.0, **changes), 20)

    assert epsilon("non-private") == epsilon("smc") == math.inf
    assert epsilon("local") == 0
    often = np.zeros(10, int)
    for round_ in range(20):
        for client in select(clients, 4, 0, round_):
            often[client.id] += 1
    steps = 2 * 3 * int(often.max())
    assert epsilon("dpsgd") == sampled_gaussian(3.0, 4 / SIZE, steps).epsilon
    # What a participant adds itself, whatever the others do.
    assert epsilon("hybrid-one") == sampled_gaussian(3.0 / 2, 4 / SIZE, steps).epsilon
    none = Config("dpsgd", select=4, local=local, sigma=0.0)
    assert comparisons.honest_epsilon(clients, none, 20) == math.inf
    assert comparisons.honest_epsilon(clients, none, 0) == 0


@pytest.mark.parametrize("method", comparisons.METHODS)
def test_the_same_seed_is_the_same_run(method):
    network, clients = setting()
    config = Config(method, select=3)
    one, other = rounds(config, network, clients), rounds(config, network, clients)
    assert all(torch.equal(w, other.weights[name]) for name, w in one.weights.items())
    moved = comparisons.init(network, config, clients).weights
    assert not torch.equal(moved["1.weight"], one.weights["1.weight"])


@pytest.mark.parametrize("module", [private_sgd, theorem_2])
def test_the_examples_of_what_only_the_papers_need(module):
    """They stand outside the package, whose own are collected."""
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)
