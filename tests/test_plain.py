# SPDX-License-Identifier: Apache-2.0
# Calls at once and calls through torch's dispatcher: the same bits, and the same refusals.
import warnings

import pytest
import torch
import torch.nn.utils.prune
from torch.utils._python_dispatch import TorchDispatchMode

import ldpkernels
from ldpkernels import key, perturb_
from ldpkernels.inputs.transforms import is_seen_by_torch
from ldpkernels.laws.registry import NAMES
from ldpkernels.ops import OPERATIONS


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 5)


def marked(module, **attributes):
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def freed():
    t = torch.ones(3)
    t.untyped_storage().resize_(0)
    return t


def tied():
    model = torch.nn.Sequential(linear(), linear())
    model[1].weight = model[0].weight
    return model


class FSDPModule:
    __module__ = "torch.distributed.fsdp"


class GatheredLinear(FSDPModule, torch.nn.Linear):
    """As fully_shard makes a layer's class."""


class Subclass(torch.Tensor):
    pass


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


DOUBTFUL = {
    "negated, of one element": lambda: torch._neg_view(torch.ones(1)),
    "imaginary part of a conjugate": lambda: torch.tensor([1 + 2j]).conj().imag,
    "zeros without memory": lambda: torch._efficientzerotensor(3),
    "meta": lambda: torch.zeros(3, device="meta"),
    "functional": lambda: torch._to_functional_tensor(torch.ones(3)),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "integers": lambda: torch.zeros(3, dtype=torch.int32),
    "complex": lambda: torch.zeros(3, dtype=torch.complex64),
    "float8": lambda: torch.zeros(3).to(torch.float8_e4m3fn),
    "transposed": lambda: torch.zeros(4, 4).t(),
    "expanded": lambda: torch.zeros(1).expand(4),
    "empty": lambda: torch.zeros(0),
    "freed": freed,
    "subclass": lambda: torch.zeros(3).as_subclass(Subclass),
    "twice": lambda: [torch.ones(3)] * 2,
    "overlapping": lambda: (lambda t: [t[:3], t[2:]])(torch.ones(5)),
    "overlapping, the later first": lambda: (lambda t: [t[2:], t[:3]])(torch.ones(5)),
    "tied": tied,
}


