# SPDX-License-Identifier: Apache-2.0
# What would leave a device in the clear, beside or under the tensors that are perturbed: refused by name, unwritten.
import collections
import contextlib
import copy
import functools
import io
import pickle
import random
import threading
import warnings
from array import array as standard_array
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils import prune

import ldpkernels
from ldpkernels import TwoPoint, cldp_, perturb_, ranges, report
from tests.conftest import EPS, KEY, outputs, values

SECRET = 0.7310585786300049


def perturb(model, **options):
    return perturb_(model, 0.0, 1.0, EPS, generator=KEY, **options)


def cldp(model, **options):
    return cldp_(model, 0.1, 1.0, 2, generator=KEY, **options)


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def refuses(error, match, model, **options):
    tensors = list(model.values()) if isinstance(model, dict) else [*model.parameters(), *model.buffers()]
    before = [t.detach().clone() if isinstance(t, torch.Tensor) else np.array(t) for t in tensors]
    for call in (perturb, cldp):
        with pytest.raises(error, match=match):
            call(model, **options)
        for old, new in zip(before, tensors, strict=True):
            assert bool((old == new.detach() if isinstance(new, torch.Tensor) else old == new).all())


def linear(**attributes):
    layer = torch.nn.Linear(4, 4)
    for name, value in attributes.items():
        setattr(layer, name, value)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), layer)


def test_quantized_layers_beside_others():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Conv2d(3, 3, 3))
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
        assert [n for n, _ in model.named_parameters()] == ["1.weight", "1.bias"]
        for options in ({}, {"buffers": "keep"}):
            refuses(TypeError, r"module '0\._packed_params' .*packed weights.*before it is quantized", model, **options)


class WithExtraState(torch.nn.Linear):
    def get_extra_state(self):
        return {"seen": torch.full((3,), SECRET)}


def test_extra_states():
    model = torch.nn.Sequential(WithExtraState(2, 2))
    refuses(ValueError, r"module '0' \(WithExtraState\) has an extra state.*buffers='keep'", model)
    refuses(ValueError, "extra state", model, buffers="perturb")
    perturb(model, buffers="keep")
    with pytest.raises(TypeError, match=r"'0\._extra_state' is a dict"):
        perturb(model.state_dict())


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "prune"])
def test_weights_that_old_reparametrisations_keep_beside_their_parameters(kind):
    layer = torch.nn.Linear(4, 4)
    if kind == "prune":
        prune.l1_unstructured(layer, "weight", 3)
    else:
        getattr(torch.nn.utils, kind)(layer)
    secret = layer.weight.detach().numpy().tobytes()
    model = torch.nn.Sequential(layer)
    assert secret in saved(model), "the attack"
    refuses(ValueError, r"attribute '0\.weight' is computed from '0\.weight_(g|orig)'.*remove", model, buffers="keep")
    remove = {"prune": prune.remove, "weight_norm": torch.nn.utils.remove_weight_norm}
    remove.get(kind, torch.nn.utils.remove_spectral_norm)(layer, "weight")
    if kind == "prune":
        secret = layer.weight.detach().numpy().tobytes()
    perturb(model)
    assert secret not in saved(model)


def test_new_reparametrisations_keep_no_copy():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    perturb(torch.nn.Sequential(layer))
    assert values(layer.parametrizations.weight.original1) <= outputs(0.0, 1.0)


def test_attributes_that_are_no_other_tensors():
    model = linear(name="x", sizes=(1, 2), table={"a": 1.0, "b": (3, "x")}, function=torch.relu)
    model[1].same = [model[0].weight, model[0].weight.data]
    perturb(model)
    perturb(torch.nn.LSTM(3, 4))


def test_tensors_that_parameters_carry():
    model = torch.nn.Linear(3, 3)
    model.weight.grad_sample = torch.full((7, 3, 3), SECRET)
    assert np.float32(SECRET).tobytes() * 9 in saved(model), "the attack"
    refuses(ValueError, r"parameter 'weight' carries a tensor as its attribute 'grad_sample'.*None", model)
    refuses(ValueError, "grad_sample", model, buffers="keep")
    model.weight.grad_sample = None
    perturb(model)


