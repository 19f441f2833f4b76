# SPDX-License-Identifier: Apache-2.0
# Averages into a model: all of them or none, whatever wrappers stand around it; and reports of wrapped models.
import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import aggregate, load, perturb_, ranges, report
from tests.conftest import EPS, KEY


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def wrapped(model):
    yield "DataParallel", torch.nn.DataParallel(model)
    yield "torch.compile", torch.compile(model)
    yield "both", torch.nn.DataParallel(torch.compile(model))
    opacus = pytest.importorskip("opacus")
    yield "Opacus", opacus.GradSampleModule(model)


@pytest.mark.filterwarnings("ignore")
def test_reports_of_wrapped_models_are_those_of_the_model():
    model = network()
    C, R = {"0": 0.0, "2": 0.1}, {"0.weight": 1.0, "0.bias": 0.5, "2": 1.0}
    wanted = report(model, C, R, EPS, generator=KEY)
    for kind, wrapper in wrapped(model):
        found = report(wrapper, C, R, EPS, generator=KEY)
        assert found.to_bytes() == wanted.to_bytes(), kind
        assert ranges(wrapper) == ranges(model)
    inside = torch.nn.Sequential(network()[0], torch.compile(network()[2]))
    assert report(inside, 0.0, 1.0, EPS).layout.names == ("0.weight", "0.bias", "1.weight", "1.bias")


@pytest.mark.filterwarnings("ignore")
def test_ranges_by_the_names_of_a_wrapper_or_of_what_it_wraps():
    model = network()
    C, R = {"0": 0.0, "2.weight": 0.1, "2.bias": 0.2}, {"0.weight": 1.0, "0.bias": 0.5, "2": 1.0}
    wanted = report(model, C, R, EPS, generator=KEY)
    for prefix in ("module.", "_module.", "_orig_mod.", "module._orig_mod."):
        named = [{prefix + k: v for k, v in one.items()} for one in (C, R)]
        for kind, wrapper in [("none", model), *wrapped(network())]:
            for c, r in (named, (C, named[1]), (named[0], R)):
                assert report(wrapper, c, r, EPS, generator=KEY).to_bytes() == wanted.to_bytes(), (kind, prefix)
        state = {prefix + k: v for k, v in model.state_dict().items()}
        found = report(state, C, R, EPS, generator=KEY)
        assert torch.equal(found.payload, wanted.payload)
        assert found.layout.names == tuple(state)  # a mapping's names are its owner's
    inside = torch.nn.Sequential(network()[0], torch.compile(network()[2]))
    assert report(inside, {"0": 0.0, "1._orig_mod": 0.5}, 1.0, EPS).layout.c == (0.0, 0.0, 0.5, 0.5)
    for wrong in (
        {"module.0": 0.0, "2": 0.0},
        {"module.0": 0.0, "module.3": 0.0},
        {"_module.0": 0.0, "0": 1.0, "2": 0.0},
    ):
        with pytest.raises(ValueError, match="C names"):
            report(model, wrong, 1.0, EPS)


def test_updates_are_added():
    model, wanted = network(), network()
    mean = {name: torch.full(p.shape, 0.25, dtype=torch.float64) for name, p in model.named_parameters()}
    load(model, mean, add=True)
    for p, q in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(p, (q.double() + 0.25).float())
    assert load(np.ones(3, np.float32), np.full(3, 0.5), add=True).tolist() == [1.5] * 3
    half = torch.ones(2, dtype=torch.bfloat16)
    assert load(half, torch.full((2,), 0.5), add=True).tolist() == [1.5, 1.5]


def test_a_users_own_names_are_kept():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = torch.nn.Linear(2, 2)

    model = Own()
    assert report(model, 0.0, 1.0, EPS).layout.names == ("module.weight", "module.bias")
    model._module = torch.nn.Linear(2, 2)
    assert report(model, 0.0, 1.0, EPS).layout.names[2:] == ("_module.weight", "_module.bias")
    load(model, aggregate([report(model, 0.0, 1.0, EPS)]))


@pytest.mark.filterwarnings("ignore")
def test_averages_fit_through_wrappers():
    model = network()
    mean = aggregate([report(model, 0.0, 1.0, EPS) for _ in range(3)])
    for names in ("", "module.", "_orig_mod.module."):
        given = {names + k: v for k, v in mean.items()}
        for wrapper in (network(), *(wrapper for _, wrapper in wrapped(network()))):
            assert load(wrapper, given) is wrapper
            assert all(torch.equal(v, w) for v, w in zip(wrapper.parameters(), mean.values(), strict=True))


