# SPDX-License-Identifier: Apache-2.0
"""The tensors of a torch module or of its state_dict, each once, and the rule for buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from ldpkernels.common.optional import is_compiling, is_tensor
from ldpkernels.inputs.transforms import is_transformed

if TYPE_CHECKING:
    import torch

Buffers: TypeAlias = Literal["perturb", "keep"]
Value = TypeVar("Value")
Named: TypeAlias = "list[tuple[str, torch.Tensor]]"
Modules: TypeAlias = "list[tuple[str, torch.nn.Module]]"

_COUNT = "num_batches_tracked"
_STATISTICS = ("running_mean", "running_var", _COUNT)  # what batch normalisation keeps of the training data
_WRAPPERS = ("module", "_module", "_orig_mod")  # DistributedDataParallel, Opacus, torch.compile


def module_tensors(module: torch.nn.Module, buffers: Buffers | None, in_place: bool) -> tuple[Named, Modules]:
    """Parameters, then floating-point buffers as the caller decides; an error asks where nothing is decided.

    Also the modules themselves, with the prefixes of their names.
    """
    import torch

    parameters: Named = []
    floating: Named = []
    modules: Modules = []
    _walk(module, "", set(), parameters, floating, modules)
    for name, parameter in parameters:
        if type(parameter) is torch.nn.parameter.UninitializedParameter:
            raise ValueError(f"parameter {name!r} is not initialized: run the module once before perturbing it")
    if buffers == "keep":
        return parameters, modules
    if floating and buffers is None:
        raise ValueError(_undecided("buffer", [name for name, _ in floating]))
    if in_place:
        _refuse_counts(modules)
    return parameters + floating, modules


def decided(named: list[tuple[str, Value]], buffers: Buffers | None) -> list[tuple[str, Value]]:
    """Apply the rule for buffers to the statistics in a mapping, which are known by their names."""
    statistics = [name for name, _ in named if name.endswith(_STATISTICS)]
    if not statistics or buffers == "perturb":
        return named
    if buffers is None:
        raise ValueError(_undecided("tensor", statistics))
    return [(name, value) for name, value in named if not name.endswith(_STATISTICS)]


def _undecided(kind: str, names: Sequence[str]) -> str:
    return (
        f"{kind} {names[0]!r} (one of {len(names)}) holds statistics of the training data and leaves the "
        "device with the model: pass buffers='perturb' to perturb it too (C and R then need its range), or "
        "buffers='keep' if it stays"
    )


def _refuse_counts(modules: Modules) -> None:
    """Integers are not perturbed, so that a count of batches would leave as it is."""
    for prefix, module in modules:
        count = module._buffers.get(_COUNT)
        if count is not None and (is_compiling() or bool(count)):
            raise ValueError(
                f"buffer {prefix + _COUNT!r} counts the batches of the training data, and integers are not perturbed: "
                "set it to zero (.zero_()) first, or pass buffers='keep' if buffers are not sent"
            )


def _walk(
    module: torch.nn.Module, prefix: str, seen: set[int], parameters: Named, floating: Named, modules: Modules
) -> None:
    """named_parameters() and named_buffers() in one walk, which takes a quarter of their time.

    The prefixes of wrappers are left out: a wrapped model's reports are those of the model.
    """
    if id(module) in seen:
        return
    seen.add(id(module))
    modules.append((prefix, module))
    for name, p in module._parameters.items():
        if p is not None:
            parameters.append((prefix + name, p))
    for name, b in module._buffers.items():
        if b is not None and (b.is_floating_point() or b.is_complex()):
            floating.append((prefix + name, b))
    for name, child in module._modules.items():
        if child is not None:
            inner = prefix if name in _WRAPPERS and _is_wrapper(module, name) else f"{prefix}{name}."
            _walk(child, inner, seen, parameters, floating, modules)


def _is_wrapper(module: torch.nn.Module, name: str) -> bool:
    """Whether a module is a wrapper around its only child; "module" is a name that users give too."""
    import torch

    if len(module._modules) > 1 or module._parameters or module._buffers:
        return False
    return name != "module" or isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel))


def common_prefix(names: Iterable[str]) -> str:
    """What wrappers around a whole model put before the names of all of its tensors."""
    left, prefix = list(names), ""
    while left:
        heads = {name.partition(".")[0] if "." in name else "" for name in left}
        if len(heads) > 1 or not heads <= set(_WRAPPERS):
            break
        (head,) = heads
        prefix += head + "."
        left = [name.removeprefix(head + ".") for name in left]
    return prefix


def unwrapped(names: Iterable[str]) -> list[str]:
    """Names of tensors or modules without those that wrappers bring, inside too where no user gives them."""
    split = [[part for part in name.split(".") if part not in ("_module", "_orig_mod")] for name in names]
    while split and all(parts[:1] == ["module"] for parts in split):
        split = [parts[1:] for parts in split]
    return [".".join(parts) for parts in split]


def untied(named: Sequence[tuple[str, Value]]) -> list[tuple[str, Value]]:
    """A state_dict's tied weights are tensors of their own over the same memory: the first of them stands for all."""
    first: dict[object, object] = {}
    kept = []
    for name, value in named:
        plain = is_tensor(value) and str(value.layout) == "torch.strided" and not value.is_nested
        if is_tensor(value) and plain and value.numel() and not is_transformed(value):
            place = value.data_ptr(), value.shape, value.stride(), value.dtype, value.device
            if place[0] and first.setdefault(place, value) is not value:
                continue
        kept.append((name, value))
    return kept
