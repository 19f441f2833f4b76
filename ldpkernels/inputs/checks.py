# SPDX-License-Identifier: Apache-2.0
"""Whether kernels may touch what a caller handed in: every check comes before the first write."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ldpkernels.arrays import Array
from ldpkernels.dtypes import DTYPES, Dtype
from ldpkernels.inputs.memory import Memory, may_overlap, refuse_shared_memory
from ldpkernels.keys import AES, CIPHERS, refuse_aes
from ldpkernels.optional import is_compiling, is_tensor

if TYPE_CHECKING:
    import torch


def checked_arrays(names: Sequence[str], arrays: Sequence[Array], written: bool) -> list[Dtype]:
    """The formats of arrays that a kernel may touch together, or an error that names the first that it may not."""
    dtypes = [numpy_dtype(name, array, written) for name, array in zip(names, arrays, strict=True)]
    refuse_shared_memory(names, [Memory(a.ctypes.data, a.shape, a.strides, a.itemsize) for a in arrays])
    return dtypes


class Checked(NamedTuple):
    """What a kernel has to know of tensors that it may touch."""

    dtypes: list[Dtype]
    device: str  # its type
    plain: bool  # a kernel may take the memory of each as it is


def checked_tensors(
    tensors: Sequence[torch.Tensor], key: torch.Tensor | None = None, names: Sequence[str] | None = None
) -> Checked:
    """The same for tensors and the key of a call. Without names, errors give the tensors' numbers."""
    import torch

    if not tensors:
        raise ValueError("no tensors: there is nothing to perturb")
    device, formats = tensors[0].device, torch_dtypes()
    plain = device.type != "meta" and all(
        isinstance(t, torch.Tensor)
        and t.dtype in formats
        and t.layout is torch.strided
        and not t.is_nested
        and t.is_contiguous()
        and not t.is_neg()
        and t.device == device
        for t in tensors
    )
    if not plain:
        _check_each(tensors, names or _numbers(tensors), device)
    if plain:
        for i, t in enumerate(tensors):
            refuse_freed(names[i] if names else str(i), t)
    extents = [_extent(t) for t in tensors]
    if any(start == 0 and stop for start, stop in extents):
        raise ValueError("a tensor has no memory, or stands for one that has: call this outside of torch's transforms")
    ordered = sorted(extents)
    if any(a[1] > b[0] for a, b in itertools.pairwise(ordered)):
        refuse_shared_memory(names or _numbers(tensors), [_memory(t) for t in tensors])
    if key is not None:
        check_key(key, device)
    return Checked([formats[t.dtype] for t in tensors], device.type, plain)


def check_key(key: torch.Tensor, device: torch.device) -> None:
    """Refuse a key that a kernel for tensors on `device` cannot read."""
    if key.device != device:
        raise ValueError(f"the key is on {key.device} and the tensors are on {device}: move the key there")
    refuse_freed("key", key)
    if str(key.dtype) != "torch.int64" or key.dim() != 1 or len(key) not in CIPHERS or not key.is_contiguous():
        raise TypeError(f"a key is a contiguous int64 tensor of 1, 2 or 4 words, not {key.dtype} of {tuple(key.shape)}")
    if device.type == "cuda" and len(key) == AES:
        refuse_aes("on 'cuda'")


def tensor_dtypes(tensors: Sequence[torch.Tensor]) -> list[Dtype]:
    """The formats of tensors that were checked."""
    return [torch_dtypes()[t.dtype] for t in tensors]


def numpy_dtype(name: str, array: Array, written: bool, overlapping: bool = False) -> Dtype:
    """The format of an array that a kernel may touch, or a TypeError or ValueError that says what to do."""
    label = f"tensor {name!r}" if name else "the tensor"
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{label} is a {type(array).__name__} among NumPy arrays: pass tensors of one library")
    refuse_strange_kind(name, array)
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise TypeError(f"{label} has dtype {array.dtype}: convert it to {', '.join(DTYPES)}, or leave it out")
    if written and not array.flags.writeable:
        raise ValueError(f"{label} is read-only: pass a copy")
    if not overlapping and may_overlap((*array.shape, array.itemsize), (*array.strides, 1)):  # in bytes
        raise ValueError(f"{label} overlaps itself (strides {array.strides}): pass a copy")
    return DTYPES[array.dtype.name]


