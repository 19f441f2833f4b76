# SPDX-License-Identifier: Apache-2.0
# What perturb_ takes and what it leaves behind: containers, views, ranges, buffers, versions, threads.
import collections

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import TwoPoint, perturb_
from tests.conftest import EPS, FLOATS, KEY, outputs, values


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        collections.OrderedDict(a=torch.nn.Linear(6, 5), b=torch.nn.Sequential(torch.nn.Linear(5, 4, bias=False)))
    )


def test_a_module_keeps_its_leaves_and_their_gradients():
    m = model()
    m(torch.ones(2, 6)).sum().backward()
    before = [(p, p.grad.clone()) for p in m.parameters()]
    assert perturb_(m, 0.0, 0.5, EPS) is m
    assert [id(p) for p in m.parameters()] == [id(p) for p, _ in before]
    for p, grad in before:
        assert p.requires_grad
        assert p.is_leaf
        assert p.grad_fn is None
        assert torch.equal(p.grad, grad)
        assert values(p) <= outputs(0.0, 0.5)


def test_all_containers_and_both_libraries_give_the_same_bits():
    sizes = [(4, 5), (7,), (), (3, 1, 2)]
    dtypes = ["float32", "float64", "float16", "float32"]
    arrays = [np.random.default_rng(i).normal(size=s).astype(dtypes[i]) for i, s in enumerate(sizes)]
    arrays = [np.asarray(a) for a in arrays]
    runs = {
        "list": [torch.from_numpy(a.copy()) for a in arrays],
        "tuple": tuple(torch.from_numpy(a.copy()) for a in arrays),
        "dict": {str(i): torch.from_numpy(a.copy()) for i, a in enumerate(arrays)},
        "parameters": torch.nn.ParameterList([torch.from_numpy(a.copy()) for a in arrays]),
        "arrays": [a.copy() for a in arrays],
        "mapping of arrays": collections.OrderedDict((str(i), a.copy()) for i, a in enumerate(arrays)),
    }
    found = {}
    for name, container in runs.items():
        assert perturb_(container, 0.1, 0.6, EPS, generator=KEY) is container
        tensors = container.values() if isinstance(container, dict) else container
        found[name] = [np.asarray(t.detach() if isinstance(t, torch.Tensor) else t).tobytes() for t in tensors]
    assert all(bits == found["list"] for bits in found.values())


@pytest.mark.parametrize(
    ("C", "R"),
    [
        ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7]),
        (np.array([0.1, 0.2, 0.3]), (0.5, 0.6, 0.7)),
        (torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), {"a.weight": 0.5, "a.bias": 0.6, "b": 0.7}),
        ({"a.weight": 0.1, "a.bias": 0.2, "b.0.weight": 0.3}, [0.5, 0.6, 0.7]),
        ({"a.weight": 0.1, "a": 0.2, "": 0.3}, {"a.bias": 0.6, "a": 0.5, "b.0": 0.7}),
    ],
)
def test_ranges_by_tensor_and_by_module(C, R):
    m = model()
    perturb_(m, C, R, EPS, generator=KEY)
    for p, c, r in zip(m.parameters(), [0.1, 0.2, 0.3], [0.5, 0.6, 0.7], strict=True):
        assert values(p) == outputs(c, r)


def test_numbers_of_every_kind_are_ranges():
    for c, r in [(np.float32(0.5), 1), (torch.tensor(0.5), np.int64(1)), (np.array(0.5), torch.tensor(1))]:
        x = torch.zeros(200)
        perturb_(x, c, r, EPS)
        assert values(x) == outputs(0.5, 1.0)


def test_tied_parameters_are_perturbed_once():
    m = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    m[1].weight = m[0].weight
    alone = m[0].weight.detach().clone()
    perturb_(m, 0.0, 0.5, EPS, generator=KEY)
    perturb_(alone, 0.0, 0.5, EPS, generator=KEY)
    assert torch.equal(m[0].weight, alone)
    assert m[1].weight is m[0].weight
    x = torch.zeros(64)
    perturb_([x, x], [0.3], 0.5, EPS)
    assert values(x) == outputs(0.3, 0.5)