def test_what_is_not_perturbed_in_place_may_hold_anything():
    """A report leaves, and not the model."""
    for model in (linear(cache=torch.ones(3)), torch.nn.Sequential(WithExtraState(2, 2))):
        assert report(model, 0.0, 1.0, EPS).nbytes
        assert ranges(model)


def test_the_rest_of_a_storage():
    memory = torch.full((100,), SECRET)
    layer = torch.nn.Linear(3, 3, bias=False)
    layer.weight.data = memory[10:19].view(3, 3)
    assert np.float32(SECRET).tobytes() * 100 in saved(layer.state_dict()), "the attack"
    for model in (layer, dict(layer.state_dict())):
        refuses(ValueError, "'weight' is a view, and 364 bytes of its storage.*clone", model)
    assert (memory == SECRET).all()
    assert report(layer, 0.0, 1.0, EPS).nbytes == 2
    layer.weight.data = layer.weight.data.clone()
    perturb(layer)
    perturb(memory[10:19])  # a tensor that is passed as such is the caller's to save: perturb_ says so


def test_parameters_that_fill_a_storage_together():
    memory = torch.full((12,), SECRET)
    layer = torch.nn.Linear(3, 3)
    layer.weight.data, layer.bias.data = memory[:9].view(3, 3), memory[9:]
    perturb(layer)
    assert values(memory) <= outputs(0.0, 1.0)
    layer.register_buffer("statistics", memory[9:])
    layer.bias.data = torch.zeros(3)
    refuses(ValueError, "'weight' is a view, and 12 bytes", layer, buffers="keep")


def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
    model(torch.randn(50, 4))
    return model


def test_counts_of_batches():
    model = trained()
    C, R = {"": 0.0, "1.running_var": 1.0}, {"": 1.0, "1.running_var": 0.25}
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"'1\.num_batches_tracked' counts the batches.*zero.*buffers='keep'"):
        perturb_(model, C, R, EPS, buffers="perturb")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    model[1].num_batches_tracked.zero_()
    perturb_(model, C, R, EPS, buffers="perturb")
    assert model.eval()(torch.randn(9, 4)).isfinite().all()


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_running_statistics_in_mappings(library):
    state = {k: v for k, v in trained().state_dict().items() if v.is_floating_point()}
    if library == "numpy":
        state = {k: v.numpy() for k, v in state.items()}
    refuses(ValueError, r"'1\.running_mean' \(one of 2\).*buffers='perturb'.*buffers='keep'", state)
    for call in (lambda: report(state, 0.0, 1.0, EPS), lambda: ranges(state)):
        with pytest.raises(ValueError, match=r"'1\.running_mean'"):
            call()
    names = report(state, 0.0, 1.0, EPS, buffers="perturb").layout.names
    assert list(names) == list(state)
    statistics = {k: np.asarray(v).copy() for k, v in state.items() if "running" in k}
    perturb(state, buffers="keep")
    assert all(np.array_equal(state[k], v) for k, v in statistics.items())
    assert report(state, 0.0, 1.0, EPS, buffers="keep").layout.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    whole = trained().state_dict()
    with pytest.raises(TypeError, match="num_batches_tracked"):
        perturb_(whole, 0.0, 0.0, EPS, buffers="perturb")
    perturb(whole, buffers="keep")


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise", "hybrid"])
def test_a_running_variance_stays_a_variance(mechanism):
    model = torch.nn.BatchNorm1d(1000)
    model.running_var.fill_(0.045)
    for wrong in ({"C": 0.5, "R": 0.5}, {"C": {"": 0.0, "running_var": 0.1}, "R": 0.05}):
        with pytest.raises(ValueError, match=r"C=0\.\d+ and R=.*'running_var' have the output -\d+\.\d+.*larger C"):
            perturb_(model, **wrong, eps=EPS, mechanism=mechanism, buffers="perturb")
    assert (model.running_var == 0.045).all()
    C, R = {"": 0.0, "running_var": 0.2}, {"": 0.5, "running_var": 0.03}
    perturb_(model, C, R, EPS, mechanism=mechanism, buffers="perturb", generator=KEY)
    assert (model.running_var >= 0).all()
    assert model.eval()(torch.randn(3, 1000)).isfinite().all()
    state = {"bn.running_var": np.full(9, 0.045)}
    with pytest.raises(ValueError, match=r"'bn\.running_var' have the output"):
        perturb_(state, 0.5, 0.5, EPS, mechanism=mechanism, buffers="perturb")
    with pytest.raises(ValueError, match=r"'running_var' could become negative"):
        cldp_(model, 0.1, 1.0, 2, buffers="perturb")


