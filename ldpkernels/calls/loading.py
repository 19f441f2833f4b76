# SPDX-License-Identifier: Apache-2.0
"""Averages into a model, all of them or none: `load_state_dict(mean, strict=False)` loads nothing without a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from ldpkernels.common.arrays import AnyArray, Array
from ldpkernels.common.optional import is_module, is_tensor
from ldpkernels.inputs.checks import numpy_dtype, refuse_freed, refuse_strange_kind, torch_dtype
from ldpkernels.inputs.containers import Tensors, collect
from ldpkernels.inputs.memory import note_write, write_back
from ldpkernels.inputs.modules import Buffers, common_prefix
from ldpkernels.inputs.shards import is_dtensor, is_sharded, part_of

Model = TypeVar("Model")


def load(model: Model, mean: object, *, buffers: Buffers | None = None, add: bool = False) -> Model:
    """Write averages, as `aggregate`, `Aggregate.mean` or `perturb_vector` give them, into a model, and return it.

    Every average must fit one tensor by name and shape (by place, for sequences), and every tensor must have one:
    otherwise it raises before the first write. Prefixes of wrappers (DistributedDataParallel, Opacus, torch.compile)
    may be on either side. Each rank writes its own part of a DTensor.

    Args:
        model: A module, a tensor, a NumPy array, or a sequence or mapping of them.
        mean: A mapping for a module or a mapping, a sequence for a sequence, a tensor or an array for one of these.
        buffers: For a module with floating-point buffers: "perturb" if they were reported, "keep" if not. None decides
            by what is in `mean`.
        add: The averages are of updates: add them to what the model holds.

    >>> import numpy as np, ldpkernels
    >>> model = {"w": np.zeros(3), "b": np.zeros(1)}
    >>> ldpkernels.load(model, {"w": np.ones(3), "b": np.ones(1)})
    {'w': array([1., 1., 1.]), 'b': array([1.])}
    >>> ldpkernels.load(model, {"w": np.ones(3), "b": np.ones(1)}, add=True)["b"]
    array([2.])
    """
    if buffers is None and isinstance(mean, Mapping):
        buffers = _buffers_of(model, mean)
    tensors, _ = collect(model, buffers, sharded=is_sharded(model))
    averages = [
        _fitting(name, tensor, average, add)
        for name, tensor, average in zip(tensors.names, tensors.values, _matched(tensors, mean), strict=True)
    ]
    written = [part_of("", tensor).local if is_dtensor(tensor) else tensor for tensor in tensors.values]
    write_back(written, averages)
    if tensors.is_torch:
        note_write(written)
    return model


def _buffers_of(model: object, mean: Mapping[object, object]) -> Buffers | None:
    """Whether the averages have the floating-point buffers of a module, or a mapping's statistics."""
    if not is_module(model) and not isinstance(model, Mapping):
        return None
    kept, _ = collect(model, "keep", sharded=is_sharded(model))
    return "perturb" if len(mean) > len(kept.names) else "keep"


def _matched(tensors: Tensors, mean: object) -> list[AnyArray]:
    """An average for each tensor, in order."""
    if tensors.container == "tensor":
        if isinstance(mean, (Mapping, list, tuple)):
            raise TypeError(f"mean is a {type(mean).__name__} and model one tensor: pass one tensor")
        return [mean]  # type: ignore[list-item]
    if tensors.container == "sequence":
        if not isinstance(mean, Sequence) or len(mean) != len(tensors.names):
            size = f" of {len(mean)}" if isinstance(mean, Sequence) else ""
            raise ValueError(
                f"mean is a {type(mean).__name__}{size} and model a sequence of {len(tensors.names)} tensors: pass a "
                "sequence with one average for each"
            )
        return list(mean)
    if not isinstance(mean, Mapping):
        raise TypeError(f"mean is a {type(mean).__name__} and model a {tensors.container}: pass a mapping by name")
    ours, theirs = _plain(tensors.names), _plain([str(name) for name in mean])
    by_name = dict(zip(theirs, mean.values(), strict=True))
    missing = [name for name in ours if name not in by_name]
    unknown = sorted(by_name.keys() - set(ours))
    if missing or unknown:
        wrong = f"no average of {missing[0]!r}" if missing else f"{unknown[0]!r}, which is not a tensor of the model"
        raise ValueError(
            f"mean has {wrong} ({len(missing)} left out, {len(unknown)} left over): pass one for each tensor that was "
            "reported, by its name"
        )
    return [by_name[name] for name in ours]


def _plain(names: Sequence[str]) -> list[str]:
    prefix = common_prefix(names)
    return [name.removeprefix(prefix) for name in names]


def _fitting(name: str, tensor: AnyArray, average: AnyArray, add: bool) -> AnyArray:
    """What to write, as a copy in the tensor's own format: nothing that may fail, or share its memory, is left."""
    label = f"tensor {name!r}" if name else "the tensor"
    if not isinstance(average, np.ndarray) and not is_tensor(average):
        raise TypeError(f"the average of {label} is a {type(average).__name__}: pass a tensor or an array")
    refuse_strange_kind(f"average of {name}", average)
    if tuple(average.shape) != tuple(tensor.shape):
        raise ValueError(f"{label} has shape {tuple(tensor.shape)} and its average {tuple(average.shape)}")
    if isinstance(average, np.ndarray):
        real, kind = average.dtype.kind in "fiu", str(average.dtype)
    else:
        real, kind = not (average.is_complex() or average.is_quantized or average.is_sparse), str(average.dtype)
    if not real:
        raise TypeError(f"the average of {label} has dtype {kind}: pass real numbers, dense")
    if isinstance(tensor, np.ndarray):
        numpy_dtype(name, tensor, written=True)
        array: Array = average if isinstance(average, np.ndarray) else average.detach().cpu().double().numpy()
        return (tensor + array if add else array).astype(tensor.dtype)
    import torch

    if isinstance(average, np.ndarray):
        average = torch.from_numpy(average.astype(np.float64))
    if is_dtensor(tensor):
        part = part_of(name, tensor)
        tensor, average = part.local, part.of(average)
    torch_dtype(name, tensor)
    refuse_freed(f"average of {name}", average)
    average = average.detach().to(tensor.device)
    if add:
        average = tensor.detach().double() + average.double()
    return average.to(tensor.dtype, copy=True)
