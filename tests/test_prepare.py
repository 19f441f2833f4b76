# SPDX-License-Identifier: Apache-2.0
# Prepared calls: the bits of the call, as often as nothing has changed.
import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
import torch.nn.utils.prune

import ldpkernels
from ldpkernels import key, perturb_, prepare
from tests.test_plain import PLAIN, GatheredLinear, linear, tensors_of


@pytest.mark.parametrize("case", [*PLAIN, "views", "batch normalisation"])
def test_a_prepared_call_is_the_call(case):
    def make():
        if case == "views":
            return [torch.linspace(-1, 1, 12).view(3, 4).t(), torch.ones(3)]
        return torch.nn.BatchNorm1d(3, affine=True) if case == "batch normalisation" else PLAIN[case]()

    buffers = "keep" if case == "batch normalisation" else None
    prepared, direct = make(), make()
    perturb = prepare(prepared, 0.1, 0.9, 2.0, buffers=buffers)
    for step in range(3):
        assert perturb(key(step)) is prepared
        perturb_(direct, 0.1, 0.9, 2.0, generator=key(step), buffers=buffers)
        assert all(torch.equal(a, b) for a, b in zip(tensors_of(prepared), tensors_of(direct), strict=True))
    before = [t.clone() for t in tensors_of(prepared)]
    perturb()
    perturb(key(9).tensor())
    with ldpkernels.backend("reference"):
        perturb()
    assert len(before) == len(tensors_of(prepared))


def parameter(data):
    return torch.nn.Parameter(data)


CHANGES = {
    "replaced": lambda m: setattr(m[0], "weight", parameter(m[0].weight.detach().clone())),
    "moved": lambda m: setattr(m[0].weight, "data", m[0].weight.detach().clone()),
    "reshaped": lambda m: setattr(m[0].weight, "data", m[0].weight.data.view(-1)),
    "transposed": lambda m: setattr(m[0].weight, "data", torch.ones(3, 5).t()),
    "shortened": lambda m: setattr(m[0].weight, "data", m[0].weight.data[:2]),
    "converted": lambda m: m.double(),
    "added": lambda m: m.append(linear()),
    "removed": lambda m: m.pop(1),
    "frozen out": lambda m: m[0].register_parameter("bias", None),
    "swapped": lambda m: m.insert(0, m.pop(1)),
    "another tensor in its memory": lambda m: setattr(m[0], "weight", parameter(m[0].weight.detach())),
    "buffered": lambda m: m[0].register_buffer("mean", torch.ones(3)),
    "with a copy": lambda m: setattr(m[0], "copy_of_weights", m[0].weight.detach().clone()),
    "with a hook": lambda m: torch.nn.utils.weight_norm(m[0]),
    "tied": lambda m: setattr(m[1], "weight", m[0].weight),
    "overlapping": lambda m: setattr(m[1].weight, "data", m[0].weight.data),
    "gathered": lambda m: setattr(m[0], "__class__", GatheredLinear),
    "freed": lambda m: m[0].weight.untyped_storage().resize_(0),
    "cut short": lambda m: m[0].weight.untyped_storage().resize_(8),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_prepared_call_refuses_what_changed(change):
    model = torch.nn.Sequential(linear(), linear())
    perturb = prepare(model, 0.0, 1.0, 1.0)
    perturb()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CHANGES[change](model)
    whole = [t for t in model.parameters() if t.untyped_storage().nbytes() >= t.nbytes]
    bits = [t.detach().clone() for t in whole]
    with pytest.raises((ValueError, TypeError), match=r"prepare it again|tensor|buffer|memory|attribute|gathered"):
        perturb()
    assert all(torch.equal(a, b) for a, b in zip(bits, whole, strict=True))


def test_a_prepared_list_of_arrays_refuses_what_changed():
    arrays = [np.zeros(3, np.float32), np.zeros(4)]
    perturb = prepare(arrays, 0.0, [1.0, 2.0], 1.0, mechanism="piecewise")
    assert perturb(key(1)) is arrays
    arrays[1] = np.zeros(4)
    with pytest.raises(ValueError, match="tensor '1' is another one"):
        perturb()
    arrays.append(np.zeros(4))
    with pytest.raises(ValueError, match="'2' was added or removed"):
        perturb()


def test_what_a_call_refuses_is_refused_when_it_is_prepared():
    with pytest.raises(ValueError, match="eps"):
        prepare(torch.ones(3), 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="R=-1"):
        prepare(torch.ones(3), 0.0, -1.0, 1.0)
    with pytest.raises(TypeError, match="int32"):
        prepare(torch.ones(3, dtype=torch.int32), 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="buffers"):
        prepare(torch.nn.BatchNorm1d(3), 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="variance cannot be negative"):
        prepare(torch.nn.BatchNorm1d(3), 0.0, 1.0, 1.0, buffers="perturb")
    array = np.zeros(3)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        prepare(array, 0.0, 1.0, 1.0)


def test_a_prepared_call_is_for_one_process(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import distribute_tensor

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        with pytest.raises(TypeError, match="takes no DTensors"):
            prepare(distribute_tensor(torch.ones(4), mesh), 0.0, 1.0, 1.0)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_prepared_call_is_not_copied(take):
    with pytest.raises(TypeError, match="a prepared call is for its own tensors: prepare another"):
        take(prepare(torch.zeros(3), 0.0, 1.0, 1.0))


def test_a_key_whose_memory_is_gone_is_refused():
    perturb, dead = prepare(torch.zeros(4), 0.0, 1.0, 1.0), torch.arange(9, 11)
    dead.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="key"):
        perturb(dead)
    with pytest.raises(TypeError, match="generator, which can be iterated only once"):
        prepare((t for t in [torch.zeros(4)]), 0.0, 1.0, 1.0)
