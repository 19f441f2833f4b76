# SPDX-License-Identifier: Apache-2.0
"""What a caller hands in, as a flat list of named tensors; and every check that comes before the first write."""

from __future__ import annotations

import contextlib
import itertools
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ldpkernels import _native
from ldpkernels._dtypes import DTYPES, Dtype
from ldpkernels._walk import each_once, module_tensors, untied

Container = Literal["module", "mapping", "sequence", "tensor"]


@dataclass(frozen=True)
class Tensors:
    """Tensors of one library, in order, each once."""

    names: list[str]
    values: list[Any]
    container: Container
    is_torch: bool


def collect(model: Any, buffers: str | None = None) -> Tensors:
    """The tensors of a module, a mapping, a sequence or a tensor; floating-point buffers as the caller decides."""
    if buffers not in (None, "perturb", "keep"):
        raise ValueError(f"buffers={buffers!r} must be 'perturb', 'keep' or None")
    torch = sys.modules.get("torch")  # a model of tensors exists only where torch was imported
    container: Container
    if torch is not None and isinstance(model, torch.nn.Module):
        container, named = "module", module_tensors(model, buffers)
    elif isinstance(model, Mapping):
        container, named = "mapping", [(_name(k), v) for k, v in model.items()]
        if not _compiling(torch):
            named = untied(named)
    elif _is_tensor(model):
        container, named = "tensor", [("", model)]
    elif isinstance(model, Sequence) and not isinstance(model, (str, bytes)):
        container, named = "sequence", [(str(i), v) for i, v in enumerate(model)]
    else:
        raise TypeError(
            f"model is a {type(model).__name__}: pass a module, a tensor, or a sequence or mapping of tensors"
        )
    if not named:
        raise ValueError(f"the {container} has no tensors: there is nothing to perturb")
    names, values = each_once(named)
    is_torch = torch is not None and isinstance(values[0], torch.Tensor)
    return Tensors(names, values, container, is_torch)


def per_tensor(argument: str, value: Any, tensors: Tensors) -> list[float]:
    """One number for each tensor, from a number, a sequence, or a mapping by tensor or module name."""
    names = tensors.names
    if isinstance(value, (int, float)):  # first: in a graph for torch.compile it may be a symbol
        return [float(value)] * len(names)
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


def first_elements(sizes: Sequence[int]) -> list[int]:
    """Where each tensor starts in the stream: at the multiple of 8 that follows the one before."""
    starts, next_start = [], 0
    for size in sizes:
        starts.append(next_start)
        next_start += (size + 7) // 8 * 8
    return starts


