# SPDX-License-Identifier: Apache-2.0
"""Networks of users: what is evaluated, what is refused before any work, what dropout draws from."""

import pytest
import torch
from torch import nn

import ldpkernels
from ldpkernels.federated import checks, ldp_fed, ldp_fl, networks, training
from ldpkernels.federated.training import Local

DRIVERS = {
    "ldp-fl": (ldp_fl, ldp_fl.Config(eps=2.0, C=0.0, R=0.3)),
    "ldp-fed": (ldp_fed, ldp_fed.Config(rounds=4, cycles=1)),
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
    state = module.init(network, config)
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
    state = module.init(network, config)
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


def refused(driver, network, everyone, message, only=None, **local):
    """By name, before the first upload is paid for."""
    module, config, state = init(driver, network, **local)
    config = type(config)(**{**vars(config), **(only or {})})
    spent = {"before_upload": lambda *_: pytest.fail("the ledger was asked")}
    with pytest.raises(ValueError, match=message):
        module.round_(state, everyone, network, config, **spent)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Linear(5, 3)), r"does not take examples of shape \(4,\)"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), r"output for two examples has shape \(6,\)"),
        (nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.LSTM(3, 3)), "has type tuple"),
    ],
)
def test_a_network_that_does_not_fit(network, message, driver):
    refused(driver, network, clients(), message)


def changed(at, x=lambda x: x, y=lambda y: y):
    """Clients of whom one has other data."""
    everyone = clients()
    everyone[at] = everyone[at]._replace(data=(x(everyone[at].data[0]), y(everyone[at].data[1])))
    return everyone


@pytest.mark.parametrize("together", [None, False])
@pytest.mark.parametrize(
    ("everyone", "message"),
    [
        (changed(1, y=lambda y: y.int()), r"labels of client 1 are torch.int32 of shape \(8,\): .* y.long\(\)"),
        (changed(1, y=lambda y: y.byte()), "labels of client 1 are torch.uint8"),
        (changed(1, y=lambda y: y.float()), "labels of client 1 are torch.float32"),
        (changed(2, y=lambda y: y[:, None]), r"labels of client 2 are torch.int64 of shape \(8, 1\)"),
        (changed(1, y=lambda y: y[1:]), "client 1 has 8 examples and 7 labels"),
        (changed(1, y=lambda y: y[:0]), "client 1 has 8 examples and 0 labels"),
        (changed(1, x=lambda x: x[1:]), "client 1 has 7 examples and 8 labels"),
        (changed(1, x=lambda x: x[:, 1:]), r"examples of client 1 have shape \(3,\) .*, of client 0 shape \(4,\)"),
        (
            changed(1, x=lambda x: x.double()),
            r"of client 1 have shape \(4,\) and dtype torch.float64, of client 0 .*32",
        ),
        (
            changed(1, x=lambda x: x.to("meta")),
            "examples of client 1 are on meta, its labels on cpu, .* put all on one",
        ),
        (changed(2, x=lambda x: x / 0), "examples of client 2 hold NaN or infinity"),
        ([c._replace(key=clients()[0].key) for c in clients()], "two clients have one key, and so the same noise"),
    ],
)
def test_data_of_any_client_that_cannot_be_trained_on(driver, everyone, message, together):
    refused(driver, mlp(), everyone, message, together=together)


@pytest.mark.parametrize("nothing", [torch.empty(0), torch.empty(0, 3, 4, 4)])
def test_a_client_without_any_data_is_no_reason_to_stop(driver, nothing):
    network = Viewed(convolution=True)
    generator = torch.Generator().manual_seed(0)
    module, config, state = init(driver, network)
    everyone = [c._replace(data=(torch.randn(8, 3, 4, 4, generator=generator), c.data[1])) for c in clients()]
    everyone[0] = everyone[0]._replace(data=(nothing, torch.empty(0, dtype=torch.long)))
    after, _ = module.round_(state, everyone, network, config)
    assert all(w.isfinite().all() for w in after.weights.values())


