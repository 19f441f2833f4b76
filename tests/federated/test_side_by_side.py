# SPDX-License-Identifier: Apache-2.0
"""Clients that train side by side arrive where they arrive alone."""

import pytest
import torch
from torch import nn

import ldpkernels
from ldpkernels.federated import networks, side_by_side, training
from ldpkernels.federated.training import Local

pytestmark = pytest.mark.usefixtures("one_thread")


def group_normalised():
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, stride=2, padding=1, dilation=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.LeakyReLU(0.1),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 12, 3, padding="same"),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12 * 3 * 3, 7, bias=False),
        nn.GELU(),
        nn.Linear(7, 10),
    )


CHAINS = {"ldp-fl-cnn": (networks.ldp_fl_cnn, (1, 28, 28)), "group-normalised": (group_normalised, (2, 28, 28))}


def setting(name, clients, size, dtype=torch.float64):
    make, shape = CHAINS[name]
    torch.manual_seed(0)
    network = make().to(dtype)
    x, y = torch.randn(clients * size, *shape, dtype=dtype), torch.randint(10, (clients * size,))
    everyone = training.clients_of(x, y, list(torch.arange(clients * size).split(size)), ldpkernels.key(1))
    return network, training.weights_of(network), everyone


@pytest.mark.parametrize("trains", [slice(None), slice(1), slice(-1, None)], ids=["all", "first", "last"])
@pytest.mark.parametrize("name", CHAINS)
def test_each_client_arrives_where_it_arrives_alone(name, trains):
    network, weights, clients = setting(name, clients=18, size=7)
    only = None if trains == slice(None) else list(weights)[trains]
    before = {n: w.clone() for n, w in weights.items()}
    side = list(training.train(network, weights, clients, Local(epochs=2, batch=3, rate=0.1), 5, only=only))
    alone = list(
        training.train(network, weights, clients, Local(epochs=2, batch=3, rate=0.1, together=False), 5, only=only)
    )
    assert [client.id for client, _ in side] == list(range(18))
    assert side_by_side.groups(network, [7] * 18)[-1] == [16, 17]  # the last two together, the others four by four
    for (_, found), (_, expected) in zip(side, alone, strict=True):
        assert list(found) == list(weights)
        for parameter, value in found.items():
            torch.testing.assert_close(value, expected[parameter], rtol=1e-9, atol=1e-11)
            assert value.is_contiguous()
            moved = not torch.equal(value, before[parameter])
            assert moved == (only is None or parameter in only)
    assert all(torch.equal(weights[n], before[n]) for n in before)


def test_workers_change_no_bit():
    network, weights, clients = setting("ldp-fl-cnn", clients=17, size=10, dtype=torch.float32)
    expected = list(training.train(network, weights, clients, Local(batch=5), 0))
    for count in (1, 2):
        with training.crew(network, clients, count) as crew:
            found = list(training.train(network, weights, clients, Local(batch=5), 0, workers=crew))
        for (_, one), (_, other) in zip(found, expected, strict=True):
            assert all(torch.equal(one[n], other[n]) for n in weights)


class _Own(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * 2


def _hooked():
    network = networks.ldp_fl_cnn()
    network[0].register_forward_hook(lambda module, x, y: y * 2)
    return network


def _shared():
    relu = nn.ReLU()
    return nn.Sequential(nn.Conv2d(1, 4, 5), relu, nn.Flatten(), nn.Linear(2304, 10), relu)


@pytest.mark.parametrize(
    "network",
    [
        networks.digits_mlp(),  # no convolution: vmap
        networks.small_vgg(),  # wide convolutions have enough to do
        networks.ldp_fed_cnn(),  # batch normalisation won nothing
        _Own(*networks.ldp_fl_cnn()),
        _hooked(),
        _shared(),
        nn.utils.parametrizations.weight_norm(networks.ldp_fl_cnn()[0]),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 4, 5)), nn.Flatten(), nn.Linear(2304, 10)),
        nn.Sequential(nn.Conv2d(2, 4, 5, groups=2), nn.Flatten(), nn.Linear(2304, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5, padding=2, padding_mode="reflect"), nn.Flatten(), nn.Linear(3136, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.Dropout(), nn.Flatten(), nn.Linear(2304, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.Linear(24, 10), nn.Flatten()),
    ],
)
def test_what_is_no_plain_chain_trains_one_after_another(network):
    assert not side_by_side.fits(network)
    assert side_by_side.groups(network, [5] * 20) == [[i] for i in range(20)]


def test_few_clients_and_unequal_ones_train_one_after_another():
    network = networks.ldp_fl_cnn()
    assert side_by_side.fits(network)
    assert side_by_side.groups(network, [5] * 15) == [[i] for i in range(15)]
    assert side_by_side.groups(network, [5] * 19 + [6]) == [[i] for i in range(20)]
    assert side_by_side.groups(network, []) == []
