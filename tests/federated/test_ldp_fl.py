# SPDX-License-Identifier: Apache-2.0
"""LDP-FL against a literal transcription; nothing bare leaves; the same seed is the same run."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import ldpkernels
from ldpkernels.accounting import BudgetExceeded, Ledger, RandomizedResponseEvent, local_epsilon
from ldpkernels.calls.adaptive_ranges import growth_rate
from ldpkernels.federated import ldp_fl, networks, training
from ldpkernels.federated.ldp_fl import Config, State
from ldpkernels.federated.training import NOISE, Local
from ldpkernels.reference import two_point as reference


def setting(clients=4, size=10, seed=1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * size, 1, 8, 8, generator=generator)
    y = torch.randint(10, (clients * size,), generator=generator)
    parts = list(torch.arange(clients * size).split(size))
    return networks.network("digits-mlp", 0), training.clients_of(x, y, parts, ldpkernels.key(seed))


def algorithm_1(network, clients, config, rounds):
    """Algorithm 1 with Algorithm 2 for every weight, one at a time; fixed ranges, all clients in every round."""
    c, r = config.C, config.R
    B = (math.e**config.eps + 1) / (math.e**config.eps - 1)
    W = {name: p.detach().clone() for name, p in network.named_parameters()}  # line 2
    for round_ in range(rounds):  # line 5
        collected = []
        for client in clients:  # line 17, in parallel
            x, y = client.data
            w = {name: p.clone().requires_grad_() for name, p in W.items()}  # line 18
            for batch in training.batches(client, config.local, round_):  # lines 19 and 20
                loss = F.cross_entropy(torch.func.functional_call(network, w, (x[batch],)), y[batch])
                gradients = torch.autograd.grad(loss, list(w.values()))
                with torch.no_grad():
                    for p, g in zip(w.values(), gradients, strict=True):  # line 21
                        p.sub_(g, alpha=config.local.rate)
            noise = client.round_key(round_, NOISE).uint32()
            first, perturbed = 0, {}
            for name, p in w.items():  # line 22
                flat = p.detach().numpy().ravel()
                upper = []
                for j in range(len(flat)):
                    T = int(ldpkernels.two_point_threshold(flat[j : j + 1], c, r, config.eps)[0])
                    upper.append(bool(reference.is_upper(np.array([T - 2**31]), noise, first + j)[0]))
                perturbed[name] = np.array(upper).reshape(p.shape)
                first += -(-len(flat) // 8) * 8
            collected.append(perturbed)
        for name in W:  # lines 9 to 11
            ups = sum(perturbed[name].astype(np.int64) for perturbed in collected)
            mean = c + r * B * (2 * ups / len(clients) - 1)
            W[name] = torch.tensor(mean, dtype=torch.float32)
    return W


def test_it_is_algorithm_1():
    network, clients = setting(clients=3, size=4)
    config = Config(eps=1.5, C=0.0, R=0.25, local=Local(batch=3, rate=0.2, together=False))
    state = ldp_fl.init(network, config)
    for _ in range(2):
        state, _ = ldp_fl.round_(state, clients, network, config)
    expected = algorithm_1(network, clients, config, 2)
    for name, w in state.weights.items():
        # The counts are equal, so the means differ by no more than the decoder's rounding, and eps by the executed one.
        torch.testing.assert_close(w, expected[name], rtol=1e-6, atol=1e-8)


def test_updates_are_perturbed_around_the_clouds_weights():
    network, clients = setting()
    config = Config(eps=3.0, C=0.0, R=0.01, upload="updates")
    state = ldp_fl.init(network, config)
    after, _ = ldp_fl.round_(state, clients, network, config)
    reach = 0.01 * ldpkernels.TwoPoint(3.0).scale
    steps = torch.cat([(after.weights[name] - w).ravel() for name, w in state.weights.items()]) / reach
    counts = (steps + 1) * len(clients) / 2  # of upper reports
    assert float((counts - counts.round()).abs().max()) < 1e-3
    assert set(counts.round().tolist()) <= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise", "hybrid"])
def test_no_weight_arrives_as_it_is(mechanism):
    """A marker in the client's weights is nowhere in its upload, and every weight of it is random."""
    marker = np.float32(0.12345678)
    state = State(0, {}, 0.0, 0.5)
    config = Config(eps=1.0, C=0.0, R=0.5, mechanism=mechanism)
    weights = {"a": torch.full((50,), float(marker)), "b": torch.full((3, 7), float(marker))}
    uploads = [ldp_fl.data_perturbation(weights, state, config, ldpkernels.key(i)) for i in range(200)]
    assert all(marker.tobytes() not in upload.to_bytes() for upload in uploads)
    values = [ldpkernels.aggregate([upload]) for upload in uploads]
    for name in weights:
        seen = torch.stack([v[name].ravel() for v in values])
        assert (seen.std(dim=0) > 0.1).all()  # of every single weight
        assert float((seen - float(marker)).abs().min()) > 1e-4 or mechanism != "two-point"


def test_without_noise_it_is_federated_averaging():
    network, clients = setting()
    config = Config(eps=None)
    state = ldp_fl.init(network, config)
    after, row = ldp_fl.round_(state, clients, network, config)
    models = [w for _, w in training.train(network, state.weights, clients, config.local, 0)]
    for name, w in after.weights.items():
        expected = torch.stack([m[name].double() for m in models]).mean(0).float()
        torch.testing.assert_close(w, expected, rtol=0, atol=1e-7)
    assert row == {"clients": 4, "upload_bytes": 4 * 2410}