def test_containers_and_libraries():
    arrays = {"w": np.ones((2, 3)), "b": np.ones(2, np.float32)}
    made = {k: np.zeros_like(v) for k, v in arrays.items()}
    load(made, {k: torch.from_numpy(v) for k, v in arrays.items()})
    assert all((made[k] == 1).all() for k in made)
    tensors = [torch.zeros(2, 3), torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)]
    assert load(tensors, list(arrays.values())) is tensors
    assert all((t == 1).all() for t in tensors)
    assert tensors[1].is_leaf
    assert load(torch.zeros(3), np.ones(3)).tolist() == [1, 1, 1]
    assert load(np.zeros(3), np.ones(3)).tolist() == [1, 1, 1]


def test_buffers_are_loaded_where_they_were_reported():
    model, other = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    for buffers in ("perturb", "keep"):
        mean = aggregate([report(model, 0.5, 0.5, EPS, buffers=buffers)])
        for said in (None, buffers):
            load(other, mean, buffers=said)
            assert torch.equal(other.weight, mean["weight"])
            assert torch.equal(other.running_mean, mean.get("running_mean", other.running_mean))


def test_what_does_not_fit_is_refused_before_the_first_write():
    model = network()
    good = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for mean, error, match in [
        ({}, ValueError, "no average of '0.weight'.*4 left out, 0 left over"),
        ({k: v for k, v in good.items() if k != "2.bias"}, ValueError, r"no average of '2\.bias'"),
        (good | {"3.bias": torch.zeros(2)}, ValueError, "'3.bias', which is not a tensor of the model"),
        ({f"net.{k}": v for k, v in good.items()}, ValueError, "no average of '0.weight'.*4 left out, 4 left over"),
        (good | {"2.bias": torch.zeros(3)}, ValueError, r"tensor '2\.bias' has shape \(2,\) and its average \(3,\)"),
        (good | {"2.bias": None}, TypeError, "the average of tensor '2.bias' is a NoneType"),
        (list(good.values()), TypeError, "pass a mapping by name"),
        (torch.zeros(3), TypeError, "pass a mapping by name"),
    ]:
        with pytest.raises(error, match=match):
            load(model, mean)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with pytest.raises(ValueError, match="sequence of 2 tensors"):
        load([torch.zeros(1), torch.zeros(1)], [torch.zeros(1)])
    with pytest.raises(TypeError, match="model one tensor"):
        load(torch.zeros(1), {"w": torch.zeros(1)})


def test_the_parameters_of_a_model_are_a_sequence():
    model = network()
    one = report(model.parameters(), 0.0, 1.0, EPS, generator=KEY)
    assert torch.equal(one.payload, report(list(model.parameters()), 0.0, 1.0, EPS, generator=KEY).payload)
    perturb_(model.parameters(), 0.0, 1.0, EPS)
    assert all(len(p.unique()) <= 2 for p in model.parameters())
    C, R = ranges(model.parameters())
    assert len(C) == len(R) == 4
    with pytest.raises(TypeError, match="'0' is a tuple"):
        perturb_(model.named_parameters(), 0.0, 1.0, EPS)
    assert ldpkernels.perturb_vector(model.parameters(), 1.0, norm=1.0)[0].shape == (3, 4)


def inference_tensor():
    with torch.inference_mode():
        return torch.zeros(2)


UNFIT = {
    "strings": (np.zeros(2), np.array(["x", "y"])),
    "complex": (torch.zeros(2), torch.zeros(2, dtype=torch.complex64)),
    "sparse": (torch.zeros(2), torch.zeros(2).to_sparse()),
    "meta average": (torch.zeros(2), torch.zeros(2, device="meta")),
    "meta": (torch.zeros(2, device="meta"), torch.ones(2)),
    "expanded": (torch.zeros(1).expand(2), torch.ones(2)),
    "integers": (torch.zeros(2, dtype=torch.int64), torch.full((2,), 0.7)),
}


@pytest.mark.parametrize("case", UNFIT)
def test_averages_that_cannot_be_written_are_refused_before_the_first_write(case):
    tensor, average = UNFIT[case]
    first = np.zeros(2) if isinstance(tensor, np.ndarray) else torch.zeros(2)
    with pytest.raises((TypeError, ValueError, NotImplementedError)):
        load([first, tensor], [np.ones(2), average])
    assert not first.any()


FIT = {
    "bfloat16 into NumPy": (np.zeros(2), torch.ones(2, dtype=torch.bfloat16)),
    "negative strides": (torch.zeros(2), np.ones(2)[::-1]),
    "big-endian": (torch.zeros(2), np.ones(2, ">f4")),
    "inference": (inference_tensor(), torch.ones(2)),
}


@pytest.mark.parametrize("case", FIT)
def test_averages_of_any_layout_are_loaded(case):
    tensor, average = FIT[case]
    load([tensor], [average])
    assert (np.asarray(tensor) == 1).all()


@pytest.mark.parametrize("make", [np.full, torch.full])
def test_averages_that_are_the_models_own_tensors(make):
    a, b = make((2,), 1.0), make((2,), 2.0)
    load([a, b], [b, a])
    assert a.tolist() == [2.0, 2.0]
    assert b.tolist() == [1.0, 1.0]
