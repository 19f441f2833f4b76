# SPDX-License-Identifier: Apache-2.0
"""The federated drivers with weights and data on a GPU."""

import pytest
import torch

import ldpkernels
from ldpkernels.federated import data, han_xue, ldp_fed, ldp_fl, networks, training
from ldpkernels.federated.dp_gan import Recipe
from ldpkernels.federated.training import Local

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def setting(clients=20, size=40):
    """Ten patterns with noise: a perceptron tells them apart after a few rounds."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(clients * size) % 10
    patterns = torch.randn(10, 1, 8, 8, generator=generator)
    x = patterns[y] + 0.3 * torch.randn(len(y), 1, 8, 8, generator=generator)
    parts = list(torch.randperm(len(y), generator=generator).split(size))
    network = networks.network("digits-mlp", 0).cuda()
    return network, training.clients_of(x.cuda(), y.cuda(), parts, ldpkernels.key(1))


@pytest.mark.parametrize("upload", ["weights", "updates"])
@pytest.mark.parametrize("together", [False, True])
def test_ldp_fl_learns(upload, together):
    network, clients = setting()
    local = Local(epochs=2, batch=10, rate=0.1, together=together)
    config = ldp_fl.Config(eps=8.0, C=0.0, R=0.5, upload=upload, local=local)
    state = ldp_fl.init(network, config)
    for _ in range(5):
        state, _ = ldp_fl.round_(state, clients, network, config)
    assert all(w.is_cuda for w in state.weights.values())
    assert training.accuracy(network, state.weights, *clients[0].data) > 0.6


def test_ldp_fed_learns():
    network, clients = setting()
    config = ldp_fed.Config(alpha=1.0, rounds=6, method="basic", local=Local(epochs=2, rate=0.1))
    state = ldp_fed.init(network, config)
    for _ in range(6):
        state, _ = ldp_fed.round_(state, clients, network, config)
    assert all(w.is_cuda for w in state.weights.values())
    assert training.accuracy(network, state.weights, *clients[0].data) > 0.9


@pytest.mark.parametrize("kinds", [("gan", "dcgan"), ("vae",)])
@pytest.mark.parametrize("sound", [False, True])
def test_han_xue_trains_there_what_it_trains_on_the_host(kinds, sound):
    """Initial weights, batches and the samples' noise are the host's; the noise of privacy follows from the key."""
    recipe = Recipe(steps=3, batch=16, sound=sound)
    models = ("cnn-1", "cnn-2", "tree")
    config = han_xue.Config(
        parties=3, recipe=recipe, generators=kinds, models=models, samples=20, local_epochs=1, epochs=1, chunk=2
    )
    ends = []
    for device in ("cpu", "cuda"):
        world, state = han_xue.World(data.load("digits"), config, device=device), han_xue.State()
        for _ in range(han_xue.rounds(config) - 3):  # without the vote and what follows from it
            state, _ = han_xue.round_(state, world)
        assert all(w.device.type == device for maker in state.makers for w in maker.values())
        ends.append(state)
    here, there = ends
    for ours, theirs in zip(here.makers, there.makers, strict=True):
        for name, w in ours.items():
            torch.testing.assert_close(theirs[name].cpu(), w, rtol=0.05, atol=0.02)
    assert all(abs(a - b) < 0.1 for a, b in zip(here.standalone, there.standalone, strict=True))