def outcome(model, monkeypatch, through_torch):
    """What a call leaves in its tensors, or the error that it raises."""
    with monkeypatch.context() as patched:
        if through_torch:
            patched.setattr("ldpkernels.calls.perturb.in_place.takes_operation", lambda _: True)
            patched.setattr("ldpkernels.calls.perturb.reported.takes_operation", lambda _: True)
        try:
            report = ldpkernels.report(model, 0.1, 0.9, 2.0, generator=key(5)).to_bytes()
            perturb_(model, 0.1, 0.9, 2.0, generator=key(5))
        except (TypeError, ValueError, RuntimeError) as error:
            return type(error), str(error)
    return report, [t.detach().resolve_neg().reshape(-1).tolist() for t in tensors_of(model)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", DOUBTFUL)
def test_what_is_out_of_the_ordinary_is_taken_or_refused_as_by_the_operation(case, monkeypatch):
    at_once = outcome(DOUBTFUL[case](), monkeypatch, False)
    assert at_once == outcome(DOUBTFUL[case](), monkeypatch, True)
    taken = case in ("negated, of one element", "imaginary part of a conjugate", "transposed", "empty", "subclass",
                     "twice", "tied")  # fmt: skip
    assert isinstance(at_once[0], bytes) == taken, at_once


def test_torch_sees_a_call_in_modes_transforms_and_traces():
    seen = []

    def look(x):
        seen.append(is_seen_by_torch([x]))
        return x + 1

    x = torch.ones(2, 3)
    torch.vmap(look)(x)
    torch.func.grad(lambda v: look(v).sum())(x)
    torch.func.functionalize(look)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jvp asks torch.jit for its rules
        torch.func.jvp(look, (x,), (x,))
        torch.jit.trace(look, (x,), check_trace=False)
    with Functions():
        look(x)
    with Dispatches():
        look(x)
    with torch.profiler.profile():
        look(x)
    assert seen == [True] * 8
    look(x)
    assert seen[-1] is False


def test_a_profiler_sees_the_operation():
    with torch.profiler.profile() as profile:
        perturb_(torch.ones(3), 0.0, 1.0, 1.0)
    assert any("two_point_" in event.key for event in profile.key_averages())


PLAIN = {
    "tensor": lambda: torch.linspace(-1, 1, 101),
    "leaf": lambda: torch.linspace(-1, 1, 101).requires_grad_(),
    "no dimension": lambda: torch.tensor(0.5),
    "one row": lambda: torch.linspace(-1, 1, 5)[None].expand(1, 5),
    "slices apart, the later first": lambda: (lambda t: [t[20:], t[:20]])(torch.linspace(-1, 1, 40)),
    "list": lambda: [torch.linspace(-1, 1, n) for n in (1, 7, 8, 9, 300)],
    "formats": lambda: [torch.linspace(-1, 1, 33).to(getattr(torch, n)) for n in ("float32", "float16", "bfloat16")],
    "wide": lambda: (torch.linspace(-1, 1, 33, dtype=torch.float64), torch.linspace(-1, 1, 33)),
    "module": lambda: torch.nn.Sequential(linear(), torch.nn.ReLU(), torch.nn.Conv2d(2, 3, 3), torch.nn.Dropout(0.1)),
    "transformer": lambda: (torch.manual_seed(0), torch.nn.TransformerEncoderLayer(8, 2, 16))[1],
    "module twice": lambda: (lambda m: torch.nn.Sequential(m, torch.nn.ReLU(), m))(linear()),
    "frozen": lambda: linear().requires_grad_(False),
}


@pytest.mark.parametrize("mechanism", NAMES)
@pytest.mark.parametrize("case", PLAIN)
def test_calls_at_once_have_the_bits_of_the_operations(case, mechanism):
    at_once, others = PLAIN[case](), tensors_of(PLAIN[case]())
    perturb_(at_once, 0.1, 0.9, 2.0, mechanism=mechanism, generator=key(5))
    numbers = [0.1] * len(others), [0.9] * len(others)
    with torch.no_grad():
        OPERATIONS[mechanism].perturb(others, key(5).tensor(), *numbers, 2.0)
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(at_once), others, strict=True))


def tensors_of(model):
    if isinstance(model, torch.nn.Module):
        return list(model.parameters())
    return list(model) if isinstance(model, list | tuple) else [model]


def reported_both_ways(monkeypatch, model, *ranges, **options):
    """The report at once, and through torch's dispatcher."""
    at_once = ldpkernels.report(model, *ranges, generator=key(5), **options)
    with monkeypatch.context() as patched:
        patched.setattr("ldpkernels.calls.perturb.reported.takes_operation", lambda _: True)
        return at_once, ldpkernels.report(model, *ranges, generator=key(5), **options)


@pytest.mark.parametrize("mechanism", NAMES)
@pytest.mark.parametrize("case", PLAIN)
def test_a_report_at_once_is_that_of_the_operation(case, mechanism, monkeypatch):
    at_once, other = reported_both_ways(monkeypatch, PLAIN[case](), 0.1, 0.9, 2.0, mechanism=mechanism)
    assert at_once.to_bytes() == other.to_bytes()
    assert torch.equal(at_once.payload, other.payload)


def test_a_report_looks_at_what_the_last_one_saw():
    """Nothing of it is kept but the description of equal models."""
    model = linear()
    first = ldpkernels.report(model, 0.0, 1.0, 1.0)
    model.more = torch.nn.Parameter(torch.ones(9))
    second = ldpkernels.report(model, 0.0, 1.0, 1.0)
    assert second.layout.shapes == ((5, 3), (5,), (9,))
    assert second.layout.names == ("weight", "bias", "more")
    assert (first.nbytes, second.nbytes) == (3, 5)
    with pytest.raises(ValueError, match=r"R=-1.0 must be"):
        ldpkernels.report(model, 0.0, -1.0, 1.0)
    with pytest.raises(ValueError, match="C has 2 values for 3 tensors"):
        ldpkernels.report(model, [0.0, 0.0], 1.0, 1.0)


def test_a_lazy_clone_parts_from_its_original():
    original = torch.zeros(100)
    clone = torch._lazy_clone(original)
    perturb_(clone, 0.0, 1.0, 1.0)
    assert (original == 0).all()
    assert (clone != 0).all()