@pytest.mark.parametrize(
    ("driver", "few"), [("ldp-fl", {"fraction": 0.3}), ("ldp-fl", {"dropout": 0.999}), ("ldp-fed", {"select": 1})]
)
def test_clients_that_the_first_round_does_not_select_are_looked_at(driver, few):
    for at in range(3):
        refused(driver, mlp(), changed(at, y=lambda y: y + 5), f"of client {at} has no output", few)


class Counted(nn.Module):
    """How many examples come at once."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(len(x))
        return x


@pytest.mark.parametrize(
    ("between", "sizes"),
    [(nn.ReLU(), [10, 10, 1]), (nn.BatchNorm1d(16, track_running_stats=False), [10, 11])],
    ids=["relu", "batch-norm"],
)
def test_the_last_example_joins_others_only_where_it_must(between, sizes):
    network = mlp(between, Counted())
    x, y = clients(1, 21)[0].data
    training.accuracy(network, training.weights_of(network), x, y, batch=10)
    assert network[2].seen == sizes


class Odd(nn.Module):
    """Networks that no evaluation tells from others."""

    def __init__(self, how):
        super().__init__()
        self.layers, self.how = mlp(nn.ReLU()), how

    def forward(self, x):
        if self.how == "detached":
            return self.layers(x).detach()
        return (self.layers(x), 0) if self.training else self.layers(x)


@pytest.mark.parametrize("together", [None, False])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("detached", "output depends on no parameter that trains: its forward must not run under torch.no_grad"),
        ("pair", r"cannot train on examples of shape \(4,\): .*must be Tensor, not tuple"),
    ],
)
def test_a_network_that_evaluates_but_does_not_train(driver, how, message, together):
    refused(driver, Odd(how), clients(), message, together=together)


def test_parameters_that_nothing_uses_stay_in_torchs_steps_as_in_vmaps(driver):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp(nn.ReLU())
            self.unused = nn.Linear(4, 16)  # the last, which LDP-Fed's first turn trains alone

        def forward(self, x):
            return self.layers(x)

    network, found = Unused(), []
    for together in (True, False):
        module, config, state = init(driver, network, together=together)
        for _ in range(2):
            state, _ = module.round_(state, clients(), network, config)
        found.append(state.weights)
    for name, w in found[0].items():
        torch.testing.assert_close(w, found[1][name])


def test_what_is_tried_before_the_first_round_leaves_no_trace():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp(nn.Dropout(0.5))
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            if self.training:
                self.calls += 1
            return self.layers(x)

    network = Counting()
    drawn = torch.get_rng_state()
    checks.check(network, training.weights_of(network), clients(), Local(together=False), 0)
    assert int(network.calls) == 0
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.filterwarnings("ignore:.*torch.nn.utils.weight_norm:FutureWarning", "ignore:There is a performance drop")
@pytest.mark.parametrize("together", [None, False])
def test_weights_that_a_hook_computes(driver, together):
    """Their network cannot be copied once it was run with gradients, so that only copies are."""
    network, everyone = mlp(nn.utils.weight_norm(nn.Linear(16, 16))), clients()
    module, config, state = init(driver, network, together=together)
    state, _ = module.round_(state, everyone, network, config)
    everyone[0] = everyone[0]._replace(data=tuple(part[:5] for part in everyone[0].data))  # no more all together
    module.round_(state, everyone, network, config)


def test_dropout_that_is_off_with_the_whole_network_is_told_of(driver):
    with pytest.warns(UserWarning, match=r"in eval mode, so that clients train without module '1' \(Dropout\): call"):
        init(driver, mlp(nn.Dropout(0.5)).eval())
    init(driver, mlp(nn.ReLU()).eval())  # which has nothing that differs
    network = mlp(nn.Dropout(0.5))
    network[1].eval()  # on purpose, in a network that trains
    init(driver, network)
