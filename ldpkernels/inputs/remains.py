# SPDX-License-Identifier: Apache-2.0
"""What would leave a device unperturbed with a model that was perturbed in place, refused by name.

`state_dict()` holds parameters, buffers and extra states, `torch.save(model)` every attribute, and the file of a view
the whole storage under it. Attributes may hold what is known to hold no weights: names, few numbers with names of their
own, short lists of integers, classes and functions, what was perturbed, and objects in which pickle finds nothing else.
"""

from __future__ import annotations

import contextlib
import copyreg
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ldpkernels.common.optional import is_module, is_tensor
from ldpkernels.inputs.modules import Buffers, Modules, Named
from ldpkernels.inputs.transforms import is_transformed

if TYPE_CHECKING:
    import torch

_NAMES: frozenset[type] = frozenset({str, bool, type(None)})
_NUMBERS: frozenset[type] = frozenset({int, float, complex})
_SINGLE = _NAMES | _NUMBERS  # under a name of its own, no weights
_SHORT: frozenset[type] = frozenset({bool, float, complex})  # and integers and text that are not `_is_long`
_IN_LISTS = _NAMES | {int}
_INTEGERS: frozenset[type] = frozenset({int, bool})
_MAPPINGS: frozenset[type] = frozenset({dict, OrderedDict})
_LISTS: frozenset[type] = frozenset({tuple, list, set, frozenset})
_KNOWN = _SINGLE | _MAPPINGS | _LISTS
_FEW = 16  # numbers that a list or a mapping may have: sizes and settings, and no weights
_MANY = 256  # that an attribute may have in all: the settings of the largest models have half as many
_LONGEST = 1000  # characters of a name, and of all text that an attribute may have
_REGISTRIES = ("_parameters", "_buffers", "_modules")  # of a module: walked already


def refuse_unvouched(named: Named, modules: Modules, whole: bool, buffers: Buffers | None) -> None:
    """Raise for what would leave unperturbed. `whole`: the model itself may leave, and not a report of it."""
    _refuse_shards(named)
    if whole:
        if modules:
            refuse_remains(modules, named, keep=buffers == "keep")
        _refuse_rest(named)


def refuse_remains(modules: Modules, perturbed: Named, keep: bool, sharded: bool = False) -> None:
    """Raise for private numbers that are no parameter and no buffer. `keep` says that only parameters leave."""
    search = _Search(modules, perturbed, sharded)
    for name, p in perturbed:
        if p.__dict__:
            search.refuse_on_parameter(name, p.__dict__)
    for prefix, module in modules:
        kind = _kind(type(module))  # type: ignore[arg-type]  # mypy takes it for no Hashable
        if kind.fully_sharded and not sharded:
            raise ValueError(
                f"module {prefix[:-1]!r} ({type(module).__name__}) is gathered, and reshard() brings back what it was "
                "gathered from: call reshard() first, and perturb the shards"
            )
        if kind.extra_state and not keep:
            raise ValueError(
                f"module {prefix[:-1]!r} ({type(module).__name__}) has an extra state, which state_dict() holds and "
                "nothing perturbs: pass buffers='keep' if only parameters leave, or take get_extra_state out"
            )
        for key, value in module.__dict__.items():
            of = type(value)
            if of in _KNOWN and (not value or of in _SHORT or key in _REGISTRIES):
                continue
            if of in _SINGLE and not _is_long(value):
                continue
            few = of in _LISTS and len(value) <= _FEW and _INTEGERS.issuperset(map(type, value))
            if few and sum(map(int.bit_length, value)) <= 64 * _FEW:
                continue
            _refuse_copies(prefix, key, value, module)
            if not keep:
                search.refuse(prefix + key, value)
        if kind.own_state and not keep:
            for part in _stored(module):  # a state's values are attributes
                for value in part.values() if type(part) is dict else [{0: part}]:
                    search.refuse(prefix + "__getstate__()", value)


def _refuse_shards(named: Sequence[tuple[str, object]]) -> None:
    """Raise for the parameters of FullyShardedDataParallel, which are plain tensors by their class."""
    for name, t in named:
        attributes = getattr(t, "__dict__", None)
        if attributes and ("_is_flat_param" in attributes or "_fsdp_flattened" in attributes):
            raise TypeError(
                f"tensor {name!r} is a shard of FullyShardedDataParallel, which holds parts of several tensors: gather "
                "the model first (FullyShardedDataParallel.summon_full_params), and pass clones of its parameters"
            )