def test_names_and_order_are_pytorchs():
    """Nested, shared and absent modules and parameters."""
    shared = torch.nn.Linear(2, 2)
    m = torch.nn.ModuleDict({"b": torch.nn.Sequential(shared, torch.nn.BatchNorm1d(2), shared), "a": shared})
    m["c"] = torch.nn.Linear(2, 2, bias=False)
    m["c"].weight = m["b"][1].weight
    m["e"] = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    m.register_module("d", None)
    m.register_parameter("top", torch.nn.Parameter(torch.zeros(2)))
    m.register_buffer("none", None)
    m.register_buffer("count", torch.tensor(3))
    m.register_buffer("passing", torch.zeros(2), persistent=False)
    buffers = [name for name, b in m.named_buffers() if b.is_floating_point()]
    assert len(buffers) == 3
    found = ldpkernels.report(m, 0.0, 1.0, EPS, buffers="perturb").layout
    assert list(found.names) == [name for name, _ in m.named_parameters()] + buffers
    assert [n for n in found.names if n.startswith("c")] == []


class WithStatistics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(50)
        self.norm.running_mean.normal_()


def test_buffers_are_refused_perturbed_or_kept():
    m = WithStatistics()
    before = {k: v.clone() for k, v in m.state_dict().items()}
    for call in (perturb_, ldpkernels.report):
        with pytest.raises(ValueError, match=r"norm.running_mean.*2\).*buffers='perturb'.*buffers='keep'"):
            call(m, 0.0, 1.0, EPS)
    assert all(torch.equal(v, before[k]) for k, v in m.state_dict().items())
    perturb_(m, 0.0, 1.0, EPS, buffers="keep")
    assert torch.equal(m.norm.running_mean, before["norm.running_mean"])
    assert values(m.norm.weight) == outputs(0.0, 1.0)
    C, R = {"norm": 0.0, "norm.running_var": 1.0}, {"norm": 1.0, "norm.running_var": 0.25}
    perturb_(m, C, R, EPS, buffers="perturb")
    assert values(m.norm.running_mean) == outputs(0.0, 1.0)
    assert values(m.norm.running_var) == outputs(1.0, 0.25)
    assert m.norm.num_batches_tracked.item() == 0
    with pytest.raises(ValueError, match="buffers='drop'"):
        perturb_(m, 0.0, 1.0, EPS, buffers="drop")


def test_the_version_counter_moves():
    for w in (torch.ones(4, requires_grad=True), torch.ones(4, 4, requires_grad=True)[:, 1:3]):
        loss = (w * w).sum()
        version = w._version
        perturb_(w, 0.0, 1.0, EPS)
        assert w._version > version
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_nan_and_infinities_are_hidden():
    for x in (torch.zeros(3000), np.zeros(3000, np.float16)):
        x[:1000], x[1000:2000], x[2000:] = np.nan, np.inf, -np.inf
        perturb_(x, 1.0, 0.5, EPS, generator=KEY)
        low, high = TwoPoint(EPS).outputs(1.0, 0.5, x.dtype)
        shares = [float((x[i : i + 1000] == high).sum()) / 1000 for i in (0, 1000, 2000)]
        p = np.exp(EPS) / (1 + np.exp(EPS))
        assert np.allclose(shares, [0.5, p, 1 - p], atol=6 * 0.016), "6 standard deviations of 1000 coins"
        assert set(np.unique(x)) == {low, high}


