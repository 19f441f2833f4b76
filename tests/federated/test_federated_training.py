# SPDX-License-Identifier: Apache-2.0
"""Local training against torch's own optimiser, one client after another and all at once."""

import copy

import pytest
import torch
from torch.nn import functional as F

import ldpkernels
from ldpkernels.federated import networks, training
from ldpkernels.federated.training import Local, train


def setting(name="digits-mlp", clients=3, size=12, shape=(1, 8, 8)):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * size, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(10, (clients * size,), generator=generator)
    network = networks.network(name, 0).double()
    parts = list(torch.arange(clients * size).split(size))
    return network, training.weights_of(network), training.clients_of(x, y, parts, ldpkernels.key(1))


def by_the_optimiser(network, client, local, round_):
    model = copy.deepcopy(network)
    optimiser = torch.optim.SGD(model.parameters(), lr=local.rate)
    x, y = client.data
    for batch in training.batches(client, local, round_):
        optimiser.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
    return training.weights_of(model)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("name", "shape"), [("digits-mlp", (1, 8, 8)), ("ldp-fed-cnn", (1, 28, 28))])
def test_training_is_gradient_descent(name, shape, together):
    network, weights, clients = setting(name, shape=shape)
    local = Local(epochs=2, batch=5, rate=0.1, together=together)
    before = {k: v.clone() for k, v in weights.items()}
    for (client, found), expected_client in zip(train(network, weights, clients, local, 7), clients, strict=True):
        assert client is expected_client
        expected = by_the_optimiser(network, client, local, 7)
        for parameter, value in found.items():
            torch.testing.assert_close(value, expected[parameter], rtol=1e-9, atol=1e-12)
            assert value.is_contiguous()
            assert not torch.equal(value, before[parameter])
    assert all(torch.equal(weights[k], before[k]) for k in before)
    assert all(torch.equal(p, before[k]) for k, p in network.named_parameters())


@pytest.mark.parametrize("together", [False, True])
def test_only_the_named_parameters_train(together):
    network, weights, clients = setting()
    for _, found in train(network, weights, clients, Local(together=together), 0, only={"3.bias"}):
        changed = [name for name in weights if not torch.equal(found[name], weights[name])]
        assert changed == ["3.bias"]


def test_a_client_depends_on_its_own_data_and_key_alone():
    network, weights, clients = setting()
    local = Local(batch=5, together=False)
    _, alone = next(train(network, weights, [clients[2]], local, 0))
    among = [found for _, found in train(network, weights, clients, local, 0)][2]
    assert all(torch.equal(alone[name], among[name]) for name in weights)


def test_every_epoch_is_a_new_order_of_all_examples():
    _, _, clients = setting()
    order = torch.cat(list(training.batches(clients[0], Local(epochs=2, batch=5), 0)))
    assert sorted(order[:12].tolist()) == sorted(order[12:].tolist()) == list(range(12))
    assert order[:12].tolist() != order[12:].tolist()
    other_round = torch.cat(list(training.batches(clients[0], Local(epochs=2, batch=5), 1)))
    other_client = torch.cat(list(training.batches(clients[1], Local(epochs=2, batch=5), 0)))
    assert len({tuple(o.tolist()) for o in (order, other_round, other_client)}) == 3


def test_clients_of_different_sizes_train_one_after_another():
    network, weights, _ = setting()
    x, y = torch.randn(9, 1, 8, 8, dtype=torch.float64), torch.randint(10, (9,))
    parts = [torch.arange(4), torch.arange(4, 9)]
    clients = training.clients_of(x, y, parts, ldpkernels.key(0))
    found = list(train(network, weights, clients, Local(together=True), 0))
    assert [client.id for client, _ in found] == [0, 1]


def test_noise_and_batches_never_share_a_key():
    _, _, clients = setting()
    keys = {client.round_key(r, use).words for client in clients for r in range(50) for use in (0, 1)}
    assert len(keys) == 3 * 50 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"batch": 0}, "batch=0"),
        ({"rate": 0.0}, "rate=0.0 must be above 0"),
        ({"rate": float("inf")}, "rate=inf must be above 0 and finite"),
        ({"together": "no"}, "together='no' must be True, False or None"),
        ({"buffers": "perturb"}, "buffers='perturb' must be 'keep' or None: nothing but parameters is ever sent"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        Local(**changes)


def test_accuracy_counts():
    network, weights, clients = setting()
    x = clients[0].data[0]
    right = network(x).argmax(1)
    assert training.accuracy(network, weights, x, right, batch=5) == 1.0
    right[:3] = (right[:3] + 1) % 10
    assert training.accuracy(network, weights, x, right, batch=5) == 0.75


def test_networks_have_the_papers_sizes():
    sizes = {name: sum(p.numel() for p in make().parameters()) for name, make in networks.NETWORKS.items()}
    assert sizes["ldp-fl-cnn"] == 21840
    assert sizes["ldp-fed-cnn"] == 29034
    layers = [sum(p.numel() for p in m.parameters()) for m in networks.ldp_fed_cnn() if list(m.parameters())]
    assert layers == [416, 32, 12832, 64, 15690]
    assert not list(networks.ldp_fed_cnn().buffers())  # nothing a client would have to send in the clear


def test_a_network_leaves_the_callers_random_state_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = networks.network("ldp-fl-cnn", 3), networks.network("ldp-fl-cnn", 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    with pytest.raises(ValueError, match="network='resnet' must be one of digits-mlp"):
        networks.network("resnet", 0)
