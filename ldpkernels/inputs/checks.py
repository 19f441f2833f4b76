# SPDX-License-Identifier: Apache-2.0
"""Whether a kernel may touch a tensor: every check of one tensor, before the first write."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ldpkernels.dtypes import DTYPES, Dtype
from ldpkernels.inputs.memory import may_overlap


def numpy_dtype(name: str, array: np.ndarray[Any, Any], written: bool, overlapping: bool = False) -> Dtype:
    """The format of an array that a kernel may touch, or a TypeError or ValueError that says what to do."""
    label = f"tensor {name!r}" if name else "the tensor"
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{label} is a {type(array).__name__} among NumPy arrays: pass tensors of one library")
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise TypeError(f"{label} has dtype {array.dtype}: convert it to {', '.join(DTYPES)}, or leave it out")
    if written and not array.flags.writeable:
        raise ValueError(f"{label} is read-only: pass a copy")
    if not overlapping and may_overlap(array.shape, tuple(s // array.itemsize for s in array.strides)):
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
    if not overlapping and not tensor.is_contiguous() and may_overlap(tuple(tensor.shape), tensor.stride()):
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
