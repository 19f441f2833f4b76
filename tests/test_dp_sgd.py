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
        ({"grads": grads | {"other": grads["0.bias"]}}, "'other', which is not a trainable parameter"),
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


def snapshot(model, optimizer):
    """Everything that a step may change."""
    everything = {id(p): p for g in optimizer.param_groups for p in g["params"]} | {
        id(p): p for p in model.parameters()
    }
    return [
        (p.detach().clone(), p.grad if p.grad is None else p.grad.clone(), getattr(p, "grad_sample", None))
        for p in everything.values()
    ]


def refuses(error, match, model, optimizer, **options):
    generator = torch.Generator().manual_seed(3)
    before, state = snapshot(model, optimizer), generator.get_state()
    with pytest.raises(error, match=match):
        ldpkernels.dp_sgd_step(
            model, optimizer, 1.0, **{"sigma": 1.0, "batch_size": 20, "generator": generator, **options}
        )
    assert torch.equal(generator.get_state(), state), "a refused call drew noise"
    for (w, grad, sample), (v, new, kept) in zip(before, snapshot(model, optimizer), strict=True):
        assert torch.equal(w, v)
        assert new is grad if grad is None else torch.equal(new, grad)
        assert sample is kept


def test_private_gradients_of_other_parameters_are_not_stepped_by():
    """An optimizer steps everything that has a gradient: parameters outside the model, and frozen ones."""
    model = model_of()
    grads = gradients(model, *batch())
    other = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([*model.parameters(), other], lr=1.0)
    other.grad = torch.tensor([100.0, 200.0])
    refuses(ValueError, r"parameter 4 .* no parameter of the model.*\.grad to None", model, optimizer, grads=grads)
    other.grad = None
    ldpkernels.dp_sgd_step(model, optimizer, 1.0, 1.0, batch_size=20, grads=grads)
    assert not other.any()
    model[0].bias.requires_grad_(False).grad = torch.full((5,), 7.0)
    rest = {k: v for k, v in grads.items() if k != "0.bias"}
    refuses(ValueError, r"parameter 1 .*group 0.* frozen", model, optimizer, grads=rest)
    model[0].bias.grad, before = None, model[0].bias.clone()
    ldpkernels.dp_sgd_step(model, optimizer, 1.0, 1.0, batch_size=20, grads=rest)
    assert torch.equal(model[0].bias, before)


def test_an_optimizer_that_computes_gradients_anew():
    model = model_of()
    optimizer = torch.optim.LBFGS(model.parameters())
    refuses(TypeError, "LBFGS, whose step recomputes gradients", model, optimizer, grads=gradients(model, *batch()))


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (lambda: torch.nn.BatchNorm1d(5), r"layer '1' \(BatchNorm1d\) mixes.*GroupNorm"),
        (lambda: torch.nn.BatchNorm1d(5, track_running_stats=False).eval(), "BatchNorm1d"),
        (lambda: torch.nn.SyncBatchNorm(5), "SyncBatchNorm"),
        (lambda: torch.nn.LazyBatchNorm1d(), "LazyBatchNorm1d"),
        (lambda: torch.nn.InstanceNorm1d(5, affine=True, track_running_stats=True), "InstanceNorm1d.*statistics"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_layers_that_mix_samples(layer, match):
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), layer())
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1.0)
    grads = {name: torch.ones(20, *p.shape) for name, p in model[0].named_parameters(prefix="0")}
    with pytest.raises(ValueError, match=match):
        ldpkernels.dp_sgd_step(model, optimizer, 1.0, 1.0, batch_size=20, grads=grads)
    assert all(p.grad is None for p in model.parameters())


def test_layers_that_do_not():
    for layer in (torch.nn.BatchNorm1d(5).eval(), torch.nn.GroupNorm(1, 5), torch.nn.InstanceNorm1d(5)):
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), layer)
        grads = {name: torch.ones(20, *p.shape) for name, p in model.named_parameters()}
        ldpkernels.dp_sgd_step(model, None, 1.0, 1.0, batch_size=20, grads=grads)


