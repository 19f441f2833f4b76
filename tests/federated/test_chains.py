# SPDX-License-Identifier: Apache-2.0
"""Clients that train in C++ arrive where torch's own steps arrive."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import ldpkernels
from ldpkernels import _native
from ldpkernels.federated import chains, networks, training
from ldpkernels.federated.training import Local
from tests.federated import crews


def odd():
    """Kernels, paddings and pools that are not square, even or there, and layers without a bias."""
    return nn.Sequential(
        nn.Conv2d(2, 7, (3, 5), padding=(1, 2), bias=False),
        nn.ReLU(),
        nn.MaxPool2d(3),
        nn.Conv2d(7, 12, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(12, 5, 1),
        nn.Flatten(),
        nn.Linear(5 * 16, 17, bias=False),
        nn.ReLU(),
        nn.Linear(17, 10),
    )


def normalised():
    return nn.Sequential(
        nn.BatchNorm2d(1, track_running_stats=False),
        nn.Conv2d(1, 6, 5, padding=1),
        nn.BatchNorm2d(6, track_running_stats=False, affine=False, eps=1e-3),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.Flatten(),
        nn.Linear(8 * 121, 10),
    )


def grouped():
    """Group normalisation first of all, with one group, without weights, before a ReLU and before a pool."""
    return nn.Sequential(
        nn.GroupNorm(1, 2),
        nn.Conv2d(2, 20, 3, padding=1),
        nn.GroupNorm(5, 20),
        nn.ReLU(),
        nn.Conv2d(20, 18, 3, padding=1),
        nn.GroupNorm(18, 18, eps=1e-3),
        nn.MaxPool2d(2),
        nn.Conv2d(18, 8, 3),
        nn.GroupNorm(2, 8, affine=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 30, 10),
    )


def wide():
    """Several registers of channels, and kernels wider than a block of taps."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 48, (4, 7), padding=(0, 6)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(48, 40, 3, padding=1),
        nn.Flatten(),
        nn.Linear(40 * 30, 10),
    )


def tiled():
    """Kernels that Winograd's algorithm takes from the first layer on, on planes that are no whole number of tiles,
    one example after another and, where an example has few tiles, all together."""
    return nn.Sequential(
        nn.Conv2d(8, 12, 3, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 20, 5, padding=(1, 4), bias=False),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 33, 3),
        nn.ReLU(),
        nn.Conv2d(33, 9, 5, padding=2),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(9 * 6, 10),
    )


def mirrored():
    """The images, not what layers make of them: the last layer tells left from right."""
    return nn.Sequential(networks.Mirrored(), nn.Conv2d(2, 9, 3), nn.ReLU(), nn.Flatten(), nn.Linear(9 * 48, 10))


CHAINS = {
    "mirrored": (mirrored, (2, 8, 10)),
    "ldp-fl-cnn": (networks.ldp_fl_cnn, (1, 28, 28)),
    "ldp-fed-cnn": (networks.ldp_fed_cnn, (1, 28, 28)),
    "small-vgg-normalised": (networks.small_vgg_normalised, (3, 32, 32)),
    "wide": (wide, (3, 19, 30)),
    "odd": (odd, (2, 26, 25)),
    "normalised": (normalised, (1, 28, 28)),
    "grouped": (grouped, (2, 14, 16)),
    "tiled": (tiled, (8, 28, 15)),
}


def setting(name, clients, size):
    make, shape = CHAINS[name]
    # From some seeds an activation lies on zero to a rounding, and the ways part: "tiled" from 0, compiled by -O1.
    torch.manual_seed(1 if name == "tiled" else 0)
    network = make()
    x, y = torch.randn(clients * size, *shape), torch.randint(10, (clients * size,))
    everyone = training.clients_of(x, y, list(torch.arange(clients * size).split(size)), ldpkernels.key(1))
    return network, training.weights_of(network), everyone


def by_torch(network, weights, client, local, round_, only=None):
    """In fp64, one step after another."""
    client = client._replace(data=(client.data[0].double(), client.data[1]))
    wide = {name: w.double() for name, w in weights.items()}
    assert not chains.fits(network, wide, *client.data)
    return next(training.train(copy.deepcopy(network).double(), wide, [client], local, round_, only=only))[1]


