# SPDX-License-Identifier: Apache-2.0
# The short way of a plain call: the bits of the long one, never for what only the long one may touch.
import warnings

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from torch.utils._python_dispatch import TorchDispatchMode

import ldpkernels
from ldpkernels import _native, key, perturb_
from ldpkernels.inputs import torch_functions
from ldpkernels.inputs.plain import _reader, plain
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


def flat_shard():
    module = linear()
    module.weight._is_flat_param = True
    return module


class ExtraState(torch.nn.Linear):
    def get_extra_state(self):
        return torch.ones(3)


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
    "tensor with an array": lambda: [torch.ones(3), np.ones(3)],
    "array with a tensor": lambda: [np.ones(3), torch.ones(3)],
    "number": lambda: [1.0],
    "masked": lambda: np.ma.zeros(3),
    "read-only": lambda: np.broadcast_to(np.zeros(3, np.float32), (3,)),
    "big-endian": lambda: np.zeros(3, ">f4"),
    "integers of NumPy": lambda: np.zeros(3, int),
    "every second": lambda: np.zeros(6)[::2],
    "misaligned": lambda: np.frombuffer(bytearray(13), np.uint8)[1:].view(np.float32),
    "module with a tensor beside": lambda: marked(linear(), old=torch.ones(3)),
    "module with a tensor for a number": lambda: marked(linear(), in_features=torch.ones(3)),
    "module with a list of tensors": lambda: marked(linear(), old=[1, (2, torch.ones(3))]),
    "module with a mapping": lambda: marked(linear(), old={"a": torch.ones(3)}),
    "parameter with a tensor": lambda: (lambda m: marked(m, weight=marked(m.weight, old=torch.ones(3))))(linear()),
    "parameter in a part of a storage": lambda: marked(linear(), weight=torch.nn.Parameter(torch.ones(16)[:15])),
    "shard": flat_shard,
    "extra state": lambda: ExtraState(3, 5),
    "gathered": lambda: GatheredLinear(3, 5),
    "batch normalisation": lambda: torch.nn.BatchNorm1d(3),
    "lazy": lambda: torch.nn.LazyLinear(3),
    "tied": tied,
    "pruned": lambda: torch.nn.utils.prune.random_unstructured(linear(), "weight", 0.3),
    "recurrent": lambda: torch.nn.LSTM(3, 3),
    "no parameters": lambda: torch.nn.ReLU(),
    "nothing": lambda: [],
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_a_doubt_is_a_no(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert plain(DOUBTFUL[case]()) is None


def test_no_mode_transform_or_trace_is_passed_by():
    seen = []

    def look(x):
        seen.append((plain(x), plain(torch.ones(3)) if not torch.compiler.is_compiling() else None))
        return x + 1

    x = torch.ones(2, 3)
    torch.vmap(look)(x)
    torch.func.grad(lambda v: look(v).sum())(x)
    torch.func.functionalize(look)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jvp asks torch.jit for its rules
        torch.func.jvp(look, (x,), (x,))
    with Functions():
        look(x)
    with Dispatches():
        look(x)
    with torch.profiler.profile():
        look(x)
    assert seen == [(None, None)] * 7


def test_a_profiler_sees_the_operation():
    with torch.profiler.profile() as profile:
        perturb_(torch.ones(3), 0.0, 1.0, 1.0)
    assert any("two_point_" in event.key for event in profile.key_averages())


@pytest.mark.parametrize("lacking", ["a function", "its code", "the right answer"])
def test_a_torch_whose_tensors_cannot_be_read_takes_the_long_way(lacking, monkeypatch):
    if lacking == "a function":
        monkeypatch.setattr(torch_functions, "_IS_NEG", "_ZN2at6native6is_negERKNS_7TensorsE")
    elif lacking == "its code":
        monkeypatch.setattr(torch_functions, "_CODES", (*torch_functions._CODES[:5], "dtype_float15"))
    else:  # fp32 where fp64 is meant, and the other way round
        codes = torch_functions._CODES
        monkeypatch.setattr(torch_functions, "_CODES", (*codes[:2], codes[3], codes[2], *codes[4:]))
    _reader.cache_clear()
    try:
        assert plain(torch.ones(3)) is None
        out = perturb_(torch.full((100,), 0.5), 0.0, 1.0, 2.0, generator=key(3))
    finally:
        monkeypatch.undo()
        _reader.cache_clear()
    assert plain(torch.ones(3)) is not None
    assert torch.equal(out, perturb_(torch.full((100,), 0.5), 0.0, 1.0, 2.0, generator=key(3)))


def test_objects_of_another_build_are_not_read():
    samples = (torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match="another build"):
        _native.TorchTensors([1] * 10, [0] * 6, samples, [samples[0]._cdata] * 2)


def test_the_tries_notice_a_function_that_answers_something_else(monkeypatch):
    """Each question in turn is answered by the next: whichever two were exchanged, some tensor is read wrongly."""
    questions = torch_functions._QUESTIONS
    for i in (0, 1, 2, 3, 7):  # those whose answers are no addresses
        exchanged = list(questions)
        exchanged[i] = {0: "layout", 1: "device_type", 2: "layout", 3: "storage_offset", 7: "storage_offset"}[i]
        with monkeypatch.context() as patched:
            patched.setattr(torch_functions, "_QUESTIONS", tuple(exchanged))
            memory = torch_functions.torch_tensors()
        reader = _native.PlainTensors(memory, (torch.Tensor,), torch.nn.Module.get_extra_state, lambda _: False, set())
        assert torch_functions.answers_rightly(reader) == (i < 2)  # both say 0 of what is plain


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
def test_the_short_way_has_the_bits_of_the_long_one(case, mechanism):
    short, long = PLAIN[case](), PLAIN[case]()
    assert plain(short) is not None
    perturb_(short, 0.1, 0.9, 2.0, mechanism=mechanism, generator=key(5))
    others = tensors_of(long)
    numbers = [0.1] * len(others), [0.9] * len(others)
    with torch.no_grad():
        OPERATIONS[mechanism].perturb(others, key(5).tensor(), *numbers, 2.0)
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(short), others, strict=True))


