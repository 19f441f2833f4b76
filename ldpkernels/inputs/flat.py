# SPDX-License-Identifier: Apache-2.0
"""A whole update as one vector, on its GPU or in host memory, and one vector as an update's container."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels.common import capabilities
from ldpkernels.common.arrays import AnyArray, Array, Floats, Integers
from ldpkernels.common.dtypes import Dtype
from ldpkernels.inputs.checks import numpy_dtype, torch_dtype
from ldpkernels.inputs.containers import Tensors

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
    """Give each value in contiguous memory of the host."""
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
    """Give the numbers of all values as one fp64 array in host memory, one value after another."""
    return np.concatenate([_at(value, slice(None)) for value in values] or [np.empty(0)])


def at(values: Sequence[AnyArray], sizes: Sequence[int], places: Integers) -> Floats:
    """The numbers at these places of all of them, one after another, in host memory; the places ascend."""
    return np.concatenate([_at(values[i], inside) for i, inside, _ in _by_part(sizes, places)])


def narrowed(value: AnyArray) -> AnyArray:
    """Give the numbers of a value in fp32, on its device."""
    return value.astype(np.float32) if isinstance(value, np.ndarray) else value.float()


def put(parts: Sequence[Array], sizes: Sequence[int], places: Integers, numbers: Floats) -> None:
    """Write numbers to these places of arrays, which ascend."""
    for i, inside, of_part in _by_part(sizes, places):
        parts[i][inside] = numbers[of_part]


def clipped(x: Floats, norm: float) -> Floats:
    """x scaled to a length of at most `norm`; NaN counts as 0, and infinities dwarf every number."""
    scaled, largest = _over_largest(x)
    return scaled * min(largest, norm / float(np.linalg.norm(scaled))) if largest > 0.0 else scaled


def direction(x: Floats) -> tuple[Floats, float]:
    """A vector along x whose length is from 1 to sqrt(n), and what to multiply it by to have x; cleaned in that way.

    >>> direction(np.array([3e-300, np.nan, -4e-300]))
    (array([ 0.75,  0.  , -1.  ]), 4e-300)
    >>> direction(np.zeros(2))
    (array([1., 0.]), 0.0)
    """
    scaled, largest = _over_largest(x)
    if largest == 0.0:
        scaled[:1] = 1.0
    return scaled, largest


def _over_largest(x: Floats) -> tuple[Floats, float]:
    """x over its largest magnitude, and that; zeros as they are."""
    x = np.where(np.isnan(x), 0.0, x)
    largest = float(np.max(np.abs(x), initial=0.0))
    if math.isinf(largest):
        return np.where(np.isinf(x), np.sign(x), 0.0), largest
    return (x / largest if largest > 0.0 else x), largest


def _by_part(sizes: Sequence[int], places: Integers) -> Iterator[tuple[int, Integers, slice]]:
    """The parts that have some of the places: their number, the places within, and which of all places those are."""
    starts = np.cumsum([0, *sizes])
    cuts = np.searchsorted(places, starts)
    for i in np.flatnonzero(np.diff(cuts)).tolist():
        of_part = slice(cuts[i], cuts[i + 1])
        yield i, places[of_part] - starts[i], of_part


def contained(tensors: Tensors, parts: Sequence[AnyArray]) -> AnyArray | Sequence[AnyArray] | Mapping[str, AnyArray]:
    """The parts in the shapes, the library and the container of the tensors; a module's is a mapping."""
    shaped = [
        _as_library(part.reshape(tuple(tensor.shape)), tensors.is_torch)
        for part, tensor in zip(parts, tensors.values, strict=True)
    ]
    if tensors.container == "tensor":
        return shaped[0]
    return shaped if tensors.container == "sequence" else dict(zip(tensors.names, shaped, strict=True))


def _at(value: AnyArray, places: Integers | slice) -> Floats:
    part = value.reshape(-1)[places]
    found: Floats = part.astype(np.float64) if isinstance(part, np.ndarray) else part.double().cpu().numpy()
    return found


def _as_library(array: AnyArray, is_torch: bool) -> AnyArray:
    if not is_torch or not isinstance(array, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array)


def empty(size: int, kind: type[np.generic], device: torch.device | None) -> AnyArray:
    """Room for numbers on a device; None is the host, and an array. Tensors have int32 for uint32."""
    if device is None:
        return np.empty(size, kind)
    import torch

    kinds: dict[type[np.generic], torch.dtype] = {
        np.uint8: torch.uint8,
        np.float64: torch.float64,
        np.float32: torch.float32,
        np.int32: torch.int32,
        np.uint32: torch.int32,
    }
    return torch.empty(size, dtype=kinds[kind], device=device)


def norms_of(squares: Floats, columns: int) -> Floats:
    """Norms of whole rows, or of each matrix's, from the sums of squares of each matrix's; in their memory."""
    if columns == 1 and squares.shape[1] > 1:
        total = np.zeros((len(squares), 1))
        for column in squares.T:  # in this order, on every backend
            total[:, 0] += column
        squares = total
    return np.sqrt(squares, out=squares)


def interpolated(finite: Integers, q: Floats, select: Callable[[Integers], Floats]) -> Floats:
    """The quantiles q, from 0 to 1, of each layer's finite weights, as np.quantile gives them: [layers, len(q)].

    `finite` is how many a layer has, 1 or more; `select` gives those of ranks, [layers, ranks]: the smallest has 0.
    """
    places = (finite[:, None] - 1) * q[None, :]
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, finite[:, None] - 1)
    ranks = np.stack([below, above], -1)
    ends = select(ranks.reshape(len(finite), -1)).reshape(ranks.shape)
    shares = places - below
    return np.array([[np.quantile(e, s) for e, s in zip(*row, strict=True)] for row in zip(ends, shares, strict=True)])
