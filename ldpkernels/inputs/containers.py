# SPDX-License-Identifier: Apache-2.0
"""What a caller hands in, as a flat list of named tensors of one library, each once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeAlias

import numpy as np

from ldpkernels.common.arrays import AnyArray
from ldpkernels.common.optional import is_compiling, is_module, is_tensor
from ldpkernels.inputs.checks import PLAIN_KINDS, refuse_strangers
from ldpkernels.inputs.modules import Buffers as Buffers
from ldpkernels.inputs.modules import Modules, decided, module_tensors, untied, unwrapped
from ldpkernels.inputs.remains import refuse_unvouched
from ldpkernels.inputs.shards import refuse_unvouched_parts
from ldpkernels.inputs.transforms import refuse_rows, refuse_unread

if TYPE_CHECKING:
    import torch

Weights: TypeAlias = "AnyArray | torch.nn.Module | Sequence[AnyArray] | Mapping[str, AnyArray]"
Container = Literal["module", "mapping", "sequence", "tensor"]
Numbers = SupportsFloat | Sequence[SupportsFloat] | Mapping[str, SupportsFloat]


@dataclass(frozen=True)
class Tensors:
    """Tensors of one library, in order, each once."""

    names: list[str]
    values: list[Any]
    container: Container
    is_torch: bool
    compiling: bool  # there, operations check when they run


def collect(
    model: object,
    buffers: Buffers | None = None,
    *,
    in_place: bool = False,
    sharded: bool = False,
    draws: str = "",
    reads: str = "",
    **numbers: Numbers,
) -> tuple[Tensors, list[list[float]]]:
    """The tensors of a module, a mapping, a sequence or a tensor, and each of `numbers` as one number for each tensor.

    Floating-point buffers are as the caller decides. `in_place`: the model itself may leave, so that what else of it
    would leave is refused. `sharded`: all are DTensors, which are refused else. `draws` and `reads`: the function that
    draws one noise for the call, or that reads numbers on the host.
    """
    if buffers not in (None, "perturb", "keep"):
        raise ValueError(f"buffers={buffers!r} must be 'perturb', 'keep' or None")
    compiling = is_compiling()
    container, names, values, modules = _opened(model, buffers, in_place)
    if not compiling:
        if draws:
            refuse_rows(draws, values)
        if reads:
            refuse_unread(reads, values)
    if not names:
        raise ValueError(f"the {container} has no tensors: there is nothing to perturb")
    if compiling or len({*map(id, values)}) < len(values) or container == "mapping":
        named = _once([*zip(names, values, strict=True)], compiling, container)
        names, values = [name for name, _ in named], [value for _, value in named]
    is_torch = container == "module" or (not isinstance(values[0], np.ndarray) and is_tensor(values[0]))
    if sharded:
        pairs = [*zip(names, values, strict=True)]
        refuse_unvouched_parts(pairs, modules, whole=in_place, keep=buffers == "keep")
    elif not compiling:
        kinds = {*map(type, values)}
        if len(kinds) > 1 or not PLAIN_KINDS.issuperset(kinds):
            refuse_strangers(names, values, is_torch)
        whole = in_place and container in ("module", "mapping")
        if is_torch and (whole or any([t.__dict__ for t in values])):
            refuse_unvouched([*zip(names, values, strict=True)], modules, whole=whole, buffers=buffers)
    tensors = Tensors(names, values, container, is_torch, compiling)
    return tensors, [per_tensor(argument, value, names) for argument, value in numbers.items()]


def _opened(model: object, buffers: Buffers | None, in_place: bool) -> tuple[Container, list[str], list[Any], Modules]:
    """What a model is, its tensors and their names, and the modules in it."""
    if isinstance(model, np.ndarray) or is_tensor(model):
        return "tensor", [""], [model], []
    if is_module(model):
        named, modules = module_tensors(model, buffers, in_place)
        return "module", [name for name, _ in named], [value for _, value in named], modules
    if isinstance(model, Mapping):
        chosen = decided([(_name(k), v) for k, v in model.items()], buffers)
        return "mapping", [name for name, _ in chosen], [value for _, value in chosen], []
    if isinstance(model, (Sequence, GeneratorType)) and not isinstance(model, (str, bytes)):
        values = list(model)
        return "sequence", [*map(str, range(len(values)))], values, []
    raise TypeError(f"model is a {type(model).__name__}: pass a module, a tensor, or a sequence or mapping of tensors")


def _once(named: list[tuple[str, Any]], compiling: bool, container: Container) -> list[tuple[str, Any]]:
    """Each tensor under the first of its names."""
    if compiling:  # a tensor that the graph makes has no id in torch 2.11
        return [pair for i, pair in enumerate(named) if not any(pair[1] is other for _, other in named[:i])]
    if container == "mapping":
        named = untied(named)
    first = {id(pair[1]): pair for pair in reversed(named)}
    return [pair for pair in named if first[id(pair[1])] is pair]


def per_tensor(argument: str, value: object, names: Sequence[str]) -> list[float]:
    """One number for each tensor, from a number, a sequence, or a mapping by tensor or module name."""
    if isinstance(value, (int, float)):  # first: in a graph for torch.compile it may be a symbol
        try:
            return [float(value)] * len(names)
        except OverflowError:
            raise _past_numbers(argument) from None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return _by_name(argument, value, names)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if len(value) != len(names):
            raise ValueError(
                f"{argument} has {len(value)} values for {len(names)} tensors: pass one each, or one number"
            )
        return [_number(argument, v) for v in value]
    return [_number(argument, value)] * len(names)


def rows_of(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> int:
    """The number of samples, which is the first dimension of every tensor."""
    for name, shape in zip(names, shapes, strict=True):
        label = f"tensor {name!r}" if name else "x"
        if len(shape) == 0:
            raise ValueError(f"{label} has no dimension: pass one value or one row for each sample, [B] or [B, ...]")
        if shape[0] != shapes[0][0]:
            raise ValueError(f"{label} has {shape[0]} rows and the first tensor {shapes[0][0]}: pass one row a sample")
    return shapes[0][0]


def _number(argument: str, value: object) -> float:
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)  # type: ignore[arg-type]
        except OverflowError:
            raise _past_numbers(argument) from None
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{argument}={value!r} must be a number, a sequence of numbers or a mapping of names to numbers")


def _past_numbers(argument: str) -> ValueError:
    return ValueError(f"{argument} is an integer above the largest floating-point number: pass a finite one")


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a mapping's key {key!r} must be a string")
    return key


def _by_name(argument: str, value: Mapping[object, object], names: Sequence[str]) -> list[float]:
    if not _fit(value, names):
        keys, plain = unwrapped(map(str, value)), unwrapped(names)
        if len({*keys}) == len(keys) and len({*plain}) == len(plain) and _fit(keys, plain):
            value, names = dict(zip(keys, value.values(), strict=True)), plain
    used, numbers = set(), []
    for name in names:
        key: str | None = name  # the tensor's own, else its module's, else the module's around that
        while key is not None and key not in value:
            key = key.rpartition(".")[0] if "." in key else ("" if key else None)
        if key is None:
            raise ValueError(f"{argument} names no range for {name!r}: add it, or its module")
        used.add(key)
        numbers.append(_number(argument, value[key]))
    unused = set(value) - used
    if unused:
        name = sorted(map(str, unused))[0]
        raise ValueError(f"{argument} names {name!r}, which is not a tensor or module of the model")
    return numbers


def _fit(keys: Iterable[object], names: Sequence[str]) -> bool:
    """Whether all keys are names of tensors or of modules around them."""
    known = {""}
    for name in names:
        while name not in known:
            known.add(name)
            name = name.rpartition(".")[0]
    return all(key in known for key in keys)