@pytest.mark.parametrize("isa", _native.training_isas())
@pytest.mark.parametrize("trains", [slice(None), slice(1), slice(2, 4), slice(-1, None)], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_a_client_arrives_where_torch_arrives(name, trains, isa):
    """To roundings of fp32, which compilers choose, and of which one may put an activation on zero's other side."""
    network, weights, (client,) = setting(name, clients=1, size=7)
    only = None if trains == slice(None) else list(weights)[trains]
    before = {n: w.clone() for n, w in weights.items()}
    local = Local(epochs=2, batch=3, rate=0.1)  # the last step of an epoch has one example
    order = training.orders(client, local, 5)
    assert chains.fits(network, weights, *client.data)
    with training.own_draws(client, 5):
        found = chains.train(network, weights, client.data, order, local.batch, local.rate, only, isa)
    expected = by_torch(network, weights, client, local, 5, only)
    assert list(found) == list(weights)
    for parameter, value in found.items():
        error, way = (value - expected[parameter]).abs(), (before[parameter] - expected[parameter]).abs()
        assert error.median() <= 2e-6, parameter
        assert error.max() <= 1e-6 + 0.02 * way.max()
        moved = not torch.equal(value, before[parameter])
        trained = only is None or parameter in only
        assert trained or not moved
        assert moved or not trained or way.max() < 1e-9  # a bias in front of a normalisation need not
    assert all(torch.equal(weights[n], before[n]) for n in before)


@pytest.mark.parametrize("isa", _native.training_isas())
@pytest.mark.parametrize("side", [3, 5])
def test_winograd_rounds_a_few_times_as_much_as_the_definition(side, isa):
    """A step that is large beside the weights: gradients err by 1.6e-6 of their size, torch's own by 6e-7."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(32, 40, side, padding=1), nn.Conv2d(40, 24, side, padding=2), nn.Flatten())
    x, y = torch.randn(6, 32, 15, 10), torch.randint(10, (6,))
    network.append(nn.Linear(network(x).shape[1], 10))
    weights = training.weights_of(network)
    client, local = training.Client(0, (x, y), ldpkernels.key(1)), Local(batch=6, rate=1e3)
    found = chains.train(network, weights, client.data, torch.arange(6)[None], local.batch, local.rate, None, isa)
    expected = by_torch(network, weights, client, local, 0)
    for name, value in found.items():
        error, way = value - expected[name], weights[name] - expected[name]
        assert error.norm() <= 3e-6 * way.norm()


@pytest.mark.parametrize("isa", _native.training_isas())
@pytest.mark.parametrize("side", [2, 3])
def test_the_first_of_equal_numbers_is_chosen(side, isa):
    """Inputs are small integers, so that a pool has ties between places with different gradients."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 1, 1), nn.MaxPool2d(side), nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        network[0].weight.fill_(1.0)
    weights = training.weights_of(network)
    x, y = torch.randint(3, (8, 2, 4 * side, 4 * side)).float(), torch.randint(3, (8,))
    client = training.Client(0, (x, y), ldpkernels.key(1))
    found = chains.train(network, weights, client.data, torch.arange(8)[None], 8, 0.5, None, isa)
    expected = by_torch(network, weights, client, Local(batch=8, rate=0.5), 0)
    for name, value in found.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["ldp-fl-cnn", "mirrored"])
def test_the_drivers_train_chains_in_cpp(name):
    network, weights, clients = setting(name, clients=3, size=10)
    local, before = Local(batch=5), torch.get_rng_state()
    for client, found in training.train(network, weights, clients, local, 2):
        assert torch.equal(torch.get_rng_state(), before)
        order = training.orders(client, local, 2)
        with training.own_draws(client, 2):
            expected = chains.train(network, weights, client.data, order, 5, local.rate)
        assert all(torch.equal(found[n], expected[n]) for n in weights)


@pytest.mark.parametrize("name", ["ldp-fl-cnn", "grouped"])
def test_what_travels_to_workers_changes_no_bit(name):
    """The second has group normalisation, and a convolution by Winograd's algorithm."""
    network, weights, clients = setting(name, clients=3, size=10)
    assert chains.fits(network, weights, *clients[0].data)
    expected = list(training.train(network, weights, clients, Local(batch=5), 0))
    found = list(training.train(network, weights, clients, Local(batch=5), 0, workers=crews.crew(network, clients)))
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


def _tied():
    one, other = nn.Linear(10, 10), nn.Linear(10, 10)
    other.weight = one.weight
    return nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten(), one, nn.ReLU(), other)


