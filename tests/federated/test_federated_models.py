# SPDX-License-Identifier: Apache-2.0
"""Networks of users: what is evaluated, what is refused before any work, what dropout draws from."""

import pytest
import torch
from torch import nn

import ldpkernels
from ldpkernels.federated import comparisons, ldp_fed, ldp_fl, networks, training
from ldpkernels.federated.training import Local

DRIVERS = {
    "ldp-fl": (ldp_fl, ldp_fl.Config(eps=2.0, C=0.0, R=0.3)),
    "ldp-fed": (ldp_fed, ldp_fed.Config(rounds=4, cycles=1)),
    "non-private": (comparisons, comparisons.Config("non-private")),
    "dpsgd": (comparisons, comparisons.Config("dpsgd")),
    "local": (comparisons, comparisons.Config("local")),
}


def clients(count=3, size=8, classes=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count * size, 4, generator=generator)
    y = torch.randint(classes, (count * size,), generator=generator)
    return training.clients_of(x, y, list(torch.arange(count * size).split(size)), ldpkernels.key(1))


def mlp(*between, outputs=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 16), *between, nn.Linear(16, outputs))


class Viewed(nn.Module):
    """A network of images that looks at what its convolution gives as a matrix, which no copy may be needed for."""

    def __init__(self, convolution):
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 3, padding=1) if convolution else nn.Identity()
        self.last = nn.Linear((5 if convolution else 3) * 16, 3)

    def forward(self, x):
        return self.last(self.convolution(x).view(len(x), -1))


class Shifted(nn.Module):
    """A network with a constant among its buffers."""

    def __init__(self):
        super().__init__()
        self.layers = mlp(nn.ReLU())
        self.register_buffer("shift", torch.full((4,), 0.25))

    def forward(self, x):
        return self.layers(x - self.shift)


def init(driver, network, **local):
    module, config = DRIVERS[driver]
    config = type(config)(**{**vars(config), "local": Local(**local)})
    state = module.init(network, config, clients()) if module is comparisons else module.init(network, config)
    return module, config, state


@pytest.fixture(params=DRIVERS)
def driver(request):
    return request.param


def test_accuracy_does_not_depend_on_dropout_and_learns_nothing():
    network = mlp(nn.BatchNorm1d(16), nn.Dropout(0.9))
    network[0].eval()
    before = {name: b.clone() for name, b in network.named_buffers()}
    x, y = torch.randn(500, 4), torch.randint(3, (500,))
    found = {training.accuracy(network, training.weights_of(network), x, y, batch=100) for _ in range(3)}
    assert [module.training for module in network] == [False, True, True, True]
    assert all(torch.equal(b, before[name]) for name, b in network.named_buffers())
    assert found == {int((network.eval()(x).argmax(1) == y).sum()) / 500}


def test_running_statistics_are_refused_by_name(driver):
    with pytest.raises(ValueError, match=r"module '1' \(BatchNorm1d\) keeps running statistics .* GroupNorm"):
        init(driver, mlp(nn.BatchNorm1d(16)))
    with pytest.raises(ValueError, match="keeps running statistics"):
        init(driver, mlp(nn.BatchNorm1d(16)), buffers="keep")


def test_constants_among_the_buffers_are_kept_where_that_is_said(driver):
    with pytest.raises(ValueError, match=r"buffer 'shift' \(one of 1\) would stay .* Local\(buffers='keep'\)"):
        init(driver, Shifted())
    network = Shifted()
    module, config, state = init(driver, network, buffers="keep")
    after, _ = module.round_(state, clients(), network, config)
    assert set(after.weights) == {name for name, _ in network.named_parameters()}
    assert torch.equal(network.shift, torch.full((4,), 0.25))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.LazyLinear(3)), "parameter '0.weight' is not initialized: run the network once"),
        (nn.Sequential(nn.Linear(4, 3, dtype=torch.complex64)), "tensor '0.weight' has dtype torch.complex64"),
        (mlp().to("meta"), "tensor '0.weight' is on the meta device"),
    ],
    ids=["lazy", "complex", "meta"],
)
def test_what_perturb_refuses_is_refused_before_the_first_round(network, message, driver):
    with pytest.raises((TypeError, ValueError), match=message):
        init(driver, network)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Linear(5, 3)), r"does not take examples of shape \(4,\)"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), r"output for two examples has shape \(6,\)"),
        (mlp(outputs=2), "label 2 of client 0 has no output: the network has 2"),
        (nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.LSTM(3, 3)), "has type tuple"),
    ],
    ids=["input", "shape", "label", "tuple"],
)
def test_a_network_that_does_not_fit_is_refused_before_anything_is_spent(network, message, driver):
    module, config, state = init(driver, network)
    spent = {} if module is comparisons else {"before_upload": lambda *_: pytest.fail("the ledger was asked")}
    with pytest.raises(ValueError, match=message):
        module.round_(state, clients(), network, config, **spent)


