# SPDX-License-Identifier: Apache-2.0
"""A whole update as one vector in host memory, and one vector as an update's container."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ldpkernels.arrays import AnyArray, Array, Floats
from ldpkernels.dtypes import Dtype
from ldpkernels.inputs.checks import numpy_dtype, torch_dtype
from ldpkernels.inputs.containers import Tensors


def formats(tensors: Tensors) -> list[Dtype]:
    """The format of each tensor, or an error that names one that is none of ours."""
    check = torch_dtype if tensors.is_torch else lambda n, a: numpy_dtype(n, a, written=False)
    return [check(n, t) for n, t in zip(tensors.names, tensors.values, strict=True)]


def sizes(tensors: Tensors) -> list[int]:
    """The number of weights of each."""
    return [math.prod(t.shape) for t in tensors.values]


def in_host_memory(values: Sequence[AnyArray]) -> list[AnyArray]:
    """Each in contiguous memory of the host."""
    return [np.ascontiguousarray(v) if isinstance(v, np.ndarray) else v.detach().cpu().contiguous() for v in values]


def address(value: AnyArray) -> int:
    """Where an array or tensor lies."""
    return int(value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr())


def float64s(values: Sequence[AnyArray]) -> Floats:
    """All of them, one after another."""
    return np.concatenate([_float64(value) for value in values])


def clipped(x: Array, norm: float) -> Array:
    """x scaled to a length of at most `norm`; NaN counts as 0, and infinities dwarf every number."""
    x = np.where(np.isnan(x), 0.0, x)
    largest = float(np.max(np.abs(x), initial=0.0))
    if largest == 0.0:
        return x
    x = np.where(np.isinf(x), np.sign(x), 0.0) if math.isinf(largest) else x / largest
    scaled: Array = x * min(largest, norm / float(np.linalg.norm(x)))
    return scaled


def contained(tensors: Tensors, parts: Sequence[Array]) -> AnyArray | Sequence[AnyArray] | Mapping[str, AnyArray]:
    """The parts in the shapes, the library and the container of the tensors; a module's is a mapping."""
    shaped = [
        _as_library(part.reshape(tuple(tensor.shape)), tensors.is_torch)
        for part, tensor in zip(parts, tensors.values, strict=True)
    ]
    if tensors.container == "tensor":
        return shaped[0]
    return shaped if tensors.container == "sequence" else dict(zip(tensors.names, shaped, strict=True))


def _float64(tensor: AnyArray) -> Floats:
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float64).ravel()
    flat: Floats = tensor.detach().double().cpu().numpy().ravel()
    return flat


def _as_library(array: Array, is_torch: bool) -> AnyArray:
    if not is_torch:
        return array
    import torch

    return torch.from_numpy(array)