def report_bytes(sizes: Sequence[int]) -> int:
    """The length of a one-bit report of tensors of these sizes."""
    return sum((size + 7) // 8 for size in sizes)


def span_table(addresses: Sequence[int], outs: Sequence[int], sizes: Sequence[int], dtypes: Sequence[Dtype]) -> Any:
    """The kernels' description of the tensors."""
    fields: list[int] = []
    for row in zip(addresses, outs, sizes, first_elements(sizes), dtypes, strict=True):
        fields += row[:4]
        fields.append(row[4].code)
    return np.frombuffer(bytearray(struct.pack(f"{len(fields)}q", *fields)), _native.SPAN)  # twice as fast as np.array


def numpy_dtype(name: str, array: np.ndarray[Any, Any], written: bool, overlapping: bool = False) -> Dtype:
    """The format of an array that a kernel may touch, or a TypeError or ValueError that says what to do."""
    label = f"tensor {name!r}" if name else "the tensor"
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{label} is a {type(array).__name__} among NumPy arrays: pass tensors of one library")
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise TypeError(f"{label} has dtype {array.dtype}: convert it to {', '.join(DTYPES)}, or leave it out")
    if written and not array.flags.writeable:
        raise ValueError(f"{label} is read-only: pass a copy")
    if not overlapping and _may_overlap(array.shape, tuple(s // array.itemsize for s in array.strides)):
        raise ValueError(f"{label} overlaps itself (strides {array.strides}): pass a copy")
    return DTYPES[array.dtype.name]


def torch_dtype(name: str, tensor: Any, overlapping: bool = False) -> Dtype:
    """The same for a torch tensor."""
    import torch

    label = f"tensor {name!r}" if name else "the tensor"
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{label} is a {type(tensor).__name__} among torch tensors: pass tensors of one library")
    if tensor.is_quantized or tensor.layout is not torch.strided:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise TypeError(f"{label} is {kind}: convert it to a dense floating-point tensor")
    if tensor.dtype not in torch_dtypes():
        raise TypeError(f"{label} has dtype {tensor.dtype}: convert it to {', '.join(DTYPES)}, or leave it out")
    if tensor.is_meta:
        raise ValueError(f"{label} is on the meta device and has no data: materialize it first")
    if not overlapping and not tensor.is_contiguous() and _may_overlap(tuple(tensor.shape), tensor.stride()):
        raise ValueError(f"{label} overlaps itself (strides {tensor.stride()}): pass a clone")
    return torch_dtypes()[tensor.dtype]


@lru_cache(maxsize=1)
def torch_dtypes() -> dict[Any, Dtype]:
    """The formats by torch's dtypes."""
    import torch

    return {getattr(torch, name): dtype for name, dtype in DTYPES.items()}


def refuse_outside(argument: str, lowest: int, highest: int, bound: int) -> None:
    """Integers beyond [-bound, bound] are the caller's mistake: clipping them is too."""
    if lowest < -bound or highest > bound:
        wrong = lowest if lowest < -bound else highest
        raise ValueError(f"{argument} holds {wrong}, outside [-{bound}, {bound}]: clip it, or use a larger M")


@dataclass(frozen=True)
class Memory:
    """Where a tensor lies: address, shape, strides in bytes, bytes an element."""

    address: int
    shape: Sequence[int]
    strides: Sequence[int]
    itemsize: int

    def extent(self) -> tuple[int, int]:
        """First byte, and the one past the last."""
        if 0 in self.shape:
            return self.address, self.address
        reaches = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(reach, 0) for reach in reaches), sum(max(reach, 0) for reach in reaches)
        return self.address + low, self.address + high + self.itemsize

    def marks(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which bytes from `start` to `stop` belong to the tensor."""
        offsets = np.zeros((), np.int64)
        for n, s in zip(self.shape, self.strides, strict=True):
            offsets = offsets[..., None] + np.arange(n) * s
        marked = np.zeros(stop - start, np.bool_)
        for byte in range(self.itemsize):
            marked[self.address - start + offsets.ravel() + byte] = True
        return marked


def apart(extents: Sequence[tuple[int, int]]) -> bool:
    """Whether no two extents of memory meet."""
    return all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(extents)))


def refuse_shared_memory(names: Sequence[str], memories: Sequence[Memory]) -> None:
    """Tensors that share elements would be perturbed twice, the second time from the first one's output."""
    extents = [m.extent() for m in memories]
    if apart(extents):
        return
    open_ones: list[int] = []
    for i in sorted(range(len(extents)), key=lambda i: extents[i]):
        start, stop = extents[i]
        if start == stop:
            continue
        open_ones = [j for j in open_ones if extents[j][1] > start]
        for j in open_ones:  # rare, and harmless where two views interleave
            bounds = extents[j][0], max(stop, extents[j][1])
            if bool((memories[i].marks(*bounds) & memories[j].marks(*bounds)).any()):
                raise ValueError(f"tensors {names[j]!r} and {names[i]!r} share memory: pass one of them, or a copy")
        open_ones.append(i)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _number(argument: str, value: Any) -> float:
    if not isinstance(value, (str, bytes)):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    raise TypeError(f"{argument}={value!r} must be a number, a sequence of numbers or a mapping of names to numbers")


def _compiling(torch: Any) -> bool:
    return torch is not None and bool(torch.compiler.is_compiling())


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a mapping's key {key!r} must be a string")
    return key


def _by_name(argument: str, value: Mapping[Any, Any], names: Sequence[str]) -> list[float]:
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
        raise ValueError(f"{argument} names {sorted(map(str, unused))[0]!r}, which is no tensor or module of the model")
    return numbers


def _may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether some element may be reached twice; exact for every view that slicing and transposing make."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted((abs(st), sz) for st, sz in zip(strides, shape, strict=True) if sz > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def rows_of(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> int:
    """The number of samples, which is the first dimension of every tensor."""
    for name, shape in zip(names, shapes, strict=True):
        label = f"tensor {name!r}" if name else "x"
        if len(shape) == 0:
            raise ValueError(f"{label} has no dimension: pass one value or one row for each sample, [B] or [B, ...]")
        if shape[0] != shapes[0][0]:
            raise ValueError(f"{label} has {shape[0]} rows and the first tensor {shapes[0][0]}: pass one row a sample")
    return shapes[0][0]
