# SPDX-License-Identifier: Apache-2.0
"""LDP-Fed against a literal transcription; its plan and its budgets; what leaves a client; selection."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ldpkernels
from ldpkernels.accounting import BudgetExceeded, Ledger
from ldpkernels.accounting.metric import worst_case_epsilon
from ldpkernels.federated import ldp_fed, networks, training
from ldpkernels.federated.cldp_upload import Upload, terms_of
from ldpkernels.federated.ldp_fed import Config
from ldpkernels.federated.selection import select
from ldpkernels.federated.training import NOISE, Local
from ldpkernels.laws.ordinal_cldp_thresholds import integer_laws
from ldpkernels.reference import ordinal_cldp as reference_cldp


def setting(clients=3, size=6, seed=1):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = torch.randn(clients * size, 1, 2, 2), torch.randint(2, (clients * size,))
    parts = list(torch.arange(clients * size).split(size))
    return network, training.clients_of(x, y, parts, ldpkernels.key(seed))


def reference_sample(values, alpha, M, mechanism, key):
    """One integer at a time, by the reference sampler."""
    law = integer_laws(alpha, M, mechanism)[0]
    words = key.uint32()
    return [reference_cldp.sample(v, law, reference_cldp.draws(words, i)) for i, v in enumerate(values)]


def ldp_fed_as_written(network, clients, config, alphas):
    """Two cycles of one round a layer, output layer first, all clients, everything element by element."""
    W = {name: p.detach().clone() for name, p in network.named_parameters()}
    M = int(config.c * 10**config.rho)
    uploads = []
    for round_, layer in enumerate(("3", "1", "3", "1")):
        names = [f"{layer}.weight", f"{layer}.bias"]
        size = sum(W[name].numel() for name in names)
        sent = []
        for client in clients:
            x, y = client.data
            w = {name: p.clone() for name, p in W.items()}
            for batch in training.batches(client, config.local, round_):
                moving = {name: p.clone().requires_grad_() for name, p in w.items()}
                loss = F.cross_entropy(torch.func.functional_call(network, moving, (x[batch],)), y[batch])
                for name, g in zip(names, torch.autograd.grad(loss, [moving[n] for n in names]), strict=True):
                    w[name] = w[name] - config.local.rate * g
            integers = []
            for name in names:
                for new, old in zip(w[name].ravel().tolist(), W[name].ravel().tolist(), strict=True):
                    integers.append(min(max(round((new - old) * 10.0**config.rho), -M), M))
            alpha_i = Fraction(alphas[client.id]) / 2 * Fraction(size, 23)  # a cycle's, the layer's part, one round
            alpha_p = float(alpha_i / size)
            sent.append(reference_sample(integers, alpha_p, M, config.mechanism, client.round_key(round_, NOISE)))
        uploads.append(sent)
        mean = [sum(column) / (len(clients) * 10**config.rho) for column in zip(*sent, strict=True)]
        for name in names:
            part, mean = mean[: W[name].numel()], mean[W[name].numel() :]
            moved = W[name].double() + torch.tensor(part, dtype=torch.float64).reshape(W[name].shape)
            W[name] = moved.float()
    return W, uploads


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
@pytest.mark.parametrize(("rho", "alpha"), [(10, 0.5), (3, 4.0)])
def test_it_is_the_paper_as_written(mechanism, rho, alpha, monkeypatch):
    network, clients = setting()
    alphas = {0: alpha, 1: 2 * alpha, 2: alpha / 4}  # each client's own
    local = Local(batch=4, rate=0.5, together=False)
    config = Config(alpha=alphas, rounds=4, cycles=2, rho=rho, mechanism=mechanism, local=local)
    sent = []
    monkeypatch.setattr(ldp_fed.UploadMean, "add", recorded(ldp_fed.UploadMean.add, sent))
    state = ldp_fed.init(network, config)
    for _ in range(4):
        state, _ = ldp_fed.round_(state, clients, network, config)
    expected, integers = ldp_fed_as_written(network, clients, config, alphas)
    assert [list(upload.integers) for upload in sent] == [one for round_ in integers for one in round_]
    for name, w in state.weights.items():
        assert torch.equal(w, expected[name])


def recorded(add, sent):
    def wrapper(self, data):
        sent.append(Upload.from_bytes(data, self.terms))
        add(self, data)

    return wrapper


def planted(monkeypatch, layer, value):
    """Clients whose training puts `value` everywhere in a layer."""

    def train(network, weights, clients, local, round_, *, only=None, workers=None):
        for client in clients:
            yield client, {n: torch.full_like(w, value) if n.startswith(layer) else w for n, w in weights.items()}

    monkeypatch.setattr(ldp_fed, "train", train)


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
def test_every_value_of_the_layer_is_randomised(mechanism):
    marker = 0.12345678
    terms = terms_of({"a": (40,), "b": (3, 7)}, c=1.0, rho=10, mechanism=mechanism)
    update = {"a": torch.full((40,), marker), "b": torch.full((3, 7), marker)}
    exact = round(float(torch.tensor(marker).double()) * 1e10)
    uploads = [Upload.of(update, terms, 1e-6, ldpkernels.key(i)) for i in range(100)]
    values = np.stack([upload.integers for upload in uploads])
    deviation = math.sqrt(8 if mechanism == "exponential" else 2) / 1e-6
    each = values.std(axis=0)
    assert (each > 0.4 * deviation).all()  # of every single value
    assert (each < 2.2 * deviation).all()
    assert (values != exact).all()  # each would be equal with probability 5e-7
    assert all(len(np.unique(one)) == 61 for one in values[:5])  # no two share their noise


def test_nothing_of_another_layer_leaves(monkeypatch):
    network, clients = setting()
    config = Config(alpha=1.0, rounds=4, cycles=2, trains="all")
    state = ldp_fed.init(network, config)
    sent = {}
    for value in (0.25, 1e30, float("nan")):
        planted(monkeypatch, "1", value)  # while the first round sends layer 3
        uploads = []
        with monkeypatch.context() as patched:
            patched.setattr(ldp_fed.UploadMean, "add", recorded(ldp_fed.UploadMean.add, uploads))
            after, row = ldp_fed.round_(state, clients, network, config)
        assert row["layer"] == "3"
        sent[value] = [upload.to_bytes() for upload in uploads]
        for name in ("1.weight", "1.bias"):
            assert torch.equal(after.weights[name], state.weights[name])
    assert len({tuple(s) for s in sent.values()}) == 1
    assert len(sent[0.25]) == 3


def test_a_clients_update_is_clipped(monkeypatch):
    network, clients = setting(clients=1)
    planted(monkeypatch, "3", 1e30)
    config = Config(alpha=1e5, rounds=4, cycles=2, c=0.5, rho=4)
    state = ldp_fed.init(network, config)
    after, _ = ldp_fed.round_(state, clients, network, config)
    step = after.weights["3.weight"] - state.weights["3.weight"]
    torch.testing.assert_close(step, torch.full_like(step, 0.5))  # alpha is so large that nothing else is likely


def test_only_the_rounds_layer_is_trained_unless_all_is():
    network, clients = setting()
    seen = {}
    for trains in ("layer", "all"):
        config = Config(alpha=None, rounds=4, cycles=2, trains=trains, local=Local(epochs=5, rate=0.5))
        state = ldp_fed.init(network, config)
        seen[trains], row = ldp_fed.round_(state, clients, network, config)
        assert row == {"clients": 3, "layer": "3", "values": 8, "upload_bytes": 32}
        only = ("3.weight", "3.bias") if trains == "layer" else None
        models = [w for _, w in training.train(network, state.weights, clients, config.local, 0, only=only)]
        mean = torch.stack([m["3.weight"].double() for m in models]).mean(0)
        torch.testing.assert_close(seen[trains].weights["3.weight"].double(), mean, rtol=0, atol=1e-7)
    assert not torch.equal(seen["layer"].weights["3.weight"], seen["all"].weights["3.weight"])


def test_fixed_selection():
    _, clients = setting(clients=50, size=1)
    chosen = [[c.id for c in select(clients, 9, 5, r)] for r in range(400)]
    assert all(len(set(c)) == 9 and c == sorted(c) for c in chosen)
    often = np.bincount(np.concatenate(chosen), minlength=50)
    spread = 6 * math.sqrt(400 * 0.18 * 0.82)  # six deviations: false alarms below 1e-7 for 50 clients
    assert abs(often - 72).max() < spread
    assert select(clients, None, 5, 0) == clients
    with pytest.raises(ValueError, match="select=51 must be from 1 to 50"):
        select(clients, 51, 5, 0)


def test_poisson_selection():
    _, clients = setting(clients=50, size=1)
    chosen = [[c.id for c in select(clients, 9, 5, r, law="poisson")] for r in range(2000)]
    sizes = np.array([len(c) for c in chosen])
    variance = 50 * 0.18 * 0.82
    assert abs(sizes.mean() - 9) < 6 * math.sqrt(variance / 2000)
    assert 0.8 * variance < sizes.var() < 1.25 * variance  # six deviations; of a fixed size it would be 0
    often = np.bincount(np.concatenate(chosen), minlength=50)
    assert abs(often - 360).max() < 6 * math.sqrt(2000 * 0.18 * 0.82)


def test_a_round_that_accepts_nobody_changes_nothing_and_is_spent():
    network, clients = setting()
    config = Config(rounds=400, cycles=2, select=1, selection="poisson")
    empty = next(r for r in range(400) if not select(clients, 1, 0, r, law="poisson"))
    state = dataclasses.replace(ldp_fed.init(network, config), round=empty)
    spent = []
    after, row = ldp_fed.round_(state, clients, network, config, before_upload=spent.append)
    assert (after.round, row["clients"], len(spent)) == (empty + 1, 0, 1)
    assert all(torch.equal(w, state.weights[name]) for name, w in after.weights.items())


def test_the_honest_epsilon_is_alpha_times_the_box():
    network, _ = setting()
    config = Config(alpha=0.5, rounds=80, c=1.0, rho=10)
    whole = ldp_fed.honest_epsilon(network, config, 80)
    assert worst_case_epsilon(0.5, 1.0, 10) <= whole < worst_case_epsilon(0.5, 1.0, 10) * (1 + 1e-12)
    assert ldp_fed.honest_epsilon(network, config, 40) < whole
    several = dataclasses.replace(config, alpha={0: 0.1, 1: 0.5})
    assert ldp_fed.honest_epsilon(network, several, 80) == whole  # of who is protected least
    l1 = dataclasses.replace(config, metric="l1", method="basic")
    assert ldp_fed.honest_epsilon(network, l1, 80) == pytest.approx(23 * whole)  # 23 weights, each the whole range


def test_the_ledger_is_asked_before_anything_is_sent(monkeypatch):
    network, clients = setting()
    config = Config(alpha=1.0, rounds=4, cycles=2)
    turns = ldp_fed.plan(network, config)
    ledger = Ledger(None, epsilon=ldp_fed.honest_epsilon(network, config, 2) * 1.001, delta=1e-5)
    state = ldp_fed.init(network, config)

    def spend(turn):
        ledger.spend(turn.event(config))

    for _ in range(2):
        state, _ = ldp_fed.round_(state, clients, network, config, before_upload=spend)
    assert ledger.epsilon == pytest.approx(float(turns[0].share + turns[1].share) * 2e10)
    monkeypatch.setattr(ldp_fed, "ldp_module", lambda *_: pytest.fail("an upload was made"))
    with pytest.raises(BudgetExceeded):
        ldp_fed.round_(state, clients, network, config, before_upload=spend)


def test_there_is_no_round_after_the_last():
    network, clients = setting()
    config = Config(rounds=4, cycles=2)
    state = dataclasses.replace(ldp_fed.init(network, config), round=4)
    with pytest.raises(ValueError, match="alpha is spent"):
        ldp_fed.round_(state, clients, network, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0.0}, r"alpha=0\.0 must be above 0"),
        ({"alpha": math.inf}, "alpha=inf must be above 0 and finite"),
        ({"alpha": {0: 1.0, 1: -2.0}}, r"alpha=-2\.0 must be above 0"),
        ({"method": "all"}, "method='all' must be one of basic"),
        ({"trains": "some"}, "trains='some' must be one of layer"),
        ({"selection": "random"}, "selection='random' must be one of fixed"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**changes)


@pytest.mark.parametrize("method", ldp_fed.METHODS)
@pytest.mark.parametrize(("rounds", "cycles"), [(80, 5), (80, 16), (81, 7), (17, 1)])
@pytest.mark.parametrize("alpha", [1.0, 0.1, 1e-9 / 3])
def test_the_plans_budgets_add_up_to_alpha_exactly(method, rounds, cycles, alpha):
    network = networks.ldp_fed_cnn()
    turns = ldp_fed.plan(network, Config(alpha=alpha, rounds=rounds, method=method, cycles=cycles))
    assert len(turns) == rounds
    assert sum(Fraction(alpha) * turn.share for turn in turns) == Fraction(alpha)
    # What the samplers get, all of it, is never more than that, and short of it by roundings of a double only.
    spent = sum(turn.size * Fraction(turn.alpha_of_value(alpha, "linf")) for turn in turns)
    assert 1 - Fraction(1, 2**50) < spent / Fraction(alpha) <= 1
    by_l1 = sum(Fraction(turn.alpha_of_value(alpha, "l1")) for turn in turns)
    assert 1 - Fraction(1, 2**50) < by_l1 / Fraction(alpha) <= 1
    assert {name for turn in turns for name in turn.names} == {name for name, _ in network.named_parameters()}


def test_which_layer_is_sent_when():
    network = networks.ldp_fed_cnn()

    def layers(method, **options):
        return [ldp_fed.layer_name(turn) for turn in ldp_fed.plan(network, Config(method=method, **options))]

    assert layers("basic") == ["all"] * 80
    assert layers("single-layer") == [layer for layer in "95410" for _ in range(16)]
    assert layers("single-layer", rounds=7) == ["9", "9", "5", "5", "4", "1", "0"]
    assert layers("alpha-cldp-fed", cycles=5) == 5 * (["9"] * 7 + ["5"] + ["4"] * 6 + ["1", "0"])
    assert layers("alpha-cldp-fed", cycles=16) == list("95410") * 16
    with pytest.raises(ValueError, match="too few for 5 layers"):
        ldp_fed.init(network, Config(cycles=17))


def test_more_budget_for_each_value_than_in_basic():
    network = networks.ldp_fed_cnn()
    least = {
        method: min(t.alpha_of_value(1.0, "linf") for t in ldp_fed.plan(network, Config(method=method, cycles=1)))
        for method in ldp_fed.METHODS
    }
    assert least["basic"] == pytest.approx(1 / (80 * 29034))
    assert least["single-layer"] == pytest.approx(1 / (80 * 15690))
    assert least["alpha-cldp-fed"] == pytest.approx(1 / (42 * 29034))