@pytest.mark.parametrize("dtype", FLOATS)
def test_flushing_denormals_changes_no_bit(dtype):
    x = torch.cat([torch.linspace(-1, 1, 999), torch.tensor([1.1e-38, -1.1e-38, 1e-40, 6e-8, 0.0])]).to(dtype)
    wanted = perturb_(x.clone(), 0.0, 1e-38, EPS, generator=KEY)
    thresholds = ldpkernels.two_point_threshold(x, 0.0, 1e-38, EPS)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        assert torch.equal(ldpkernels.two_point_threshold(x, 0.0, 1e-38, EPS), thresholds)
        found = perturb_(x.clone(), 0.0, 1e-38, EPS, generator=KEY)
        assert torch.full((1,), 1e-40).mul(1.0).item() == 0.0, "the caller's mode was lost"
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("call", [lambda t: perturb_(t, 0.0, 1.0, EPS), lambda t: ldpkernels.cldp_(t, 0.1, 1.0, 2)])
def test_autograd_does_not_see_it(call):
    for pick in (lambda t: t, lambda t: t.T):
        x = torch.ones(5, 2, requires_grad=True)
        y = x * 2
        call(pick(y))
        y.sum().backward()
        assert torch.equal(x.grad, torch.full((5, 2), 2.0))


def test_inference_tensors_in_and_out_of_inference_mode():
    with torch.inference_mode():
        x, y = torch.zeros(100), torch.zeros(10, 10)
        perturb_([x, y.t()], 0.0, 1.0, EPS)
        assert values(y) == outputs(0.0, 1.0)
    for t in (torch.zeros(5), x, y.t()):
        wanted = perturb_(t.clone(), 0.5, 1.0, EPS, generator=KEY)
        assert torch.equal(perturb_(t, 0.5, 1.0, EPS, generator=KEY), wanted)
    normal = torch.zeros(3, requires_grad=True)
    perturb_([normal, x, y.t()], 0.5, 1.0, EPS)
    assert values(normal) | values(x) | values(y) == outputs(0.5, 1.0)
    assert not normal.is_inference()


def test_negated_and_conjugate_views():
    z = torch.zeros(50, dtype=torch.complex64)
    view = z.conj().imag
    assert view.is_neg()
    wanted = perturb_(torch.zeros(50), 0.3, 1.0, EPS, generator=KEY)
    assert perturb_(view, 0.3, 1.0, EPS, generator=KEY) is view
    assert torch.equal(view, wanted)
    assert torch.equal(z.imag, -wanted)
    assert not z.real.any()
    report = ldpkernels.report(view, 0.3, 1.0, EPS, generator=KEY)
    assert report.to_bytes() == ldpkernels.report(wanted, 0.3, 1.0, EPS, generator=KEY).to_bytes()
    assert torch.equal(
        ldpkernels.two_point_threshold(view, 0.3, 1.0, EPS), ldpkernels.two_point_threshold(wanted, 0.3, 1.0, EPS)
    )


def test_contiguous_negated_views():
    x = torch.linspace(-1, 1, 50)
    view, values = torch._neg_view(x), -x
    assert view.is_neg()
    assert view.is_contiguous()
    for function in (ldpkernels.two_point_threshold, lambda *a: ldpkernels.report(*a, generator=KEY).payload):
        assert torch.equal(function(view, 0.3, 1.0, EPS), function(values, 0.3, 1.0, EPS))
    assert ldpkernels.ranges(view) == ldpkernels.ranges(values)
    perturb_(view, 0.3, 1.0, EPS, generator=KEY)
    assert torch.equal(-x, perturb_(values, 0.3, 1.0, EPS, generator=KEY))


def test_tied_weights_of_a_state_dict_are_taken_once():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    model[1].weight = model[0].weight
    state = model.state_dict()
    one = ldpkernels.report(state, 0.0, 1.0, 1.0, generator=ldpkernels.key(1))
    assert one.layout.names == ("0.weight", "0.bias", "1.bias")
    ldpkernels.perturb_(state, 0.0, 1.0, 1.0)
    assert len(model[1].weight.unique()) == 2
    with pytest.raises(ValueError, match="share memory"):
        ldpkernels.perturb_({"a": state["0.weight"], "b": state["0.weight"][1:]}, 0.0, 1.0, 1.0)
