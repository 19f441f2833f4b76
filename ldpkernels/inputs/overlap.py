# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie, and whether they share elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ldpkernels.common.arrays import AnyArray, Flags


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
        low = high = self.address
        for n, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                low += (n - 1) * stride
            else:
                high += (n - 1) * stride
        return low, high + self.itemsize

    def marks(self, start: int, stop: int) -> Flags:
        """Which bytes from `start` to `stop` belong to the tensor."""
        offsets = np.zeros((), np.int64)
        for n, s in zip(self.shape, self.strides, strict=True):
            offsets = offsets[..., None] + np.arange(n) * s
        marked = np.zeros(stop - start, np.bool_)
        for byte in range(self.itemsize):
            marked[self.address - start + offsets.ravel() + byte] = True
        return marked


def memory_of(value: AnyArray) -> Memory:
    """Where a tensor or an array lies."""
    if isinstance(value, np.ndarray):
        return Memory(value.ctypes.data, value.shape, value.strides, value.itemsize)
    size = value.element_size()
    return Memory(value.data_ptr(), value.shape, [s * size for s in value.stride()], size)


def refuse_shared_memory(names: Sequence[str], memories: Sequence[Memory]) -> None:
    """Tensors that share elements would be perturbed twice, the second time from the first one's output."""
    extents = [m.extent() for m in memories]
    if all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(extents))):
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


def may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether some element may be reached twice; exact for every view that slicing and transposing make."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted([(abs(st), sz) for st, sz in zip(strides, shape, strict=True) if sz > 1]):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