# Classes whose numbers lie elsewhere.


class Wrapper(torch.Tensor):
    """A tensor whose numbers are another's, and which runs operations on both."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise NotImplementedError


class Named(torch.Tensor):
    """A tensor of its own numbers, by another class."""


class Unit(np.ndarray):
    pass


def on_models(model):
    yield lambda: perturb(model)
    yield lambda: perturb(model, mechanism="piecewise")
    yield lambda: cldp(model)
    yield lambda: report(model, 0.0, 1.0, EPS, generator=KEY)
    yield lambda: ranges(model)
    yield lambda: ranges(model, method="quantile")
    yield lambda: ldpkernels.perturb_vector(model, 1.0, norm=1.0, generator=KEY)


def on_tensors(x):
    yield from on_models(x)
    yield from on_models({"w": x})
    yield from on_models([x])
    yield lambda: ldpkernels.clipped_noised_sum(x, 1.0, 1.0, generator=KEY)
    yield lambda: ldpkernels.two_point_threshold(x, 0.0, 1.0, EPS)


def test_tensors_and_arrays_whose_numbers_lie_elsewhere():
    masked = np.ma.masked_array(np.full((3, 2), SECRET), np.eye(3, 2) > 0)
    for x, match in (
        (Wrapper(torch.ones(3, 2)), "is a Wrapper.*pass a plain tensor"),
        (masked, r"is a MaskedArray.*\.filled\(\)"),
        (np.ones((3, 2)).view(np.matrix), r"is a matrix.*numpy\.asarray"),
        (np.ones((3, 2)).view(Unit), "is a Unit"),
        (np.ones(3).view(np.recarray), "is a recarray"),
    ):
        for call in on_tensors(x):
            with pytest.raises(TypeError, match=match):
                call()
    assert (masked.data == SECRET).all()


def test_classes_that_only_name_their_numbers(tmp_path):
    x = torch.zeros(200).as_subclass(Named)
    assert perturb(x) is x
    assert values(x.as_subclass(torch.Tensor)) == outputs(0.0, 1.0)
    y = np.memmap(tmp_path / "w", np.float32, "w+", shape=200)
    perturb(y)
    assert set(np.array(y, np.float64)) == set(TwoPoint(EPS).outputs(0.0, 1.0, np.dtype(np.float32)))


@pytest.fixture
def world():
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield distributed
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_shards_that_hold_parts_of_several_tensors_are_refused_by_name(world):
    """Those of fully_shard work, in several processes: tests/distributed."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    for original in (False, True):
        flat = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=original)
        for model in (flat, list(flat.parameters())):
            for call in on_models(model):
                with pytest.raises(TypeError, match=r"FullyShardedDataParallel.*gather"):
                    call()


def test_a_running_variance_stays_a_variance_under_compile():
    model = torch.nn.BatchNorm1d(2)
    model.num_batches_tracked = None
    model.running_var.fill_(0.045)
    compiled = torch.compile(lambda m: perturb_(m, 0.5, 0.5, EPS, buffers="perturb"), backend="eager")
    with pytest.raises(ValueError, match="a variance cannot be negative"):
        compiled(model)
    assert (model.running_var == torch.tensor(0.045)).all()


# What attributes may hold: what is known to hold nothing.


class Settings:
    """An object as users have them: pickle stores its attributes."""

    def __init__(self, **values):
        self.__dict__.update(values)


class Slots:
    __slots__ = ("value",)


class Reduced:
    """An object of which pickle stores something else."""

    def __init__(self, stored):
        self.stored = lambda: stored  # as it stands, nothing that pickle could store

    def __reduce__(self):
        return list, (self.stored(),)


class Named2(NamedTuple):
    value: object


class OwnState(torch.nn.Module):
    """A module that stores what is no attribute of it."""

    kept: ClassVar[object] = None

    def __getstate__(self):
        return {**self.__dict__, "kept": type(self).kept}


def closure(value):
    return lambda: value


def defaults(value):
    def function(value=value):
        return value

    return function