def test_adaptive_ranges_come_from_the_averaged_weights():
    network, clients = setting(clients=20, size=4)
    config = Config(eps=4.0, adaptive=True, ranges={"method": "quantile", "quantile": 0.9, "growth": 1.5})
    state = ldp_fl.init(network, config)
    assert ldpkernels.ranges(state.weights, quantile=0.9) == (state.C, state.R)
    after, _ = ldp_fl.round_(state, clients, network, config)
    arguments = {"method": "quantile", "quantile": 0.9, "growth": 1.5, "previous": (state.C, state.R)}
    assert ldpkernels.ranges(after.weights, **arguments) == (after.C, after.R)
    assert all(after.R[layer] <= 1.5 * state.R[layer] for layer in after.R)
    fixed, _ = ldp_fl.round_(state, clients, network, dataclasses.replace(config, adaptive=False))
    assert (fixed.C, fixed.R) == (state.C, state.R)


def test_ranges_that_feed_on_noise_are_told_of_with_what_holds_them():
    """A round's noise stays in the weights, so that min/max ranges grow by sqrt(1 + g^2) a round although g < 1."""
    network, clients = setting(clients=100, size=4)

    def radii(ranges):
        config = Config(eps=1.0, adaptive=True, ranges=ranges)
        state = ldp_fl.init(network, config)
        found = [state.R["1"]]
        for _ in range(6):
            state, _ = ldp_fl.round_(state, clients, network, config)
            found.append(state.R["1"])
        return found

    with pytest.warns(RuntimeWarning, match=r"noise of a round reaches 0\.\d+ of the last radius.*pass growth=1\.0"):
        wild = radii({})
    g = growth_rate(1.0, 100, 64 * 32 + 32)
    assert 0.8 < g < 0.9
    assert wild[-1] / wild[0] == pytest.approx(math.sqrt(1 + g**2) ** 6, rel=0.2)
    held = radii({"growth": 1.0})  # without a warning
    assert max(held) == held[0]


def test_the_ledger_is_asked_before_anything_is_reported(monkeypatch):
    network, clients = setting()
    config = Config(eps=1.0, C=0.0, R=0.25)
    budget = local_epsilon(RandomizedResponseEvent(1.0), d=2410, rounds=2, delta=1e-5).epsilon
    ledger = Ledger(None, epsilon=budget * 1.001, delta=1e-5)
    state = ldp_fl.init(network, config)

    def spend():
        ledger.spend(ldp_fl.event(config), times=2410)

    for _ in range(2):
        state, _ = ldp_fl.round_(state, clients, network, config, before_upload=spend)

    def trained(*_, **__):
        yield pytest.fail("a client trained")

    monkeypatch.setattr(ldp_fl, "train", trained)
    with pytest.raises(BudgetExceeded):
        ldp_fl.round_(state, clients, network, config, before_upload=spend)
    assert ledger.epsilon == pytest.approx(ldp_fl.honest_epsilon(config, 2410, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fraction": 0.0}, r"fraction=0\.0 must be above 0"),
        ({"upload": "gradients"}, "upload='gradients' must be 'weights' or 'updates'"),
        ({"upload": "updates"}, "upload='updates' needs R"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(eps=1.0, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"C": 0.0, "R": -1.0}, r"R=-1\.0 must be finite and at least 0"),
        ({"C": 0.0, "R": {"1": 0.2}}, "R names no range for '3.weight'"),
        ({"adaptive": True, "ranges": {"growth": 0.5}}, r"growth=0\.5 must be at least 1"),
        (
            {"adaptive": True, "C": 0.0, "R": {"1.weight": 1, "1.bias": 1, "3": 1}},
            "previous has no range for layer '1'",
        ),
        ({"adaptive": True, "eps": None, "ranges": {"method": "noise-subtracted"}}, "needs previous"),
    ],
)
def test_ranges_that_do_not_fit_are_refused_before_the_first_round(changes, message):
    network, _ = setting()
    with pytest.raises(ValueError, match=message):
        ldp_fl.init(network, Config(**{"eps": 1.0, **changes}))


def test_clients_elsewhere_send_bytes():
    """`uploads` stands for clients that train and perturb by themselves: the same round, whoever sends first."""
    network, clients = setting()
    config = Config(4.0, C=0.0, R=0.3, local=Local(batch=5))
    state = ldp_fl.init(network, config)

    def elsewhere(state, chosen):
        trained = training.train(network, state.weights, list(chosen)[::-1], config.local, state.round)
        for client, weights in trained:
            key = client.round_key(state.round, NOISE)
            yield ldp_fl.data_perturbation(weights, state, config, key).to_bytes()

    there, row = ldp_fl.round_(state, clients, network, config, uploads=elsewhere)
    here, expected = ldp_fl.round_(state, clients, network, config)
    assert row == expected
    assert all(torch.equal(there.weights[name], w) for name, w in here.weights.items())
    for other in (dataclasses.replace(config, eps=None), dataclasses.replace(config, weigh="examples")):
        with pytest.raises(ValueError, match="set eps and weigh='alike'"):
            ldp_fl.round_(state, clients, network, other, uploads=elsewhere, before_upload=lambda: pytest.fail("paid"))
    with pytest.raises(ValueError, match="nothing to average"):
        ldp_fl.round_(state, clients, network, config, uploads=lambda state, chosen: [])
