# SPDX-License-Identifier: Apache-2.0
"""Whether kernels may touch what a caller handed in: every check comes before the first write."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels.common.arrays import Array
from ldpkernels.common.dtypes import DTYPES, Dtype
from ldpkernels.common.keys import AES, CIPHERS, LENGTHS, refuse_aes
from ldpkernels.common.optional import is_compiling, is_tensor, refuse_old_torch
from ldpkernels.inputs.overlap import may_overlap

if TYPE_CHECKING:
    import torch


def check_key(key: torch.Tensor, device: torch.device) -> None:
    """Refuse a key that a kernel for tensors on `device` cannot read."""
    if key.device != device:
        raise ValueError(f"the key is on {key.device} and the tensors are on {device}: move the key there")
    refuse_freed("key", key)
    if str(key.dtype) != "torch.int64" or key.dim() != 1 or key.shape[0] not in CIPHERS or not key.is_contiguous():
        raise TypeError(f"a key is a contiguous int64 tensor of {LENGTHS} words, not {key.dtype} of {tuple(key.shape)}")
    if device.type == "cuda" and key.shape[0] == AES.words:
        refuse_aes("on 'cuda'")


def tensor_dtypes(tensors: Sequence[torch.Tensor]) -> list[Dtype]:
    """The formats of tensors that were checked."""
    return [torch_dtypes()[t.dtype] for t in tensors]


def numpy_dtype(name: str, array: Array, written: bool, overlapping: bool = False) -> Dtype:
    """The format of an array that a kernel may touch, or a TypeError or ValueError that says what to do."""
    label = f"tensor {name!r}" if name else "the tensor"
    if type(array) is not np.ndarray:
        refuse_other_library(name, array, is_torch=False)
        refuse_strange_kind(name, array)
    dtype = _format(array.dtype)
    if dtype is None:
        raise TypeError(f"{label} has dtype {array.dtype}: convert it to {', '.join(DTYPES)}, or leave it out")
    if written and not array.flags.writeable:
        raise ValueError(f"{label} is read-only: pass a copy")
    if not overlapping and not array.flags.c_contiguous:
        in_bytes = (*array.shape, array.itemsize), (*array.strides, 1)
        if may_overlap(*in_bytes):
            raise ValueError(f"{label} overlaps itself (strides {array.strides}): pass a copy")
    return dtype


def torch_dtype(name: str, tensor: torch.Tensor, overlapping: bool = False) -> Dtype:
    """The format of a tensor that a kernel may touch, or a TypeError or ValueError that says what to do."""
    import torch

    label = f"tensor {name!r}" if name else "the tensor"
    if type(tensor) is not torch.Tensor:
        refuse_other_library(name, tensor, is_torch=True)
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
    """Raise for a tensor that its storage does not hold, or not whole: storages can be made smaller under it."""
    if is_compiling() or not tensor.numel():  # in a graph, the operation asks
        return
    with contextlib.suppress(RuntimeError):  # what has no storage of its own is refused, or given one, elsewhere
        held, size = tensor.untyped_storage().nbytes(), tensor.element_size()
        last = tensor.storage_offset() + sum([(n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)])
        if (last + 1) * size > held:
            label = f"tensor {name!r}" if name else "the tensor"
            raise ValueError(
                f"{label} has no memory: its storage was freed or made smaller ({held} bytes are left), as sharded "
                "models do; gather it first"
            )


@lru_cache(maxsize=256)
def _format(dtype: np.dtype[np.generic]) -> Dtype | None:
    """The format of an array's dtype, whose name takes a microsecond to ask; None where it is none of ours."""
    return DTYPES.get(dtype.name) if dtype.isnative else None


@lru_cache(maxsize=1)
def torch_dtypes() -> dict[torch.dtype, Dtype]:
    """The formats by torch's dtypes."""
    import torch

    refuse_old_torch(torch.__version__)  # here, as no call reads memory without these
    PLAIN_KINDS.add(torch.Tensor)
    return {getattr(torch, name): dtype for name, dtype in DTYPES.items()}


# Classes whose objects hold their own numbers; those of torch join when they are first seen.
PLAIN_KINDS: set[type] = {np.ndarray, np.memmap}


def refuse_strange_kind(name: str, value: object) -> None:
    """Raise for a tensor or an array of a class whose numbers may lie elsewhere, as a mask's or a shard's do."""
    kind = type(value)
    if kind in PLAIN_KINDS:
        return
    cure = _cure(value)
    if cure:
        label = f"tensor {name!r}" if name else "the tensor"
        raise TypeError(f"{label} is a {kind.__name__}, whose numbers may lie elsewhere: {cure}")
    if isinstance(value, np.ndarray) or (is_tensor(value) and not _is_traced(kind)):
        PLAIN_KINDS.add(kind)


def refuse_strangers(names: Sequence[str], values: Sequence[object], is_torch: bool) -> None:
    """Raise for values that are not all tensors of one library, of classes that hold their own numbers."""
    for name, value in zip(names, values, strict=True):
        refuse_strange_kind(name, value)
        refuse_other_library(name, value, is_torch)


def refuse_other_library(name: str, value: object, is_torch: bool) -> None:
    """Raise for what is not a tensor among tensors, or not an array among arrays."""
    if not (is_tensor(value) if is_torch else isinstance(value, np.ndarray)):
        label, others = f"tensor {name!r}" if name else "the tensor", "torch tensors" if is_torch else "NumPy arrays"
        raise TypeError(f"{label} is a {type(value).__name__} among {others}: pass tensors of one library")


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
    if _is_traced(kind):
        return ""
    if kind.__name__ == "DTensor":
        return (
            "perturb_, report, ranges and load take DTensors, if all tensors are, in a module, a mapping, a list or "
            "alone; elsewhere pass its full_tensor()"
        )
    return "pass a plain tensor"


def _is_traced(kind: type) -> bool:
    """Whether it is a class of torch's own, by which it traces a call."""
    return kind.__name__ in ("FakeTensor", "FunctionalTensor")


def refuse_outside(argument: str, lowest: int, highest: int, bound: int) -> None:
    """Integers beyond [-bound, bound] are the caller's mistake: clipping them is too."""
    if lowest < -bound or highest > bound:
        wrong = lowest if lowest < -bound else highest
        raise ValueError(f"{argument} holds {wrong}, outside [-{bound}, {bound}]: clip it, or use a larger M")
