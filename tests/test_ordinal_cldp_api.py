# SPDX-License-Identifier: Apache-2.0
# cldp_ and cldp_sample: models, views, per-tensor alpha, generators, torch ops, and what is refused untouched.
import numpy as np
import pytest
import torch

import ldpkernels
import ldpkernels.ops
from ldpkernels import cldp_, cldp_sample

KEY = torch.tensor([7], dtype=torch.int64)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*TF32.*:UserWarning"),
]


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 5))


def test_a_model_in_place():
    m = model()
    before = [p.detach().clone() for p in m.parameters()]
    versions = [p._version for p in m.parameters()]
    assert cldp_(m, 0.01, 1.0, 2, generator=ldpkernels.key(1)) is m
    for p, b, version in zip(m.parameters(), before, versions, strict=True):
        assert p._version > version
        assert p.requires_grad
        assert (p - b).abs().max() > 0.1
        assert p.abs().max() <= 1
        steps = p.detach().double() * 100
        assert (steps - steps.round()).abs().max() < 1e-4


def test_torch_arrays_and_sequences_give_the_same_bits():
    a, b = np.linspace(-1, 1, 37, dtype=np.float32), np.linspace(-2, 2, 12).reshape(3, 4)
    for options in ({}, {"mechanism": "laplace"}, {"rounding": "stochastic"}):
        arrays = {"a": a.copy(), "b": b.copy()}
        tensors = [torch.from_numpy(a.copy()), torch.from_numpy(b.copy())]
        cldp_(arrays, 0.1, 1.0, 3, generator=ldpkernels.key(4), **options)
        cldp_(tensors, 0.1, 1.0, 3, generator=ldpkernels.key(4), **options)
        assert np.array_equal(arrays["a"], tensors[0].numpy())
        assert np.array_equal(arrays["b"], tensors[1].numpy())


def test_alpha_for_each_tensor():
    """A mapping names modules or tensors; a small alpha is a large noise."""
    m = model()
    cldp_(m, {"0": 1e-4, "1.weight": 1000.0, "1.bias": 1000.0}, 1.0, 2, generator=ldpkernels.key(2))
    assert m[0].weight.std() > 0.4
    assert m[1].weight.abs().max() <= 0.19  # 1 / sqrt(30), rounded
    alone = [torch.zeros(8), torch.zeros(8)]
    cldp_(alone, [0.5, 2.0], 1.0, 2, generator=ldpkernels.key(2))
    first = cldp_(torch.zeros(8), 0.5, 1.0, 2, generator=ldpkernels.key(2))
    assert torch.equal(alone[0], first)


def test_views():
    base = torch.zeros(40, 6)
    plain = cldp_(torch.zeros(6, 20), 0.1, 1.0, 2, generator=ldpkernels.key(3))
    cldp_(base[::2].t(), 0.1, 1.0, 2, generator=ldpkernels.key(3))
    assert torch.equal(base[::2].t(), plain)
    assert not base[1::2].any()
    array = np.zeros((40, 6), np.float32)
    cldp_(array[::2].T, 0.1, 1.0, 2, generator=ldpkernels.key(3))
    assert np.array_equal(array, base.numpy())
    v = torch.arange(60).reshape(6, 10)
    y = cldp_sample(v.t()[::2], 0.1, 100, generator=ldpkernels.key(3))
    assert torch.equal(y, cldp_sample(v.t()[::2].contiguous(), 0.1, 100, generator=ldpkernels.key(3)))
    assert torch.equal(v, torch.arange(60).reshape(6, 10))


