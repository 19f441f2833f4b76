# SPDX-License-Identifier: Apache-2.0
# Private training in a silo: people, clipped sums with and without their gradients, ledgers, a canary, metrics.
import math

import pytest
import torch

from ldpkernels.accounting import (
    SILO,
    BudgetExceeded,
    GaussianEvent,
    Ledger,
    SampledGaussianEvent,
    Unit,
    composed_epsilon,
)
from ldpkernels.audit.measure import AuditFailure, measure
from ldpkernels.planning import plan
from ldpkernels.trainers import linear, measure_privately, private, train_privately
from ldpkernels.trainers.people import sample

N = 12


def silo(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1.0), (torch.randn(N, 3), torch.randn(N, 1))


def train(model, optimizer, data, ledger=None, **options):
    ledger = Ledger(None, epsilon=50.0) if ledger is None else ledger
    options = {"steps": 1, "q": 1.0, "C": 0.5, "sigma": 1.0, "batch_size": N, **options}
    return train_privately(model, optimizer, torch.nn.functional.mse_loss, data, ledger, **options)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def network(kind):
    """A chain of linear layers, and one that is none."""
    torch.manual_seed(0)
    last = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1, bias=False)
    middle = torch.nn.Tanh() if kind == "chain" else torch.nn.Softplus()
    layers = torch.nn.Linear(3, 4), middle, last[kind == "chain"]
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("persons", [None, torch.tensor([5, 2, 2, 9, 5, 5, 2, 1, 0, 0, 7, 5])])
@pytest.mark.parametrize("kind", ["chain", "any"])
def test_a_step_is_the_mean_of_clipped_gradients_one_at_a_time(kind, persons):
    """C cuts some of the people and not others; a person counts with the mean of its records."""
    _, _, (x, y) = silo()
    model, C = network(kind), 0.9
    assert linear.is_chain(model) == (kind == "chain")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    total, cut = torch.zeros_like(flat(model)), []
    for person in torch.arange(N) if persons is None else persons.unique():
        mine = torch.arange(N) == person if persons is None else persons == person
        loss = torch.nn.functional.mse_loss(model(x[mine]), y[mine])
        g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        cut.append(float(g.norm()) > C)
        total += g * min(1.0, C / float(g.norm()))
    assert 0 < sum(cut) < len(cut)
    before = flat(model)
    train(model, optimizer, (x, y), C=C, sigma=1e-6, persons=persons, most=4, ledger=Ledger(None, epsilon=1e30))
    torch.testing.assert_close(before - flat(model), total / N, atol=1e-5, rtol=1e-4)


def test_of_a_person_with_more_records_as_many_are_drawn():
    """All alike but one, which leads away: with one record a step, the steps are of either kind."""
    x = torch.tensor([[1.0], [1.0], [-1.0]])
    moves = set()
    for _ in range(40):
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        options = {"C": 1.0, "sigma": 1e-9, "batch_size": 1.0, "persons": torch.zeros(3, dtype=torch.int64), "most": 1}
        loss = lambda output, y: output.sum()  # noqa: E731
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        train_privately(model, optimizer, loss, (x, x), Ledger(None, epsilon=1e30), steps=1, q=1.0, **options)
        moves.add(round(float(model.weight.detach())))
    assert moves == {-1, 1}


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_person_whose_gradient_is_no_number_is_left_out_in_both_ways(poison):
    _, _, (x, y) = silo()
    persons = torch.arange(N) // 2
    bad = x.clone()
    bad[0, 1] = poison
    for kind in ("chain", "any"):
        without, with_ = network(kind), network(kind)
        options = {"sigma": 1e-9, "persons": persons[2:], "most": 2}
        for model, first in ((without, 2), (with_, 0)):
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            options["persons"] = persons[first:]
            train(model, optimizer, (bad[first:], y[first:]), ledger=Ledger(None, epsilon=1e30), **options)
        torch.testing.assert_close(flat(without), flat(with_), atol=1e-5, rtol=1e-5)


