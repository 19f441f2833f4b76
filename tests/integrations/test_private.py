# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

from ldpkernels.accounting import BudgetExceeded, Ledger, SampledGaussianEvent, composed_epsilon
from ldpkernels.trainers import train_privately
from ldpkernels.trainers.private import _sample

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


def test_a_step_is_the_mean_of_clipped_gradients_one_at_a_time():
    model, optimizer, (x, y) = silo()
    total = torch.zeros(4)
    for i in range(N):
        loss = torch.nn.functional.mse_loss(model(x[i : i + 1]), y[i : i + 1])
        g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        total += g * min(1.0, 0.5 / float(g.norm()))
    before = flat(model)
    train(model, optimizer, (x, y), sigma=1e-3, ledger=Ledger(None, epsilon=1e9))
    torch.testing.assert_close(before - flat(model), total / N, atol=1e-3, rtol=1e-4)


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


def test_what_fails_for_every_example_is_refused_before_the_ledger():
    model, optimizer, (x, y) = labelled([0, 1])
    ledger = Ledger(None, epsilon=1e9)
    with pytest.raises(RuntimeError):
        classify(model, optimizer, (x[:, :2], y), ledger)
    assert ledger.epsilon == 0


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


def test_batch_norm_is_refused_before_anything_is_spent():
    _, _, data = silo()
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    ledger = Ledger(None, epsilon=50.0)
    with pytest.raises(ValueError, match=r"BatchNorm1d.*GroupNorm"):
        train(model, torch.optim.SGD(model.parameters(), lr=1.0), data, ledger)
    assert ledger.epsilon == 0


def test_an_empty_batch_is_a_step_of_noise_alone():
    model, optimizer, data = silo()
    before = flat(model)
    train(model, optimizer, data, q=1e-12)
    assert not torch.equal(before, flat(model))


@pytest.mark.parametrize("generator", ["secure", torch.Generator().manual_seed(1)])
def test_batch_sizes_have_the_binomial_law(generator):
    sizes = torch.tensor([float(_sample(100, 0.3, generator).sum()) for _ in range(2000)])
    assert abs(float(sizes.mean()) - 30) < 6 * math.sqrt(21 / 2000)
    assert abs(float(sizes.var()) / 21 - 1) < 6 * math.sqrt(2 / 2000)
    assert bool(_sample(100, 1.0, generator).all())