def slotted(value):
    found = Slots()
    found.value = value
    return found


def with_own_state(value):
    module = type("OwnState", (OwnState,), {"kept": value})()
    module.weight = torch.nn.Parameter(torch.zeros(2))
    return module


def array():
    return np.full(20, SECRET)


def tensor():
    return torch.full((20,), SECRET, dtype=torch.float64)


LEAKS = {
    "array": array,
    "array of one number": lambda: np.array(SECRET),
    "array of objects": lambda: np.array([SECRET, None], object),
    "array in a mapping": lambda: {"a": array()},
    "array in a list": lambda: [1, (2, array())],
    "tensor": tensor,
    "integers": lambda: tensor().view(torch.int64),
    "tensor in a mapping": lambda: {1: {"a": tensor()}},
    "tensor as a key": lambda: {tensor(): 1},
    "ordered mapping": lambda: collections.OrderedDict(a=[array()]),
    "default mapping": lambda: collections.defaultdict(list, a=[array()]),
    "counter": lambda: collections.Counter({SECRET: 2}),
    "floats": lambda: [SECRET, SECRET],
    "one float in a tuple": lambda: (SECRET,),
    "set of floats": lambda: {SECRET},
    "floats by number": lambda: {0: SECRET},
    "complex numbers": lambda: [complex(SECRET, SECRET)],
    "numbers of NumPy": lambda: [np.float64(SECRET)],
    "many floats by name": lambda: {f"w{i}": SECRET for i in range(17)},
    "deque": lambda: collections.deque([tensor()]),
    "deque of floats": lambda: collections.deque([SECRET]),
    "bytes": lambda: array().tobytes(),
    "bytearray": lambda: bytearray(array().tobytes()),
    "memory": lambda: memoryview(array()),
    "standard array": lambda: standard_array("d", [SECRET] * 3),
    "partial": lambda: functools.partial(torch.add, tensor()),
    "partial by name": lambda: functools.partial(torch.add, other=[array()]),
    "closure": lambda: closure(tensor()),
    "default argument": lambda: defaults([SECRET]),
    "method of a tensor": lambda: tensor().add,
    "method of an object": lambda: Settings(x=array()).__init__,
    "object": lambda: Settings(x=tensor()),
    "object in an object": lambda: Settings(x=[Settings(y={"z": array()})]),
    "slots": lambda: slotted(array()),
    "reduced": lambda: Reduced([SECRET]),
    "named tuple": lambda: Named2(tensor()),
    "module": lambda: (lambda m: (m.weight.data.fill_(SECRET), m)[1])(torch.nn.Linear(5, 5).double()),
    "modules": lambda: [(lambda m: (m.weight.data.fill_(SECRET), m)[1])(torch.nn.Linear(5, 5).double())],
    "parameter": lambda: [torch.nn.Parameter(tensor())],
    "iterator": lambda: iter([SECRET, SECRET]),
    "many integers": lambda: array().view(np.int64).tolist(),
    "one long integer": lambda: int.from_bytes(array().tobytes(), "little"),
    "a long integer in a list": lambda: [int.from_bytes(array().tobytes(), "little")],
    "long text": lambda: array().tobytes().decode("latin1") * 7,
    "words": lambda: sorted({f"{word}: {SECRET!r} {array().tobytes().decode('latin1')}" for word in range(20)}),
    "names that are words": lambda: {f"{word} {array().tobytes().decode('latin1')}": None for word in range(30)},
    "record of NumPy": lambda: np.void(array().tobytes()),
    "history": lambda: [{"loss": SECRET}] * 2,
    "objects in a list": lambda: [Settings(x=SECRET)],
    "settings of settings": lambda: {f"x{i}": {f"y{k}": SECRET for k in range(16)} for i in range(17)},
}
HARMLESS = {
    "number": lambda: 0.5,
    "name": lambda: "relu",
    "nothing": lambda: None,
    "sizes": lambda: (3, 3),
    "shape": lambda: torch.Size([1, 2]),
    "names": lambda: [["weight_ih", "bias"], ("relu", None)],
    "settings": lambda: {"dropout": 0.1, "heads": 4, "act": "gelu", "inner": {"eps": 1e-5}},
    "object": lambda: Settings(rate=0.1, sizes=[1, 2], inner=Settings(name="x")),
    "dtype": lambda: torch.float32,
    "dtype of NumPy": lambda: np.dtype("f4"),
    "device": lambda: torch.device("cpu"),
    "class": lambda: torch.nn.ReLU,
    "function": lambda: torch.relu,
    "function of Python": lambda: closure,
    "closure": lambda: closure("x"),
    "partial": lambda: functools.partial(torch.nn.LayerNorm, eps=1e-6),
    "range": lambda: range(1000),
    "lock": threading.Lock,
    "library": lambda: np,
    "cycle": lambda: (lambda x: (x.append(x), x)[1])([]),
}
PLACES = {
    "attribute": lambda module, value: module.__dict__.__setitem__("cache", value),
    "usual attribute": lambda module, value: module.__dict__.__setitem__("training", value),
    "attribute of a parameter": lambda module, value: setattr(next(module.parameters()), "cache", value),
    "hook": lambda module, value: module.register_forward_hook(functools.partial(hooked, value=value)),
    "list": lambda module, value: setattr(module, "cache", [1, [value]]),
    "mapping": lambda module, value: setattr(module, "cache", {"a": value}),
}


