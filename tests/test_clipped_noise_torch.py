# SPDX-License-Identifier: Apache-2.0
# The torch operation: gradients, opcheck, torch.compile, and what the noise on a loss does not protect.
import numpy as np
import pytest

import ldpkernels
from ldpkernels import clipped_noised_mean, clipped_noised_sum

torch = pytest.importorskip("torch")

KEY = ldpkernels.key(3)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def rows(*shape, dtype=torch.float64, seed=0, grad=False):
    made = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_(grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_tensors_and_arrays_give_the_same_bits(dtype, noise):
    x = rows(33, 4, 5, dtype=dtype)
    out = clipped_noised_sum(x, 2.0, 0.5, generator=KEY, noise=noise)
    assert out.dtype == dtype
    assert out.shape == (4, 5)
    if dtype == torch.bfloat16:
        import ml_dtypes

        array = x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        expected = clipped_noised_sum(array, 2.0, 0.5, generator=KEY, noise=noise).view(np.uint16)
        assert (out.view(torch.uint16).numpy() == expected).all()
    else:
        assert (out.numpy() == clipped_noised_sum(x.numpy(), 2.0, 0.5, generator=KEY, noise=noise)).all()


def test_views_and_the_default_generator():
    x = rows(8, 6, 4)
    for view in (x[::2], x.transpose(1, 2), x[:, :1].expand(8, 6, 4), x[0].expand(3, 6, 4), torch._neg_view(x)):
        a = clipped_noised_sum(view, 2.0, 0.5, generator=KEY)
        assert torch.equal(a, clipped_noised_sum(view.clone(), 2.0, 0.5, generator=KEY))
    a, b = (clipped_noised_sum(x, 2.0, 0.5, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(a, b)
    torch.manual_seed(1)
    a = clipped_noised_sum(x, 2.0, 0.5)
    torch.manual_seed(1)
    assert not torch.equal(a, clipped_noised_sum(x, 2.0, 0.5)), "a seed that was not asked for"
    assert clipped_noised_mean(x, 1.0, 1.0, generator="secure").shape == (6, 4)


@pytest.mark.parametrize("clipping", ["flat", "per-layer"])
@pytest.mark.parametrize("function", [clipped_noised_sum, clipped_noised_mean])
def test_gradcheck(function, clipping):
    x, y = rows(9, 5, grad=True), rows(9, 2, 3, seed=1, grad=True)
    assert (x.detach().norm(dim=1) > 2).any()
    assert (x.detach().norm(dim=1) < 1.5).any()
    reduce = lambda a, b: tuple(function([a, b], 3.0, 0.3, generator=KEY, clipping=clipping))  # noqa: E731
    assert torch.autograd.gradcheck(reduce, (x, y))


def test_the_gradient_is_the_projection_and_zero_for_clipped_numbers():
    losses = torch.tensor(
        [0.2, 0.9, 3.0, -5.0, float("nan"), float("inf"), 0.0], dtype=torch.float64, requires_grad=True
    )
    clipped_noised_sum(losses, 1.0, 1.0).backward()
    assert losses.grad.tolist() == [1, 1, 0, 0, 0, 0, 1]
    x = rows(6, 4, grad=True)
    with torch.no_grad():
        x[2, 1] = torch.nan
        x[3] /= 100
    g = rows(4, seed=2)
    clipped_noised_mean(x, 0.5, 1.0, batch_size=3).backward(g)
    for i, row in enumerate(x.detach()):
        u = row / row.norm()
        projected = 0.5 / row.norm() * (g - u * (u @ g))
        expected = torch.zeros(4) if i == 2 else g if i == 3 else projected
        torch.testing.assert_close(x.grad[i], expected.double() / 3, rtol=1e-8, atol=1e-12)
    with pytest.raises(NotImplementedError, match="differentiated once"):
        torch.autograd.grad(clipped_noised_sum(x, 1.0, 0.0).sum(), x, create_graph=True)


@pytest.mark.parametrize("dtype", DTYPES[2:])
def test_gradients_keep_the_dtype(dtype):
    x = rows(6, 4, dtype=dtype, grad=True)
    clipped_noised_sum(x, 1.0, 1.0).sum().backward()
    assert x.grad.dtype == dtype
    assert x.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch 2.15
def test_opcheck():
    op = torch.ops.ldpkernels.clipped_noised_sum.default
    x, y = rows(5, 4, grad=True), rows(5, 2, 3, seed=1, dtype=torch.float32, grad=True)
    for arguments in (
        ([x, y], KEY.tensor(), [1.0], 1.0, 0.0, "discrete", "flat"),
        ([x, y], KEY.tensor(), [1.0, 2.0], 1.0, 3.0, "gaussian", "per-layer"),
        ([x.detach()[:, 0]], KEY.tensor(), [1.0], 0.0, 0.0, "gaussian", "per-layer"),
    ):
        torch.library.opcheck(op, arguments)


def test_compiles_in_one_graph():
    def step(x, key):
        return clipped_noised_mean({"w": x * 2}, 1.0, 0.5, generator=key)["w"].square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for B in (6, 9):
        x = rows(B, 4, grad=True)
        found = [torch.autograd.grad(f(x, KEY.tensor()), x)[0] for f in (step, compiled)]
        assert torch.equal(*found)
    drawn = torch.compile(lambda x: clipped_noised_sum(x, 1.0, 0.5), fullgraph=True, backend="aot_eager")
    assert not torch.equal(drawn(x), drawn(x))


def test_errors_come_before_anything_is_drawn():
    x = rows(4, 3)
    state = torch.get_rng_state()
    for bad, message in (
        (lambda: clipped_noised_sum(x.int(), 1.0, 1.0), "dtype torch.int32"),
        (lambda: clipped_noised_sum(x.to_sparse(), 1.0, 1.0), "sparse"),
        (lambda: clipped_noised_sum([x, x.numpy()], 1.0, 1.0), "ndarray among torch tensors"),
        (lambda: clipped_noised_sum(x.to("meta"), 1.0, 1.0), "meta"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            bad()
        assert torch.equal(state, torch.get_rng_state())


def test_noise_on_a_loss_is_a_constant_for_the_gradient():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    x, y = torch.randn(16, 5), torch.randn(16, 1) * 2

    def gradient(inputs, seed, sigma=10.0):
        losses = (model(inputs) - y).square().squeeze(1)
        loss = clipped_noised_mean(losses, 1.0, sigma, generator=ldpkernels.key(seed))
        return loss.item(), losses.detach(), torch.autograd.grad(loss, model.weight)[0]

    released = [gradient(x, seed) for seed in range(20)]
    assert len({loss for loss, _, _ in released}) == 20  # the scalar is noised
    assert all(torch.equal(g, released[0][2]) for _, _, g in released)  # the gradient is not, by exactly zero
    # A clipped sample adds nothing to the gradient; that of one within the bound is as large as its input makes it.
    losses = released[0][1]
    assert (losses > 1).any()
    kept = (model(x[losses < 1]) - y[losses < 1]).square().sum() / 16
    torch.testing.assert_close(released[0][2], torch.autograd.grad(kept, model.weight)[0])
    big = x.clone()
    with torch.no_grad():
        big[0] = 1e4 * model.weight[0]  # a loss kept below the bound by its label, a gradient that is not
        y[0] = model(big)[0] - 0.9
    assert gradient(big, 0)[2].norm() > 100


def test_the_documentation_says_so_in_its_first_line():
    first = clipped_noised_mean.__doc__.strip().split("\n\n")[0]
    assert "protects the released scalar only" in first.splitlines()[0]
    assert "constant for the gradient" in first
    assert "dp_sgd_step" in first
