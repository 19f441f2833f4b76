# SPDX-License-Identifier: Apache-2.0
"""A round of local training: clients one after another, all at once by torch.func.vmap, and as the drivers choose."""

import pytest
import torch

import ldpkernels
from ldpkernels.federated import networks, training


@pytest.mark.parametrize("together", [False, True, None], ids=["one after another", "vmap", "chosen"])
@pytest.mark.parametrize(
    ("name", "shape", "clients", "size"),
    [
        ("digits-mlp", (1, 8, 8), 100, 16),
        ("ldp-fl-cnn", (1, 28, 28), 16, 100),
        ("ldp-fed-cnn", (1, 28, 28), 10, 50),
        ("small-vgg-normalised", (3, 32, 32), 4, 50),
        ("wide-cnn", (3, 32, 32), 4, 50),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_local_training(benchmark, name, shape, clients, size, together):
    torch.set_num_threads(1)  # as the drivers run; two only help where nobody else does anything
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = networks.network(name, 0).to(device)
    x, y = torch.randn(clients * size, *shape, device=device), torch.randint(10, (clients * size,), device=device)
    parts = list(torch.arange(clients * size).split(size))
    everyone = training.clients_of(x, y, parts, ldpkernels.key(0))
    weights = training.weights_of(network)
    local = training.Local(epochs=1, batch=10, rate=0.03, together=together)
    benchmark.group = f"a round of {clients} clients, {name}"
    benchmark.extra_info["examples"] = clients * size
    benchmark.pedantic(lambda: list(training.train(network, weights, everyone, local, 0)), rounds=3, warmup_rounds=1)