@pytest.mark.parametrize("drawing", [nn.Dropout(0.5), networks.Mirrored()])
def test_clients_with_draws_of_their_own_do_not_train_together(drawing):
    network = mlp(drawing)
    _, config, state = init("ldp-fl", network, together=True)
    with pytest.raises(ValueError, match=r"the draws of each client's key: pass Local\(together=False\)"):
        ldp_fl.round_(state, clients(), network, config, before_upload=lambda: pytest.fail("the ledger was asked"))


def test_what_vmap_cannot_train_is_refused_with_the_cure():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x + torch.randn(x.shape))

    network = Noisy()
    _, config, state = init("ldp-fl", network, together=True)
    with pytest.raises(ValueError, match="vmap cannot train this network: pass Local\\(together=False\\)"):
        ldp_fl.round_(state, clients(), network, config, before_upload=lambda: pytest.fail("the ledger was asked"))
    _, config, state = init("ldp-fl", network, together=False)
    ldp_fl.round_(state, clients(), network, config)


@pytest.mark.parametrize("driver", ["ldp-fl", "ldp-fed", "non-private", "dpsgd", "local"])
def test_dropout_follows_from_the_seed(driver):
    network = mlp(nn.Dropout(0.5))
    module, config, state = init(driver, network, epochs=2)
    found = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(module.round_(state, clients(), network, config)[0].weights)
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(w, found[1][name]) for name, w in found[0].items())
    assert any(not torch.equal(w, state.weights[name]) for name, w in found[0].items())


@pytest.mark.parametrize("convolution", [False, True])
def test_a_network_may_view_its_images(convolution, driver):
    network = Viewed(convolution)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 3, 4, 4, generator=generator), torch.randint(3, (24,), generator=generator)
    parties = training.clients_of(x, y, list(torch.arange(24).split(8)), ldpkernels.key(1))
    module, config = DRIVERS[driver]
    state = module.init(network, config, parties) if module is comparisons else module.init(network, config)
    state = module.round_(state, parties, network, config)[0]
    weights = training.weights_of(network)
    right = (torch.func.functional_call(network, weights, (x,)).argmax(1) == y).float().mean()
    assert training.accuracy(network, weights, x, y, batch=24) == pytest.approx(float(right))


def test_draws_of_a_client_on_the_cpu_leave_gpus_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("every GPU was seeded"))
    with training.own_draws(clients()[0], 0):
        ours = torch.rand(3)
    with training.own_draws(clients()[0], 0):
        assert torch.equal(torch.rand(3), ours)


def test_half_of_the_images_are_mirrored_in_training_and_none_after():
    images = torch.arange(400.0)[:, None, None, None] + torch.tensor([0.0, 0.25])
    mirrored = networks.Mirrored()
    torch.manual_seed(0)
    seen = mirrored(images)
    turned = seen[:, 0, 0, 0] > seen[:, 0, 0, 1]
    assert torch.equal(seen.sort(-1).values, images)
    assert abs(int(turned.sum()) - 200) < 60  # six deviations
    assert torch.equal(mirrored.eval()(images), images)


def test_dropout_is_not_the_same_for_every_client_and_round():
    network = mlp(nn.Dropout(0.5))
    one = clients()[0]
    twin = one._replace(id=1, key=ldpkernels.key(9))
    weights = training.weights_of(network)
    local = Local(batch=8)  # one step over all examples: the order does not matter
    turns = ((one, 0), (twin, 0), (one, 1))
    found = [next(training.train(network, weights, [client], local, r))[1]["2.bias"] for client, r in turns]
    assert not any(torch.equal(found[i], found[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