def _refuse_rest(named: Sequence[tuple[str, object]]) -> None:
    """Raise for a tensor that shares its storage with numbers that are not perturbed: files hold whole storages."""
    import torch

    with contextlib.suppress(RuntimeError, AttributeError):  # not all have a storage
        if all([t.untyped_storage().nbytes() <= t.nbytes for _, t in named]):  # type: ignore[attr-defined]
            return
    strided = [(name, t) for name, t in named if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    strided = [(name, t) for name, t in strided if not is_transformed(t)]  # those are in no file
    rest: dict[int, int] = {}
    for _, t in strided:
        storage = t.untyped_storage()
        rest[storage.data_ptr()] = rest.get(storage.data_ptr(), storage.nbytes()) - t.nbytes
    for name, t in strided:
        left = rest[t.untyped_storage().data_ptr()]
        if left > 0:
            raise ValueError(
                f"tensor {name!r} is a view, and {left} bytes of its storage are not perturbed, which "
                "torch.save stores with it: replace it by a clone, or pass it alone or in a list, and save a clone"
            )


class _Kind(NamedTuple):
    """What a class of modules may let leave beside its attributes."""

    fully_sharded: bool
    extra_state: bool
    own_state: bool  # pickle stores something else than the attributes


@lru_cache(maxsize=1024)
def _kind(kind: type) -> _Kind:
    """Ask a class once: a module that changes its nature changes its class."""
    import torch

    base: type = torch.nn.Module
    names = ("__getstate__", "__reduce__", "__reduce_ex__")
    own = any(getattr(kind, name, None) is not getattr(base, name, None) for name in names)
    slots = any("__slots__" in of.__dict__ for of in kind.__mro__ if of is not object)
    extra = getattr(kind, "get_extra_state", None) is not torch.nn.Module.get_extra_state
    return _Kind(is_fully_sharded(kind), extra, own or slots)


def is_fully_sharded(kind: type) -> bool:
    """Whether fully_shard made a class of modules."""
    return any(base.__name__ == "FSDPModule" and base.__module__.startswith("torch.") for base in kind.__mro__)


def _refuse_copies(prefix: str, key: str, value: object, module: torch.nn.Module) -> None:
    """Raise for what no choice about buffers excuses: weights beside parameters."""
    import torch

    if type(value) is torch.ScriptObject:
        raise TypeError(
            f"module {prefix[:-1]!r} ({type(module).__name__}) holds packed weights that cannot be perturbed, as "
            "quantized layers do: perturb the model before it is quantized, or dequantize it"
        )
    if not is_tensor(value):
        return
    for suffix, cure in (
        ("_orig", "torch.nn.utils.prune.remove, or remove_spectral_norm,"),
        ("_g", "torch.nn.utils.remove_weight_norm"),
    ):
        if key + suffix in module._parameters:
            raise ValueError(
                f"attribute {prefix + key!r} is computed from {prefix + key + suffix!r} and kept next to it, so that "
                f"torch.save(model) stores it unperturbed: call {cure} first, or use "
                "torch.nn.utils.parametrizations, which keep no copy"
            )


def refuse_attributes(name: str, tensor: torch.Tensor) -> None:
    """Raise for numbers that a tensor carries as attributes: its class stores them with it."""
    if tensor.__dict__:
        _Search([], [(name, tensor)]).refuse_on_parameter(name, tensor.__dict__)


class _Search:
    """A search of attributes for what may be weights."""

    def __init__(self, modules: Modules, perturbed: Named, sharded: bool = False) -> None:
        self._walked, self._perturbed = modules, perturbed
        # Classes of torch's own that hold no weights but those of the model: torch.compile's, and around shards theirs.
        self._tools = ("torch._dynamo.", "torch.distributed.") if sharded else ("torch._dynamo.",)
        self._seen: dict[int, object] = {}  # which lets nothing go: another object could have its number
        self._numbers = self._text = 0  # of an attribute

    @cached_property
    def _modules(self) -> set[int]:
        return {id(module) for _, module in self._walked}

    @cached_property
    def _tensors(self) -> set[int]:
        buffers = [id(b) for _, module in self._walked for b in module._buffers.values() if b is not None]
        return {*buffers, *(id(t) for _, t in self._perturbed)}

    def refuse(self, name: str, value: object) -> None:
        """Raise for what a module's attribute holds."""
        self._numbers = self._text = 0
        found = self._found(value, alone=True)
        if found:
            raise ValueError(
                f"attribute {name!r} holds {found}, which torch.save(model) stores unperturbed: register it, delete "
                "it, or pass buffers='keep' if only parameters leave"
            )

    def refuse_on_parameter(self, name: str, attributes: Mapping[str, object]) -> None:
        """Raise for what a parameter's attributes hold."""
        for key, value in attributes.items():
            self._numbers = self._text = 0
            found = self._found(value, alone=True)
            if found:
                raise ValueError(
                    f"parameter {name!r} carries {found} as its attribute {key!r}, which torch.save(model) stores "
                    "unperturbed: set it to None first"
                )

    def _found(self, value: object, alone: bool = False, listed: bool = False) -> str:
        """What of a value may be weights; nothing if none of it.

        `alone`: it has a name of its own. `listed`: it is somewhere in a list, where names repeat.
        """
        kind = type(value)
        if kind in _SINGLE or isinstance(value, (np.number, np.bool_)):
            self._numbers += kind not in (str, type(None))
            self._text += len(value) if isinstance(value, str) else 0
            if _is_long(value):
                return "a long number or text"
            if self._text > _LONGEST:
                return f"more than {_LONGEST:,} characters of text"
            if self._numbers > _MANY:
                return f"more than {_MANY} numbers"
            return "" if alone or kind in _IN_LISTS else "numbers in a list"
        if id(value) in self._seen:
            return ""
        self._seen[id(value)] = value
        if is_tensor(value):
            return "" if self._is_perturbed(value) else "a tensor"
        if is_module(value):
            return "" if id(value) in self._modules else "a module that is not registered"
        if isinstance(value, (type, ModuleType)):  # stored by their names
            return ""
        if kind.__module__.startswith(self._tools):
            return ""
        if isinstance(value, (np.ndarray, bytes, bytearray, memoryview)):
            return f"numbers ({kind.__name__})"
        if kind in _MAPPINGS:
            return self._found_in_mapping(value, listed)  # type: ignore[arg-type]
        return self._found_in(value, True) if kind in _LISTS else self._found_in(_parts(value), listed)  # type: ignore[arg-type]

    def _found_in_mapping(self, mapping: Mapping[object, object], listed: bool) -> str:
        named = not listed and all(type(key) is str for key in mapping)
        return self._found_in([*mapping.values()], listed, named) or self._found_in([*mapping], listed)

    def _found_in(self, values: Iterable[object], listed: bool, alone: bool = False) -> str:
        values = [*values]
        numbers = sum(type(value) in _NUMBERS for value in values)
        if numbers > _FEW:
            return f"{numbers} numbers in a list"
        return next(filter(None, (self._found(value, alone, listed) for value in values)), "")

    def _is_perturbed(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter by another name, as those in a recurrent network's list are."""
        import torch

        if id(tensor) in self._tensors:
            return True
        if tensor.layout is not torch.strided or is_transformed(tensor):
            return False
        place = tensor.data_ptr(), tensor.nbytes
        return any((t.data_ptr(), t.nbytes) == place for _, t in self._perturbed if t.layout is torch.strided)


def _is_long(value: object) -> bool:
    """Whether one number or text could be many in disguise."""
    if isinstance(value, int):
        return value.bit_length() > 64
    return isinstance(value, str) and len(value) > _LONGEST


def _parts(value: object) -> Iterable[object]:
    """The objects of which a value consists."""
    if isinstance(value, FunctionType):
        return [_cells(value), value.__defaults__, value.__kwdefaults__, value.__dict__]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, BuiltinFunctionType):
        return [value.__self__]
    return _stored(value)


def _cells(function: FunctionType) -> list[object]:
    """What a closure holds."""
    found: list[object] = []
    for cell in function.__closure__ or ():
        try:
            found.append({"": cell.cell_contents})
        except ValueError:  # empty
            continue
    return found


def _stored(value: object) -> list[object]:
    """What pickle would store of an object; nothing where it cannot, as then nothing leaves."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        found = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(found, str):  # a name
            return []
        function, arguments, *rest = found
        state = rest[0] if rest else None
        items, pairs = [[*(iterator or ())] for iterator in (*rest[1:3], None, None)[:2]]
        state = state if type(state) is tuple else (state,)
        return [function, *arguments, *state, items, *([dict(pairs)] if pairs else []), *rest[3:]]
    except Exception:
        return []