def private(sigma=1.0, n=60, rate=0.25, **options):
    """A model, an optimizer and batches as Opacus's PrivacyEngine makes them, with the engine."""
    opacus = pytest.importorskip("opacus")
    x, y = batch(n)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=round(n * rate))
    model = model_of()
    engine = opacus.PrivacyEngine(accountant="rdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return engine, *engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=sigma, max_grad_norm=0.5, **options
    )


def backward(model, optimizer, x, y):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()


@pytest.mark.filterwarnings("ignore")
def test_a_step_with_the_privacy_engine_of_opacus():
    """The engine counts our steps as it counts its own; at sigma 0 the weights are Opacus's."""
    epsilons, weights = {}, {}
    for sigma in (1.0, 0.0):
        for ours in (True, False):
            engine, model, optimizer, _ = private(sigma)
            for step in range(6):
                x, y = batch(20 - 4 * step)  # the last is empty
                backward(model, optimizer, x, y)
                if ours:
                    info = ldpkernels.dp_sgd_step(model, optimizer, 0.5, sigma, batch_size=15)
                    assert len(info.norms) == len(x)
                    assert all(p.grad_sample is None for p in model.parameters())
                else:
                    optimizer.step()
            weights[ours] = [p.detach().clone() for p in model.parameters()]
            if sigma:
                epsilons[ours] = engine.get_epsilon(1e-5)
                assert engine.accountant.history == [(1.0, 0.25, 6)]
    assert epsilons[True] == epsilons[False] > 0
    for a, b in zip(weights[True], weights[False], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=5e-6)


@pytest.mark.filterwarnings("ignore")
def test_steps_that_the_privacy_engine_would_count_wrongly():
    engine, model, optimizer, _ = private()
    backward(model, optimizer, *batch())
    refuses(ValueError, r"sigma=0\.5 is not the noise_multiplier=1\.0", model, optimizer, sigma=0.5)
    grads = {name: torch.ones(3, *p.shape) for name, p in model.named_parameters()}
    refuses(ValueError, "leave grads out", model, optimizer, grads=grads)
    optimizer.signal_skip_step()
    refuses(ValueError, "BatchMemoryManager", model, optimizer)
    assert not engine.accountant.history
    engine, model, optimizer, _ = private()
    optimizer.__class__ = type("DPPerLayerOptimizer", (type(optimizer),), {})
    backward(model, optimizer, *batch())
    refuses(TypeError, "DPPerLayerOptimizer.*original_optimizer", model, optimizer)
    assert not engine.accountant.history


@pytest.mark.filterwarnings("ignore")
def test_an_accountant_that_refuses_leaves_the_model_alone():
    _, model, optimizer, _ = private()
    backward(model, optimizer, *batch())

    def refuse(_):
        raise RuntimeError("no budget")

    optimizer.attach_step_hook(refuse)
    before = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match="no budget"):
        ldpkernels.dp_sgd_step(model, optimizer, 0.5, 1.0, batch_size=15)
    for (w, grad, sample), (v, new, kept) in zip(before, snapshot(model, optimizer), strict=True):
        assert torch.equal(w, v)
        assert torch.equal(grad, new)
        assert sample is kept


def test_gradients_by_the_names_of_a_wrapped_model():
    plain = model_of()
    grads = gradients(plain, *batch())
    wrapped = torch.nn.DataParallel(plain)
    for names in (grads, {f"module.{name}": g for name, g in grads.items()}):
        for model in (plain, wrapped):
            for p in plain.parameters():
                p.grad = None
            ldpkernels.dp_sgd_step(model, None, 1e9, 0.0, batch_size=20, grads=names)
            for name, p in plain.named_parameters():
                torch.testing.assert_close(p.grad, grads[name].sum(0) / 20)