def tensors_of(model):
    if isinstance(model, torch.nn.Module):
        return list(model.parameters())
    return list(model) if isinstance(model, list | tuple) else [model]


def reported_both_ways(monkeypatch, model, *ranges, **options):
    """The report of the short way, and that of the long one."""
    short = ldpkernels.report(model, *ranges, generator=key(5), **options)
    with monkeypatch.context() as patched:
        patched.setattr("ldpkernels.perturb.reported.plain", lambda *_, **__: None)
        return short, ldpkernels.report(model, *ranges, generator=key(5), **options)


@pytest.mark.parametrize("mechanism", NAMES)
@pytest.mark.parametrize("case", PLAIN)
def test_a_report_of_the_short_way_is_that_of_the_long_one(case, mechanism, monkeypatch):
    model = PLAIN[case]()
    assert plain(model, shapes=True, named=True) is not None
    short, long = reported_both_ways(monkeypatch, model, 0.1, 0.9, 2.0, mechanism=mechanism)
    assert short.to_bytes() == long.to_bytes()
    assert torch.equal(short.payload, long.payload)


def test_reports_of_other_models_and_ranges_are_those_of_the_long_way(monkeypatch):
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(4))
            self.über = linear()

    nested = torch.nn.Sequential(
        linear(), torch.nn.ModuleDict({"left": Inner(), "right": torch.nn.ModuleList([linear()])})
    )
    wrapped = torch.nn.Module()
    wrapped.module = nested  # a name that some wrappers leave out
    arrays = [np.ones((2, 3), np.float32), np.full((), 0.5, np.float32), np.ones(7)]
    for model in (nested, wrapped, torch.nn.DataParallel(linear()), arrays, tuple(arrays), arrays[0]):
        n = len(tensors_of(model))
        for ranges in ((0.0, 1.0), (0, 1), ([0.125] * n, 1.0), (0.0, [0.5 + i for i in range(n)])):
            short, long = reported_both_ways(monkeypatch, model, *ranges, 1.0)
            assert short.to_bytes() == long.to_bytes()
            assert type(short.payload) is type(long.payload)
    assert plain(nested, named=True).names == tuple(name for name, _ in nested.named_parameters())
    assert plain(wrapped, named=True) is None


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


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_have_the_bits_of_tensors(dtype):
    arrays = [np.linspace(-1, 1, n).astype(dtype) for n in (3, 40)]
    tensors = [torch.from_numpy(a.copy()) for a in arrays]
    ranges = [0.0, 0.1], [0.5, 0.25]
    perturb_(arrays, *ranges, 1.0, generator=key(1))
    perturb_(tensors, *ranges, 1.0, generator=key(1))
    assert all((a == t.numpy()).all() for a, t in zip(arrays, tensors, strict=True))


def test_every_kind_of_generator():
    expected = perturb_(torch.zeros(100), 0.0, 1.0, 1.0, generator=key(7))
    assert torch.equal(perturb_(torch.zeros(100), 0.0, 1.0, 1.0, generator=key(7).tensor()), expected)
    drawn = [perturb_(torch.zeros(100), 0.0, 1.0, 1.0, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*drawn)
    secret = [perturb_(torch.zeros(100), 0.0, 1.0, 1.0, generator=g) for g in (None, None, "secure")]
    assert len({tuple(t.tolist()) for t in secret}) == 3
    own = ldpkernels.secure_key()
    assert torch.equal(
        perturb_(torch.zeros(100), 0.0, 1.0, 1.0, generator=own),
        torch.from_numpy(perturb_(np.zeros(100, np.float32), 0.0, 1.0, 1.0, generator=own)),
    )


def test_a_lazy_clone_parts_from_its_original():
    original = torch.zeros(100)
    clone = torch._lazy_clone(original)
    perturb_(clone, 0.0, 1.0, 1.0)
    assert (original == 0).all()
    assert (clone != 0).all()


def test_autograd_hears_of_the_write():
    x = torch.ones(3, requires_grad=True)
    w = torch.ones(3)
    y = (x * w).sum()
    perturb_(w, 0.0, 1.0, 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with torch.inference_mode():
        t = torch.zeros(3)
    perturb_([t, torch.zeros(3)], 0.0, 1.0, 1.0)