def test_cancelling_records_do_not_hide_a_long_gradient():
    """1e4 and -1e4 and 3: the norm of the person's mean is 1, of which fp32 pairs would know nothing."""
    model = torch.nn.Linear(1, 1, bias=False)
    x = torch.tensor([[1e4], [-1e4], [3.0]])
    whose = torch.zeros(3, dtype=torch.int64)
    found = linear.clipped_sum(model, lambda out, y: out.sum(), (x, x), whose, 1, 0.5)
    assert 0.45 < float(found["weight"]) <= 0.5


def labelled(labels):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 8)
    data = torch.randn(len(labels), 3), torch.tensor(labels)
    return model, torch.optim.SGD(model.parameters(), lr=1.0), data


def classify(model, optimizer, data, ledger):
    options = {"steps": 1, "q": 1.0, "C": 0.5, "sigma": 1e-3, "batch_size": 4.0}
    return train_privately(model, optimizer, torch.nn.functional.cross_entropy, data, ledger, **options)


def test_an_example_that_fails_is_not_told():
    """A server that sends a head of 8 outputs would learn of a label of 83 by the error, which no noise covers."""
    models = []
    for labels in ([0, 3, 83, 7], [0, 3, -100, 7]):  # -100 is what cross_entropy leaves out
        model, optimizer, data = labelled(labels)
        ledger = Ledger(None, epsilon=1e9)
        classify(model, optimizer, data, ledger)
        assert ledger.epsilon > 0
        models.append(flat(model))
    torch.testing.assert_close(*models, atol=3e-3, rtol=0)
    assert not torch.allclose(models[0], flat(labelled([0])[0]), atol=3e-3)


def test_the_ledger_says_the_composition_and_refuses_the_next_run():
    model, optimizer, data = silo()
    ledger = Ledger(None, epsilon=2.0)
    spent = train(model, optimizer, data, ledger, steps=5, q=0.1, sigma=1.5)
    assert spent.epsilon == composed_epsilon([(SampledGaussianEvent(1.5, 0.1), 5)], 1e-5, "exact")
    before = flat(model)
    with pytest.raises(BudgetExceeded):
        train(model, optimizer, data, ledger, steps=5000, q=0.1, sigma=1.5)
    assert torch.equal(before, flat(model))
    assert ledger.epsilon == spent.epsilon


def test_an_empty_batch_is_a_step_of_noise_alone():
    model, optimizer, data = silo()
    before = flat(model)
    train(model, optimizer, data, q=1e-12)
    assert not torch.equal(before, flat(model))


@pytest.mark.parametrize("generator", ["secure", torch.Generator().manual_seed(1)])
def test_batch_sizes_have_the_binomial_law(generator):
    sizes = torch.tensor([float(sample(100, 0.3, generator).sum()) for _ in range(2000)])
    assert abs(float(sizes.mean()) - 30) < 6 * math.sqrt(21 / 2000)
    assert abs(float(sizes.var()) / 21 - 1) < 6 * math.sqrt(2 / 2000)
    assert bool(sample(100, 1.0, generator).all())