def torch_dtype(name: str, tensor: torch.Tensor, overlapping: bool = False) -> Dtype:
    """The same for a torch tensor."""
    import torch

    label = f"tensor {name!r}" if name else "the tensor"
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{label} is a {type(tensor).__name__} among torch tensors: pass tensors of one library")
    refuse_strange_kind(name, tensor)
    if tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        kind = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else layout
        raise TypeError(f"{label} is {kind}: convert it to a dense floating-point tensor")
    if tensor.dtype not in torch_dtypes():
        raise TypeError(f"{label} has dtype {tensor.dtype}: convert it to {', '.join(DTYPES)}, or leave it out")
    if tensor.is_meta:
        raise ValueError(f"{label} is on the meta device and has no data: materialize it first")
    refuse_freed(name, tensor)
    if not overlapping and not tensor.is_contiguous() and may_overlap(tuple(tensor.shape), tensor.stride()):
        raise ValueError(f"{label} overlaps itself (strides {tensor.stride()}): pass a clone")
    return torch_dtypes()[tensor.dtype]


def refuse_freed(name: str, tensor: torch.Tensor) -> None:
    """An error for a tensor that its storage does not hold, or not whole: storages can be made smaller under it."""
    if is_compiling() or not tensor.numel():  # in a graph, the operation asks
        return
    with contextlib.suppress(RuntimeError):  # what has no storage of its own is refused, or given one, elsewhere
        held, size = tensor.untyped_storage().nbytes(), tensor.element_size()
        last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        if (last + 1) * size > held:
            label = f"tensor {name!r}" if name else "the tensor"
            raise ValueError(
                f"{label} has no memory: its storage was freed or made smaller ({held} bytes are left), as sharded "
                "models do; gather it first"
            )


@lru_cache(maxsize=1)
def torch_dtypes() -> dict[torch.dtype, Dtype]:
    """The formats by torch's dtypes."""
    import torch

    return {getattr(torch, name): dtype for name, dtype in DTYPES.items()}


PLAIN_KINDS: set[type] = {np.ndarray, np.memmap}  # whose objects hold their own numbers; those of torch join at use


def refuse_strange_kind(name: str, value: object) -> None:
    """An error for a tensor or an array of a class whose numbers may lie elsewhere, as a mask's or a shard's do."""
    kind = type(value)
    if kind in PLAIN_KINDS:
        return
    cure = _cure(value)
    if cure:
        label = f"tensor {name!r}" if name else "the tensor"
        raise TypeError(f"{label} is a {kind.__name__}, whose numbers may lie elsewhere: {cure}")
    if isinstance(value, np.ndarray) or is_tensor(value):
        PLAIN_KINDS.add(kind)


def _cure(value: object) -> str:
    """What to do instead of passing such a tensor; nothing where it is fine, or refused for what it is."""
    if isinstance(value, np.ma.MaskedArray):
        return "pass its .filled(), a copy that holds nothing of what is masked"
    if isinstance(value, np.ndarray):
        return "pass numpy.asarray of it"
    if not is_tensor(value):
        return ""
    import torch

    kind = type(value)
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return ""
    if kind.__name__ in ("FakeTensor", "FunctionalTensor"):  # torch's own, while it traces
        return ""
    if kind.__name__ == "DTensor":
        return (
            "perturb_, report, ranges and load take DTensors, if all tensors are, in a module, a mapping, a list or "
            "alone; elsewhere pass its full_tensor()"
        )
    return "pass a plain tensor"


def refuse_outside(argument: str, lowest: int, highest: int, bound: int) -> None:
    """Integers beyond [-bound, bound] are the caller's mistake: clipping them is too."""
    if lowest < -bound or highest > bound:
        wrong = lowest if lowest < -bound else highest
        raise ValueError(f"{argument} holds {wrong}, outside [-{bound}, {bound}]: clip it, or use a larger M")


def _check_each(tensors: Sequence[torch.Tensor], names: Sequence[str], device: torch.device) -> None:
    for name, t in zip(names, tensors, strict=True):
        torch_dtype(name, t)
        if t.device != device:
            raise ValueError(f"tensor {name!r} is on {t.device} and the first on {device}: perturb each device's apart")


def _numbers(tensors: Sequence[torch.Tensor]) -> list[str]:
    return [str(i) for i in range(len(tensors))]


def _extent(t: torch.Tensor) -> tuple[int, int]:
    address = t.data_ptr()
    return (address, address + t.nbytes) if t.is_contiguous() else _memory(t).extent()


def _memory(t: torch.Tensor) -> Memory:
    size = t.element_size()
    return Memory(t.data_ptr(), t.shape, [s * size for s in t.stride()], size)
