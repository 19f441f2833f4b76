# SPDX-License-Identifier: Apache-2.0
"""Sums of reports of one layout in host memory. `Counts` sees to it that no sum overflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ldpkernels import _native
from ldpkernels.common.arrays import Array, Bytes
from ldpkernels.common.capabilities import host_isa
from ldpkernels.wire.codec import sums_dtype
from ldpkernels.wire.layout import Layout


class BitCounter:
    """The sum of one-bit reports, in log2(n + 1) bits a weight."""

    most_clients = 2**62

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._tally = _native.Tally(layout.nbytes, host_isa())

    @property
    def count(self) -> int:
        """How many reports were added."""
        return self._tally.count

    def add(self, reports: Sequence[Bytes], threads: int) -> None:
        """Add reports; up to fifteen are added in one pass."""
        self._tally.add(list(reports), threads)

    def sums(self) -> Array:
        """The planes of the counts, lowest bits first."""
        return self._tally.planes()

    def add_sums(self, count: int, planes: Array) -> None:
        """Add the planes of so many reports; bits that are no weight's are left out."""
        at, unused = self._layout.unused_bits
        planes[:, at] &= ~unused
        part = _native.Tally(self._tally.bytes, host_isa())
        part.restore(count, planes)
        self._tally.merge(part)

    def restore(self, count: int, data: bytes | memoryview) -> None:
        """Read planes that anyone may have written, of the length that the codec promises."""
        planes = np.frombuffer(data, np.uint8).reshape(count.bit_length(), self._tally.bytes)
        for plane in planes:
            self._layout.check_payload(plane)
        _refuse_counts_above(count, planes)
        self._tally.restore(count, planes)

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> Array:
        """Give offset + step * count for the weights of one tensor, in fp64 until the last rounding."""
        out = np.empty(self._layout.sizes[tensor], dtype)
        decode = self._tally.decode_f64 if dtype == "float64" else self._tally.decode_f32
        decode(8 * int(self._layout.offsets[tensor]), offset, step, out, threads)
        return out


class ByteCounter:
    """The sum of one-byte reports, in 32 bits a weight, and in 64 from 2^32 / 255 clients on."""

    most_clients = 2**62 // 255

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.count = 0
        self._sums: Array = np.zeros(layout.nbytes, np.uint32)

    def add(self, reports: Sequence[Bytes], threads: int) -> None:
        """Add reports."""
        rows, count = list(reports), self.count + len(reports)
        if any(row.dtype != np.uint8 or row.size != self._sums.size for row in rows):  # all: what follows counts them
            raise ValueError(f"a report of another size than {self._sums.size} bytes")
        self._sums = self._sums.astype(sums_dtype(count), copy=False)
        try:
            _native.add_bytes(self._sums, rows, threads)
        finally:  # a signal's handler may raise when they were just added
            self.count = count

    def sums(self) -> Array:
        """The sum of each weight, as a little-endian integer."""
        return self._sums.astype(self._sums.dtype.newbyteorder("<"), copy=False)

    def add_sums(self, count: int, sums: Array) -> None:
        """Add the sums of so many reports."""
        total = self.count + count
        added = np.add(self._sums, sums, dtype=sums_dtype(total))
        self._sums, self.count = added, total  # together: a signal's handler may raise between two calls

    def restore(self, count: int, data: bytes | memoryview) -> None:
        """Read sums that anyone may have written, of the length that the codec promises."""
        dtype = sums_dtype(count)
        sums = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
        if sums.size and int(sums.max()) > 255 * count:
            raise ValueError(f"not an aggregate: a sum of {int(sums.max())} is more than {count} clients can have")
        self._sums, self.count = sums, count

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> Array:
        """Give offset + step * sum for the weights of one tensor, in fp64 until the last rounding."""
        start = self._layout.offsets[tensor]
        decoded = self._sums[start : start + self._layout.sizes[tensor]] * np.float64(step)
        decoded += offset
        return decoded.astype(dtype, copy=False)


Counter: TypeAlias = BitCounter | ByteCounter


def counter_of(layout: Layout) -> Counter:
    """An empty counter."""
    return BitCounter(layout) if layout.codec.numbers_a_byte == 8 else ByteCounter(layout)


def _refuse_counts_above(clients: int, planes: Bytes) -> None:
    """No weight has more ones than there are clients: compared from the highest plane down, all at once."""
    above, equal = np.zeros_like(planes[0]), ~np.zeros_like(planes[0])
    for p in reversed(range(len(planes))):
        if clients >> p & 1:
            equal &= planes[p]
        else:
            above |= equal & planes[p]
            equal &= ~planes[p]
    if above.any():
        raise ValueError(f"not an aggregate: a weight has more ones than the {clients} clients that it counts")