def hooked(*_, value):
    return None


def network(rng):
    """Linear layers in one another."""
    layers = [torch.nn.Linear(2, 2) for _ in range(rng.randint(1, 3))]
    inner = torch.nn.ModuleDict({"a": torch.nn.Sequential(*layers), "b": torch.nn.Conv2d(1, 1, 1)})
    return torch.nn.Sequential(inner, torch.nn.LayerNorm(2)) if rng.random() < 0.5 else inner


def holds_the_secret(data):
    return any(np.array(SECRET, kind).tobytes() in data for kind in ("<f8", ">f8", "<f4", ">f4"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("leak", LEAKS)
def test_attributes_that_may_hold_weights_are_refused(leak, place):
    model = network(random.Random(1))
    PLACES[place](model["b"], LEAKS[leak]())
    before = copy.deepcopy([p.detach() for p in model.parameters()])
    with pytest.raises(ValueError, match=r"(attribute 'b\.|parameter '.*' carries ).*torch\.save\(model\)"):
        perturb(model)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("harmless", HARMLESS)
def test_attributes_that_hold_nothing_are_taken(harmless):
    for place in ("attribute", "attribute of a parameter", "hook"):
        model = network(random.Random(1))
        PLACES[place](model["b"], HARMLESS[harmless]())
        perturb(model)


@pytest.mark.filterwarnings("ignore")
def test_wrappers_of_torch_hold_nothing_of_their_own(world):
    for wrapper in (torch.compile, torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel):
        model = torch.nn.Linear(3, 3)
        perturb(wrapper(model))
        assert values(model.weight) <= outputs(0.0, 1.0)
        refuses(ValueError, "holds a tensor", wrapper(linear(cache=tensor())))


def test_modules_that_store_what_is_no_attribute():
    with pytest.raises(ValueError, match=r"attribute '__getstate__\(\)' holds a tensor"):
        perturb(with_own_state(tensor()))
    perturb(with_own_state("x"))


def test_what_was_perturbed_has_no_secret_in_any_file():
    """Random modules of these ingredients: where perturb_ goes through, no file of them has the secret's bytes."""
    rng, taken, refused = random.Random(7), 0, 0
    ingredients = [*((LEAKS, name) for name in LEAKS), *((HARMLESS, name) for name in HARMLESS)]
    for _ in range(400):
        model = network(rng)
        for p in model.parameters():
            p.data.fill_(SECRET)
        for _ in range(rng.randint(1, 3)):
            kind, name = rng.choice(ingredients[len(LEAKS) :] if rng.random() < 0.6 else ingredients)
            module = rng.choice([m for m in model.modules() if next(m.parameters(recurse=False), None) is not None])
            rng.choice([*PLACES.values()])(module, kind[name]())
        try:
            perturb(model)
        except ValueError:
            refused += 1
            continue
        with contextlib.suppress(TypeError, AttributeError, pickle.PicklingError):  # locks, local functions: no file
            assert not holds_the_secret(saved(model))
            assert not holds_the_secret(pickle.dumps(model))
            taken += 1
    assert min(taken, refused) > 50, (taken, refused)
