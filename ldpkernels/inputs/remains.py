# SPDX-License-Identifier: Apache-2.0
"""What would leave a device unperturbed with a model that was perturbed in place, refused by name.

`state_dict()` holds parameters, buffers and extra states, `torch.save(model)` every attribute, and the file of a view
the whole storage under it. Tensors deep in objects of a user's own classes are not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ldpkernels.inputs.modules import Buffers, Modules, Named
from ldpkernels.inputs.transforms import is_transformed
from ldpkernels.optional import is_tensor

if TYPE_CHECKING:
    import torch

_PLAIN: frozenset[type] = frozenset({int, float, bool, str, type(None)})  # attributes that hold no tensor


def refuse_unvouched(named: Named, modules: Modules, whole: bool, buffers: Buffers | None) -> None:
    """An error for what would leave unperturbed. `whole`: the model itself may leave, and not a report of it."""
    _refuse_shards(named)
    if whole:
        if modules:
            refuse_remains(modules, named, keep=buffers == "keep")
        _refuse_rest(named)


def refuse_remains(modules: Modules, perturbed: Named, keep: bool, sharded: bool = False) -> None:
    """An error for private numbers that are no parameter and no buffer. `keep` says that only parameters leave."""
    for name, p in perturbed:
        if p.__dict__:
            check_attributes(name, p.__dict__)
    found: Named = []
    for prefix, module in modules:
        kind: type = type(module)
        if not sharded and is_fully_sharded(kind):
            raise ValueError(
                f"module {prefix[:-1]!r} ({kind.__name__}) is gathered, and reshard() brings back what it was "
                "gathered from: call reshard() first, and perturb the shards"
            )
        found += _held(prefix, module, keep)
    if found and not keep:
        _refuse_others(found, perturbed)


def _refuse_shards(named: Sequence[tuple[str, object]]) -> None:
    """An error for the parameters of FullyShardedDataParallel, which are plain tensors by their class."""
    for name, t in named:
        attributes = getattr(t, "__dict__", None)
        if attributes and ("_is_flat_param" in attributes or "_fsdp_flattened" in attributes):
            raise TypeError(
                f"tensor {name!r} is a shard of FullyShardedDataParallel, which holds parts of several tensors: gather "
                "the model first (FullyShardedDataParallel.summon_full_params), and pass clones of its parameters"
            )


def _refuse_rest(named: Sequence[tuple[str, object]]) -> None:
    """An error for a tensor that shares its storage with numbers that are not perturbed: files hold whole storages."""
    import torch

    strided = [(name, t) for name, t in named if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    strided = [(name, t) for name, t in strided if not is_transformed(t)]  # those are in no file
    if all(t.untyped_storage().nbytes() <= t.nbytes for _, t in strided):
        return
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


def _held(prefix: str, module: torch.nn.Module, keep: bool) -> Named:
    """The tensors in a module's attributes; what is no tensor and cannot be perturbed is refused."""
    kind: type = type(module)
    if not keep and _has_extra_state(kind):
        raise ValueError(
            f"module {prefix[:-1]!r} ({kind.__name__}) has an extra state, which state_dict() holds and nothing "
            "perturbs: pass buffers='keep' if only parameters leave, or take get_extra_state out"
        )
    found: Named = []
    for key in module.__dict__.keys() - usual_attributes():
        value = module.__dict__[key]
        if type(value) not in _PLAIN:
            _check_attribute(prefix, key, value, module)
            found += [(prefix + key, t) for t in _tensors(value)]
    return found


@lru_cache(maxsize=1024)
def is_fully_sharded(kind: type) -> bool:
    """Whether fully_shard made a class of modules."""
    return any(base.__name__ == "FSDPModule" and base.__module__.startswith("torch.") for base in kind.__mro__)


@lru_cache(maxsize=1)
def usual_attributes() -> frozenset[str]:
    """What every module has: its registries and hooks."""
    import torch

    return frozenset(torch.nn.Module().__dict__)


@lru_cache(maxsize=1024)
def _has_extra_state(kind: type) -> bool:
    import torch

    return getattr(kind, "get_extra_state", None) is not torch.nn.Module.get_extra_state


def check_attributes(name: str, attributes: Mapping[str, object]) -> None:
    """Of a parameter: its class stores them with it."""
    for key, value in attributes.items():
        if type(value) not in _PLAIN and next(_tensors(value), None) is not None:
            raise ValueError(
                f"parameter {name!r} carries a tensor as its attribute {key!r}, which torch.save(model) stores "
                f"unperturbed: set it to None first"
            )


def _check_attribute(prefix: str, key: str, value: object, module: torch.nn.Module) -> None:
    """What no choice about buffers excuses: weights beside parameters."""
    import torch

    if type(value) is torch.ScriptObject:
        raise TypeError(
            f"module {prefix[:-1]!r} ({type(module).__name__}) holds packed weights that cannot be perturbed, as "
            "quantized layers do: perturb the model before it is quantized, or dequantize it"
        )
    for suffix, cure in (
        ("_orig", "torch.nn.utils.prune.remove, or remove_spectral_norm,"),
        ("_g", "torch.nn.utils.remove_weight_norm"),
    ):
        if is_tensor(value) and key + suffix in module._parameters:
            raise ValueError(
                f"attribute {prefix + key!r} is computed from {prefix + key + suffix!r} and kept beside it, so that "
                f"torch.save(model) stores it unperturbed: call {cure} first, or use "
                "torch.nn.utils.parametrizations, which keep no copy"
            )


def _refuse_others(found: Named, perturbed: Named) -> None:
    """Those that are no parameter by another name, as a recurrent network's list of its weights is."""
    import torch

    ids = {id(t) for _, t in perturbed}
    places = {(t.data_ptr(), t.nbytes) for _, t in perturbed if t.layout is torch.strided}
    for name, t in found:
        if id(t) not in ids and (t.layout is not torch.strided or (t.data_ptr(), t.nbytes) not in places):
            raise ValueError(
                f"attribute {name!r} holds a tensor that is neither parameter nor buffer, which torch.save(model) "
                "stores unperturbed: register it, delete it, or pass buffers='keep' if only parameters leave"
            )


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors in an attribute, or in a list, tuple, set or mapping of them."""
    if is_tensor(value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            if type(item) not in _PLAIN:
                yield from _tensors(item)