def test_shapes_and_generators():
    for v in (torch.zeros((), dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int64)):
        assert cldp_sample(v, 0.1, 5).shape == v.shape
        assert cldp_sample(v.numpy(), 0.1, 5).shape == v.shape
    v = torch.zeros(100, dtype=torch.int64)
    first, second = cldp_sample(v, 1e-3, 10**6), cldp_sample(v, 1e-3, 10**6)
    assert not torch.equal(first, second)
    again = [cldp_sample(v, 1e-3, 10**6, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    assert torch.equal(*again)
    assert not torch.equal(*[cldp_sample(v, 1e-3, 10**6, generator="secure") for _ in range(2)])
    for secure in (ldpkernels.Key((1, 2)), ldpkernels.Key((1, 2, 3, 4))):
        assert torch.equal(
            cldp_sample(v, 1e-3, 10**6, generator=secure),
            torch.from_numpy(cldp_sample(v.numpy(), 1e-3, 10**6, generator=secure)),
        )


def test_laplace_is_not_boxed_but_kept_to_the_dtype():
    w = np.zeros(100_000, np.float16)
    cldp_(w, 0.004, 1.0, 0, mechanism="laplace", generator=ldpkernels.key(6))
    assert abs(w).max() > 1000
    assert np.isfinite(w).all()


def test_empty_box():
    assert not cldp_(np.ones(50), 0.1, 0.0, 3, generator=ldpkernels.key(0)).any()
    assert not cldp_sample(np.zeros(50, np.int64), 0.1, 0).any()


@pytest.mark.parametrize("key", [KEY, torch.tensor([1, -2, 3, -(2**63)])], ids=["philox", "chacha20"])
def test_opcheck(key):
    x = [torch.randn(5, 7), torch.randn(33, dtype=torch.float64), torch.randn(4, 3).bfloat16(), torch.randn(()).half()]
    views = [x[0].t(), x[1][::2], x[2][:0]]
    for sample in (x, views):
        arguments = (sample, key, [0.1 + i for i in range(len(sample))], 1.0, 2, "exponential", "nearest")
        torch.library.opcheck(torch.ops.ldpkernels.ordinal_cldp_.default, arguments)
    v = torch.arange(-20, 20)
    for sample in (v, v[::3], v[:0], v.reshape(5, 8).t()):
        torch.library.opcheck(torch.ops.ldpkernels.ordinal_cldp_sample.default, (sample, key, 0.1, 50, "laplace"))


def test_compiled_graphs_have_the_eager_bits():
    def step(x, key):
        y = x * 2
        cldp_(y, 0.1, 1.0, 2, generator=key)
        return y + 1, cldp_sample(x.long(), 0.1, 100, generator=key)

    torch._dynamo.reset()
    compiled, x = torch.compile(step, fullgraph=True), torch.randn(1000)
    for key in (KEY, KEY + 1):
        assert all(torch.equal(a, b) for a, b in zip(compiled(x, key), step(x, key), strict=True))
    torch._dynamo.reset()


REFUSED = [
    ({"alpha": 0.0}, ValueError, r"alpha=0\.0 must be a finite number above 0"),
    ({"alpha": "much"}, TypeError, "alpha='much' must be a number"),
    ({"alpha": [0.1, 0.2]}, ValueError, "alpha has 2 values for 3 tensors"),
    ({"alpha": {"a": 0.1, "b": 0.1}}, ValueError, "alpha names no .* 'c'"),
    ({"alpha": [0.1, 0.2, -1.0]}, ValueError, r"alpha=-1\.0 must be"),
    ({"c": -1.0}, ValueError, r"c=-1\.0 must be a finite"),
    ({"c": 1e6}, OverflowError, "overflows float16: use a smaller c or a wider dtype"),
    ({"rho": 3.5}, ValueError, r"rho=3\.5 must be an integer from 0 to 22"),
    ({"rho": 20}, ValueError, "use a smaller c or rho"),
    ({"mechanism": "gauss"}, ValueError, "mechanism='gauss' must be 'exponential' or 'laplace'"),
    ({"rounding": "up"}, ValueError, "rounding='up' must be 'nearest' or 'stochastic'"),
    ({"alpha": 1e-9, "rho": 3, "mechanism": "laplace"}, ValueError, "cut off at 65504000.*wider dtype"),
    ({"generator": 5}, TypeError, "generator=a int must be"),
    ({"buffers": "drop"}, ValueError, "buffers='drop'"),
]


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED)
def test_what_is_refused_before_the_first_write(library, wrong, error, message):
    arrays = {"a": np.ones(9, np.float32), "b": np.ones(4), "c": np.ones(3, np.float16)}
    tensors = arrays if library == "numpy" else {k: torch.from_numpy(v) for k, v in arrays.items()}
    with pytest.raises(error, match=message):
        cldp_(tensors, **({"alpha": 0.1, "c": 1.0, "rho": 2} | wrong))
    assert all((a == 1).all() for a in arrays.values())


def test_wrong_tensors_are_refused_before_the_first_write():
    good, norm = torch.ones(5), torch.nn.BatchNorm1d(3)
    with pytest.raises(TypeError, match=r"dtype torch\.int32"):
        cldp_([good, torch.ones(5).int()], 0.1, 1.0, 2)
    assert (good == 1).all()
    with pytest.raises(ValueError, match="buffers='perturb'"):
        cldp_(norm, 0.1, 1.0, 2)
    cldp_(norm, 0.1, 1.0, 2, buffers="keep")
    assert (norm.running_var == 1).all()


@pytest.mark.parametrize(
    ("v", "arguments", "error", "message"),
    [
        ([3, 0], (0.1, 2), ValueError, r"v holds 3, outside \[-2, 2\]: clip it, or use a larger M"),
        ([-(2**63), 0], (0.1, 2), ValueError, "v holds -9223372036854775808, outside"),
        ([0], (0.1, -1), ValueError, "M=-1 must be an integer from 0 to 2.62 - 1"),
        ([0], (0.1, 2**62), ValueError, "M=4611686018427387904 must be an integer"),
        ([0], (0.1, 2.5), ValueError, r"M=2\.5 must be an integer"),
        ([0], (float("nan"), 5), ValueError, "alpha=nan must be"),
        ([0.5], (0.1, 5), TypeError, "float64"),
    ],
)
def test_what_cldp_sample_refuses(v, arguments, error, message):
    for data in (np.array(v), torch.from_numpy(np.array(v))):
        with pytest.raises(error, match=message):
            cldp_sample(data, *arguments)
    with pytest.raises(TypeError, match="v is a list: pass a dense int64 tensor"):
        cldp_sample(v, *arguments)