class Kept(torch.optim.SGD):
    """Keeps what each step would release, and takes none."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=1.0)
        self.released = []

    def step(self, closure=None):
        self.released.append(torch.cat([p.grad.double().flatten() for p in self.param_groups[0]["params"]]))


@pytest.mark.parametrize("by_person", [True, False])
def test_a_canary_of_24_records_at_rate_1_is_seen_no_better_than_the_ledger_says(by_person):
    """Its gradients are long and point one way. Clipped by record, as without persons, the audit finds more.

    Of 200 steps it lacks the power once in 1e11, and it is wrong once in a million.
    """
    x, persons = torch.tensor([[0.0], *[[50.0]] * 24]), torch.tensor([0, *[1] * 24])
    options = {"q": 1.0, "C": 1.0, "sigma": 3.0, "batch_size": 1.0}

    def released(there, n):
        rows = slice(None) if there else slice(1)
        model, ledger = torch.nn.Linear(1, 1, bias=False), Ledger(None, epsilon=1e3, method="rdp")
        whose = {"persons": persons[rows], "most": 24} if by_person else {}
        optimizer, loss = Kept(model.parameters()), lambda output, y: output.sum()
        spent = train_privately(model, optimizer, loss, (x[rows], x[rows]), ledger, steps=n, **options, **whose)
        assert spent.epsilon == composed_epsilon([(GaussianEvent(3.0), n)], 1e-5, "rdp")
        return torch.cat(optimizer.released)

    claimed = composed_epsilon([(GaussianEvent(3.0), 1)], 1e-5)
    found = measure(released, True, False, name="canary", claimed=claimed, n=200, delta=1e-5)
    if by_person:
        found.check()
    else:
        with pytest.raises(AuditFailure):
            found.check()


def test_metrics_are_noised_clipped_and_counted():
    _, _, (x, y) = silo()
    model, persons = torch.nn.Linear(3, 1), torch.arange(N) // 3
    metrics = {"loss": (torch.nn.functional.mse_loss, 0.5), "one": (lambda out, y: torch.ones(()), 2.0)}
    ledger = Ledger(None, epsilon=1e30)
    exact = measure_privately(model, metrics, (x, y), ledger, sigma=1e-9, size=4, persons=persons, most=3)
    rows = (model(x) - y).square().flatten().detach().reshape(4, 3).mean(1).clamp(0, 0.5)
    assert exact["loss"] == pytest.approx(float(rows.mean()), abs=1e-5)
    assert exact["one"] == pytest.approx(1.0, abs=1e-5)
    noisy = []
    for _ in range(400):
        ledger = Ledger(None, epsilon=9.0, method="rdp")
        noisy.append(measure_privately(model, metrics, (x, y), ledger, sigma=2.0, size=4)["one"])
    deviation = 2.0 * 2.0 * math.sqrt(2) / (2 * 4)  # sigma, most, two metrics, size
    assert abs(torch.tensor(noisy).std() / deviation - 1) < 6 / math.sqrt(800)
    ledger = Ledger(None, epsilon=1.0)
    measure_privately(model, metrics, (x, y), ledger, sigma=20.0, size=4, persons=persons, most=3)
    assert ledger.result.neighbouring == SILO.per(Unit.PERSON).neighbouring
    assert 0 < ledger.epsilon < 1


def test_training_and_metrics_share_a_ledger_and_units_do_not():
    model, optimizer, (x, y) = silo()
    ledger, persons = Ledger(None, epsilon=5.0, method="rdp"), torch.arange(N) // 2
    train(model, optimizer, (x, y), ledger, q=0.1, sigma=2.0, steps=4, persons=persons, most=2)
    trained = ledger.epsilon
    loss = {"loss": (torch.nn.functional.mse_loss, 1.0)}
    measure_privately(model, loss, (x, y), ledger, sigma=10.0, size=6, persons=persons, most=2)
    train(model, optimizer, (x, y), ledger, q=0.2, sigma=3.0, persons=persons, most=2)
    assert trained < ledger.epsilon < trained + 2
    with pytest.raises(ValueError, match="different views or neighbours"):
        train(model, optimizer, (x, y), ledger, q=0.1, sigma=2.0)
    with pytest.raises(BudgetExceeded):
        measure_privately(model, loss, (x, y), ledger, sigma=0.1, size=6, persons=persons, most=2)


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_the_modules_of_trainers_train_as_they_are(name):
    """Their forward alone is called; what wraps a loop around it is not."""
    tool = pytest.importorskip(name)
    if name == "lightning":
        model = type("Module", (tool.LightningModule,), {"forward": lambda self, x: self.layer(x)})()
        model.layer = torch.nn.Linear(3, 2)
        x, loss = torch.randn(8, 3), torch.nn.functional.cross_entropy
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        model = tool.BertForSequenceClassification(tool.BertConfig(vocab_size=50, num_labels=2, **sizes))
        x, loss = torch.randint(0, 50, (8, 6)), lambda out, y: torch.nn.functional.cross_entropy(out.logits, y)
    before = flat(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"steps": 1, "q": 1.0, "C": 1.0, "sigma": 1.0, "batch_size": 8}
    train_privately(model, optimizer, loss, (x, torch.arange(8) % 2), Ledger(None, epsilon=1e3), **options)
    assert not torch.equal(before, flat(model))


def mixed():
    model = torch.nn.Linear(3, 1)
    model.forward = lambda x: model.weight.sum() * x.sum().item()
    return model


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)), {}, "BatchNorm1d.*GroupNorm"),
        (
            torch.nn.Sequential(*[torch.nn.Linear(3, 3)] * 2),
            {},
            r"layer '1' \(Linear\) is in the model under another name",
        ),
        (mixed(), {}, "vmap"),
        (torch.nn.Linear(2, 1), {}, "shape|size"),  # what fails for every example
        (torch.nn.Linear(3, 1), {"persons": torch.arange(3), "most": 2}, r"persons is torch.int64 of shape \(3,\)"),
        (torch.nn.Linear(3, 1), {"persons": torch.rand(N), "most": 2}, "persons is torch.float32"),
        (torch.nn.Linear(3, 1), {"persons": torch.arange(N), "most": 0}, "most"),
    ],
)
def test_what_cannot_be_private_is_refused_before_anything_is_spent(model, options, said):
    data, ledger = silo()[2], Ledger(None, epsilon=50.0)
    with pytest.raises((ValueError, RuntimeError), match=said):
        train(model, torch.optim.SGD(model.parameters(), lr=1.0), data, ledger, **options)
    assert ledger.epsilon == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_bits_of_a_chains_noised_sum_do_not_tell_who_is_there(dtype):
    """Where noise and sum cancel, a sum that was rounded by itself would leave the result on its own coarse grid."""
    size = 30_000

    def gradient(model, there):
        torch.nn.init.zeros_(model.weight)
        optimizer = Kept(model.parameters())
        C = 0.3 * math.sqrt(size)
        options = {"steps": 1, "q": 1.0 if there else 1e-9, "C": C, "sigma": 1 / C, "batch_size": 1.0}
        one = torch.ones(1, size, dtype=dtype), torch.ones(1, 1, dtype=dtype)
        loss = lambda output, y: -(output * y).sum()  # noqa: E731
        train_privately(model, optimizer, loss, one, Ledger(None, epsilon=1e12), **options)
        return optimizer.released[0]

    small, grid = (2.0**-6, 2.0**-25) if dtype == torch.float32 else (2.0**-5, 2.0**-10)
    for there in (True, False):
        model = torch.nn.Linear(size, 1, bias=False).to(dtype)
        assert linear.is_chain(model)
        found = gradient(model, there)
        assert abs(float(found.mean()) - (-0.3 if there else 0.0)) < 0.05
        near = found[found.abs() < small]
        assert len(near) > 200
        assert float((torch.remainder(near, grid) == 0).double().mean()) < 0.2  # 1.0 where the sum came afterwards


def shares_of(weights, persons=4112):
    setting = {"rounds": 1, "examples": persons, "batch": persons, "most": 1, "clients": 2, "weights": weights}
    return next(one for one in plan(2.0, unit="person", **setting) if one.law)


@pytest.fixture
def summed(monkeypatch):
    """What a silo of three hands to the sum, which is then the mean."""
    found = []

    def mean(update, *, law, round):
        found.append({name: value.double() for name, value in update.items()})
        return {name: value / 3 for name, value in update.items()}

    monkeypatch.setattr(private, "mean", mean)
    monkeypatch.setattr(private.dist, "get_world_size", lambda: 3)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["chain", "any"])
def test_a_person_moves_a_silos_sum_by_no_more_than_C_whatever_the_models_format(summed, kind, dtype):
    """A sum of 4,112 people in sixteen bits is a multiple of 32; with one person more it was the next multiple."""
    d, persons = 256, 4112
    one = shares_of(d, persons)
    x = torch.full((persons + 1, d), 1 / 16, dtype=dtype)
    x[-1] = 0.002
    for there in (0, 1):
        layer = torch.nn.Linear(d, 1, bias=False)
        model = (layer if kind == "chain" else torch.nn.Sequential(layer, torch.nn.Softplus())).to(dtype)
        assert linear.is_chain(model) == (kind == "chain")
        torch.nn.init.zeros_(layer.weight)
        data = x[: persons + there], torch.ones(persons + there, dtype=dtype)
        options = {"steps": 1, "q": 1.0, "C": 1.0, "sigma": one.parameter, "batch_size": 3.0 * persons}
        loss = lambda output, y: 2 * (output * y).sum() if kind == "any" else (output * y).sum()  # noqa: E731
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        train_privately(model, optimizer, loss, data, Ledger(None, epsilon=2.0), shares=one.law, **options)
        assert float(layer.weight.detach().abs().min()) > 0.01
    without, with_ = (torch.cat([value.flatten() for value in sums.values()]) for sums in summed)
    assert float(without.norm()) == pytest.approx(persons, rel=1e-2)
    assert float((with_ - without).norm()) == pytest.approx(0.032, rel=0.02)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"C": 1e-150}, "C=1e-150"),
        ({"generator": torch.Generator()}, "never seeded"),
        ({"shares": shares_of(400).law, "sigma": 0.5}, "law of 400 weights, and 4 are trained"),
        ({"shares": shares_of(4).law.with_clients(3), "sigma": 0.5}, "law.clients=3 needs the noise"),
    ],
)
def test_what_no_step_can_have_is_refused_before_anything_is_spent(options, said, summed):
    model, optimizer, data = silo()
    ledger = Ledger(None, epsilon=50.0)
    with pytest.raises(ValueError, match=said):
        train(model, optimizer, data, ledger, **{"C": 1.0, **options})
    if "generator" in options:
        metrics = {"loss": (torch.nn.functional.mse_loss, 4.0)}
        with pytest.raises(ValueError, match=said):
            measure_privately(model, metrics, data, ledger, sigma=10.0, size=N, **options)
    assert ledger.epsilon == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model[0], "forward", lambda x: x),
        lambda model: model.__setitem__(1, torch.nn.ReLU(inplace=True)),
        lambda model: model[0].register_forward_hook(lambda *_: None),
        lambda model: model[0].register_forward_pre_hook(lambda *_: None),
        lambda model: model[0].register_full_backward_hook(lambda *_: None),
        lambda model: model[0].register_full_backward_pre_hook(lambda *_: None),
        lambda model: model[0].weight.register_hook(lambda grad: grad),
    ],
)
def test_what_may_mix_rows_or_changes_what_came_in_is_no_chain(change):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    assert linear.is_chain(model)
    change(model)
    assert not linear.is_chain(model)


def test_a_hook_on_all_modules_makes_no_chain():
    model = torch.nn.Sequential(torch.nn.Linear(3, 1))
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not linear.is_chain(model)
    finally:
        handle.remove()
    assert linear.is_chain(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_clipped_row_is_no_longer_than_its_bound(dtype):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1)).to(dtype)
    whose = torch.zeros(1, dtype=torch.int64)
    for _ in range(30):
        parts = [torch.randn(1, 40).to(dtype) * 9, torch.randn(1, 1).to(dtype) * 9]
        total = linear.clipped_sum(model, torch.nn.functional.mse_loss, parts, whose, 1, 0.7)
        length = math.sqrt(sum(float(one.square().sum()) for one in total.values()))
        assert length <= 0.7 * (1 + 1e-12)
