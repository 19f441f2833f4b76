# SPDX-License-Identifier: Apache-2.0
import importlib

import pytest

import ldpkernels

torch = pytest.importorskip("torch")


def model_of(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def gradients(model, x, y):
    def loss(weights, x, y):
        return torch.nn.functional.cross_entropy(torch.func.functional_call(model, weights, x[None]), y[None])

    weights = {name: p.detach() for name, p in model.named_parameters()}
    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)


def batch(n=20):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)


@pytest.mark.parametrize("clipping", ["flat", "per-layer"])
def test_a_step_on_the_gradients_of_torch_func(clipping):
    model = model_of()
    grads = gradients(model, *batch())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    key = ldpkernels.key(5)
    info = ldpkernels.dp_sgd_step(
        model, optimizer, 0.5, 0.7, batch_size=16, grads=grads, generator=key, clipping=clipping
    )
    expected = ldpkernels.clipped_noised_mean(grads, 0.5, 0.7, batch_size=16, generator=key, clipping=clipping)
    for name, p in model.named_parameters():
        assert torch.equal(p.grad, expected[name])
        torch.testing.assert_close(p.detach(), before[name] - 0.1 * p.grad)
    assert info.poisoned == 0
    assert info.norms.shape == ((20,) if clipping == "flat" else (20, 4))


def test_an_empty_batch_steps_by_the_noise_alone():
    model = model_of()
    grads = {name: torch.empty(0, *p.shape) for name, p in model.named_parameters()}
    ldpkernels.dp_sgd_step(model, None, 1.0, 1.0, batch_size=16, grads=grads)
    assert all((p.grad != 0).all() for p in model.parameters())


def test_a_poisoned_sample_is_left_out():
    model, (x, y) = model_of(), batch()
    x[3] = torch.nan
    info = ldpkernels.dp_sgd_step(model, None, 1.0, 0.0, batch_size=20, grads=gradients(model, x, y))
    found = [p.grad.clone() for p in model.parameters()]
    rest = torch.arange(20) != 3
    ldpkernels.dp_sgd_step(model, None, 1.0, 0.0, batch_size=20, grads=gradients(model, x[rest], y[rest]))
    assert info.poisoned == 1
    for a, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_errors_leave_the_model_alone():
    model = model_of()
    grads = gradients(model, *batch())
    cases = [
        ({"grads": None}, "'0.weight' has no grad_sample"),
        ({"grads": {k: v for k, v in grads.items() if k != "2.bias"}}, "no '2.bias'"),
        ({"grads": grads | {"other": grads["0.bias"]}}, "'other', which is no trainable parameter"),
        ({"grads": grads | {"0.bias": grads["0.bias"][:, :2]}}, "gradients of '0.bias' have shape"),
        ({"grads": grads | {"0.bias": grads["0.bias"][:3]}}, "tensor '0.bias' has 3 rows"),
        ({"grads": grads, "batch_size": 0}, "batch_size=0"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            ldpkernels.dp_sgd_step(model, None, 1.0, 1.0, **{"batch_size": 20, **options})
        assert all(p.grad is None for p in model.parameters())
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameters"):
        ldpkernels.dp_sgd_step(model, None, 1.0, 1.0, batch_size=20)


@pytest.fixture
def example():
    pytest.importorskip("opacus")
    pytest.importorskip("sklearn")
    return importlib.import_module("examples.opacus_dp_sgd")


@pytest.mark.filterwarnings("ignore")  # Opacus's and torch's of its hooks
def test_without_noise_training_gives_the_weights_of_opacus(example):
    ours, theirs = (example.train(30, 0.1, 0.5, 0.0, with_opacus=theirs) for theirs in (False, True))
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=5e-6)  # Opacus divides by the norm + 1e-6


@pytest.mark.filterwarnings("ignore")
def test_several_passes_of_opacus_are_one_batch(example):
    x, y = batch()
    found = []
    for parts in ([x], [x[:13], x[13:]]):
        model = example.GradSampleModule(model_of())
        start = 0
        for part in parts:
            torch.nn.functional.cross_entropy(model(part), y[start : start + len(part)]).backward()
            start += len(part)
        ldpkernels.dp_sgd_step(model, None, 1.0, 0.0, batch_size=20)
        assert all(p.grad_sample is None for p in model.parameters())
        found.append([p.grad for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