@pytest.mark.parametrize(
    "network",
    [
        networks.digits_mlp(),  # no convolution: vmap
        nn.Sequential(nn.Conv2d(1, 192, 28), nn.Flatten(), nn.Linear(192, 10)),  # wide ones have enough to do
        nn.Sequential(nn.Conv2d(1, 4, 1, padding=1), nn.Flatten(), nn.Linear(3600, 10)),  # outputs of padding alone
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(2304, 10)),  # it learns statistics
        nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), nn.Flatten(), nn.Linear(576, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5, dilation=2), nn.Flatten(), nn.Linear(1600, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2, stride=1), nn.Flatten(), nn.Linear(2116, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(676, 10)),
        nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten()),
        _Own(*networks.ldp_fl_cnn()),
        _hooked(),
        _shared(),
        _tied(),
        nn.utils.parametrizations.weight_norm(networks.ldp_fl_cnn()[0]),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 4, 5)), nn.Flatten(), nn.Linear(2304, 10)),
        nn.Sequential(nn.Conv2d(2, 4, 5, groups=2), nn.Flatten(), nn.Linear(2304, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5, padding=2, padding_mode="reflect"), nn.Flatten(), nn.Linear(3136, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.Dropout(), nn.Flatten(), nn.Linear(2304, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.Linear(24, 10), nn.Flatten()),
        nn.Sequential(nn.Conv2d(1, 4, 5), networks.Mirrored(), nn.Flatten(), nn.Linear(2304, 10)),
        nn.Sequential(networks.Mirrored().eval(), nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(2304, 10)),
    ],
)
def test_what_is_no_plain_chain_trains_in_torch(network):
    images, labels = torch.zeros(2, 1, 28, 28), torch.zeros(2, dtype=torch.long)
    assert not chains.fits(network, training.weights_of(network), images, labels)


def test_what_is_no_plain_data_trains_in_torch():
    network = networks.ldp_fl_cnn()
    weights, images, labels = training.weights_of(network), torch.zeros(2, 1, 28, 28), torch.tensor([0, 9])
    assert chains.fits(network, weights, images, labels)
    assert chains.fits(network, weights, images[:0], labels[:0])
    assert not chains.fits(network, weights, images.double(), labels)
    assert not chains.fits(network, weights, images.flatten(1), labels)
    assert not chains.fits(network, weights | {"0.bias": weights["0.bias"].bfloat16()}, images, labels)
    for labels in (torch.tensor([0, 10]), torch.tensor([-100, 0]), torch.tensor([0, 1], dtype=torch.int32)):
        assert not chains.fits(network, weights, images, labels)


@pytest.mark.parametrize(
    ("kind", "sizes", "weight", "bias", "message"),
    [
        ("convolution", (5, 5, 0, 0), (4, 2, 5, 5), None, "weights .outputs, inputs, kernel"),
        ("convolution", (5, 5, 0, 0), (4, 1, 5, 5), 3, "a bias for each output"),
        ("convolution", (9, 9, 0, 0), (4, 1, 9, 9), None, "larger than the image"),
        ("convolution", (5, 5, -1, 0), (4, 1, 5, 5), None, "kernel and padding"),
        ("convolution", (5, 5, 0, 5), (4, 1, 5, 5), None, "no larger than its padding"),
        ("convolution", (1, 1, 0, 0), (4, 1, 1, 1), None, "gives no scores"),
        ("linear", (), (10, 63), None, "weights .outputs, inputs"),
        ("max_pool", (9,), None, None, "side"),
        ("max_pool", (0,), None, None, "side"),
        ("relu", (), (1,), None, "no weights"),
        ("batch_norm", (), (2,), None, "a weight for each channel"),
        ("group_norm", (2,), None, None, "groups of as many channels"),
        ("group_norm", (), None, None, "groups of as many channels"),
        ("group_norm", (1,), (2,), None, "a weight for each channel"),
        ("softmax", (), None, None, "none that is known"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(kind, sizes, weight, bias, message):
    arrays = [None if shape is None else np.zeros(shape, np.float32) for shape in (weight, bias)]
    layer = _native.Layer(kind, sizes, *arrays, True, True, 0.0)
    x, y, order = np.zeros((3, 1, 8, 8), np.float32), np.zeros(3, np.int64), np.zeros((1, 3), np.int64)
    with pytest.raises(ValueError, match=message):
        _native.train_chain([layer], x, y, order, 2, 0.1)


def test_labels_and_places_beyond_their_tables_are_refused():
    layer = _native.Layer("linear", (), np.zeros((10, 64), np.float32), None, True, True, 0.0)
    x, y, order = np.zeros((3, 1, 8, 8), np.float32), np.zeros(3, np.int64), np.zeros((1, 3), np.int64)
    _native.train_chain([layer], x, y, order, 2, 0.1)
    for labels, places in ((y + 10, order), (y - 1, order), (y, order + 3), (y, order - 1)):
        with pytest.raises(ValueError, match="out of range"):
            _native.train_chain([layer], x, labels, places, 2, 0.1)
    with pytest.raises(ValueError, match="no 'mmx' kernels for training"):
        _native.train_chain([layer], x, y, order, 2, 0.1, "mmx")
    with pytest.raises(ValueError, match="batch"):
        _native.train_chain([layer], x, y, order, 0, 0.1)
