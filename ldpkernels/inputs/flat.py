# SPDX-License-Identifier: Apache-2.0
"""A whole update as one vector, on its GPU or in host memory, and one vector as an update's container."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels import capabilities
from ldpkernels.arrays import AnyArray, Array, Floats
from ldpkernels.dtypes import Dtype
from ldpkernels.inputs.checks import numpy_dtype, torch_dtype
from ldpkernels.inputs.containers import Tensors
from ldpkernels.inputs.stretches import in_stretches

if TYPE_CHECKING:
    import torch


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


def in_reach(values: Sequence[AnyArray]) -> tuple[list[AnyArray], torch.device | None]:
    """Each in contiguous memory of where whole vectors are worked on, and that device; None for the host.

    That is the GPU on which the values are, where it has kernels for whole vectors.
    """
    tensors = [value for value in values if not isinstance(value, np.ndarray)]
    devices = {tensor.device for tensor in tensors}
    device = devices.pop() if len(devices) == 1 else None
    if device is None or device.type != "cuda" or not capabilities.able("vectors", "cuda"):
        return in_host_memory(values), None
    return [tensor.detach().resolve_neg().contiguous() for tensor in tensors], device


def address(value: AnyArray) -> int:
    """Where an array or tensor lies."""
    return int(value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr())


def float64s(values: Sequence[AnyArray]) -> Floats:
    """All of them, one after another."""
    x = np.empty(sum(math.prod(value.shape) for value in values))
    start = 0
    for value in values:
        part = _flat(value)
        _cast(x[start : start + part.size], part)
        start += part.size
    return x


def parts_of(x: Floats, sizes: Sequence[int], kinds: Sequence[type[np.floating]]) -> list[Array]:
    """A vector cut into parts of these sizes, each of its own format."""
    parts: list[Array] = [np.empty(size, kind) for size, kind in zip(sizes, kinds, strict=True)]
    start = 0
    for part in parts:
        _cast(part, x[start : start + part.size])
        start += part.size
    return parts


def clipped(x: Array, norm: float) -> Array:
    """x scaled to a length of at most `norm`; NaN counts as 0, and infinities dwarf every number."""
    scaled = np.empty(x.size)

    def clean(part: slice) -> float:
        np.copyto(scaled[part], x[part])
        scaled[part][np.isnan(x[part])] = 0.0
        return float(np.max(np.abs(scaled[part])))

    largest = max(in_stretches(x.size, clean), default=0.0)
    if largest == 0.0:
        return scaled

    def shorten(part: slice) -> None:
        here = scaled[part]
        if math.isinf(largest):
            here[:] = np.where(np.isinf(here), np.sign(here), 0.0)
        else:
            here /= largest

    in_stretches(x.size, shorten)
    multiply(scaled, min(largest, norm / float(np.linalg.norm(scaled))))
    return scaled


def multiply(x: Floats, factor: float) -> None:
    """Each number by the factor, in place."""

    def work(part: slice) -> None:
        x[part] *= factor

    in_stretches(x.size, work)


def contained(tensors: Tensors, parts: Sequence[AnyArray]) -> AnyArray | Sequence[AnyArray] | Mapping[str, AnyArray]:
    """The parts in the shapes, the library and the container of the tensors; a module's is a mapping."""
    shaped = [
        _as_library(part.reshape(tuple(tensor.shape)), tensors.is_torch)
        for part, tensor in zip(parts, tensors.values, strict=True)
    ]
    if tensors.container == "tensor":
        return shaped[0]
    return shaped if tensors.container == "sequence" else dict(zip(tensors.names, shaped, strict=True))


def _flat(tensor: AnyArray) -> Array:
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1)
    host = tensor.detach().cpu().reshape(-1)
    flat: Array = (host if host.element_size() > 2 else host.float()).numpy()
    return flat


def _cast(to: Array, x: Array) -> None:
    def work(part: slice) -> None:
        np.copyto(to[part], x[part], casting="same_kind")

    in_stretches(x.size, work)


def _as_library(array: AnyArray, is_torch: bool) -> AnyArray:
    if not is_torch or not isinstance(array, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array)
