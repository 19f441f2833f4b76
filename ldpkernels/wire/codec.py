# SPDX-License-Identifier: Apache-2.0
"""How the weights of a report lie in its bytes, and how the reports of many clients are counted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from ldpkernels import _native
from ldpkernels.arrays import Array, Bytes, Integers
from ldpkernels.capabilities import host_isa
from ldpkernels.inputs.spans import first_elements, report_bytes
from ldpkernels.laws.weightwise import Reported

MOST_CLIENTS = 2**62 // 255  # of an aggregate whose sums of bytes fit 64 bits
MOST_BIT_CLIENTS = 2**62  # of one whose sums of bits do

SomeCounter = TypeVar("SomeCounter", bound="Counter")


class Counter(Protocol):
    """The sum of reports of one layout."""

    @property
    def count(self) -> int:
        """Reports added."""

    def add(self, reports: Sequence[Bytes], threads: int) -> None:
        """Add reports."""

    def merge(self: SomeCounter, other: SomeCounter) -> None:
        """Add another counter of the same layout."""

    def merge_sums(self, count: int, sums: Array) -> None:
        """Add the sum of so many reports: planes of bits, lowest first, or sums of bytes."""

    def to_bytes(self) -> bytes:
        """The sums for the wire."""

    def restore(self, count: int, data: bytes | memoryview) -> None:
        """Read what `to_bytes` wrote, of the length that the codec promises; anything else is a ValueError."""

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> Array:
        """offset + step * sum for the weights of one tensor, in fp64 until the last rounding."""


class Codec(Protocol):
    """Weights to bytes."""

    numbers_a_byte: ClassVar[int]  # of a report

    def payload_bytes(self, sizes: Sequence[int]) -> int:
        """The length of a report of tensors of these sizes."""

    def sums_bytes(self, sizes: Sequence[int], count: int) -> int:
        """The length of the sum of so many reports."""

    def offsets(self, sizes: Sequence[int]) -> list[int]:
        """The byte at which each tensor starts."""

    def unused_bits(self, sizes: Sequence[int]) -> tuple[Integers, Bytes]:
        """Bytes with bits that are no weight's, and a mask of those: zero, so that equal reports are equal bytes."""

    def counter(self, sizes: Sequence[int]) -> Counter:
        """An empty counter."""


class BitCodec:
    """Eight weights a byte; each tensor starts a byte of its own."""

    numbers_a_byte: ClassVar[int] = 8

    def payload_bytes(self, sizes: Sequence[int]) -> int:
        """The length of a report of tensors of these sizes."""
        return report_bytes(sizes)

    def sums_bytes(self, sizes: Sequence[int], count: int) -> int:
        """The length of the sum of so many reports: a plane for each bit of their number."""
        return count.bit_length() * report_bytes(sizes)

    def offsets(self, sizes: Sequence[int]) -> list[int]:
        """The byte at which each tensor starts."""
        return [first // 8 for first in first_elements(sizes)]

    def unused_bits(self, sizes: Sequence[int]) -> tuple[Integers, Bytes]:
        """Those after each tensor's last weight."""
        ends = [(at + size // 8, size % 8) for size, at in zip(sizes, self.offsets(sizes), strict=True) if size % 8]
        return np.array([at for at, _ in ends], np.int64), np.array([0xFF & 0xFF << used for _, used in ends], np.uint8)

    def counter(self, sizes: Sequence[int]) -> Counter:
        """Bit-sliced counters of log2(n + 1) bits a weight."""
        return BitCounter(self, sizes)


class ByteCodec:
    """One byte a weight, tensor after tensor."""

    numbers_a_byte: ClassVar[int] = 1

    def payload_bytes(self, sizes: Sequence[int]) -> int:
        """The length of a report of tensors of these sizes."""
        return sum(sizes)

    def sums_bytes(self, sizes: Sequence[int], count: int) -> int:
        """The length of the sum of so many reports."""
        return sum(sizes) * sums_dtype(count).itemsize

    def offsets(self, sizes: Sequence[int]) -> list[int]:
        """The byte at which each tensor starts."""
        return [0, *accumulate(sizes)][: len(sizes)]

    def unused_bits(self, sizes: Sequence[int]) -> tuple[Integers, Bytes]:
        """None: every byte is a cell."""
        return np.empty(0, np.int64), np.empty(0, np.uint8)

    def counter(self, sizes: Sequence[int]) -> Counter:
        """32-bit counters, and 64-bit ones from 2^32 / 255 clients on."""
        return ByteCounter(self, sizes)


class BitCounter:
    """The sum of one-bit reports."""

    def __init__(self, codec: BitCodec, sizes: Sequence[int]) -> None:
        self._codec, self._sizes = codec, sizes
        self._firsts = first_elements(sizes)
        self._tally = _native.Tally(codec.payload_bytes(sizes), host_isa())

    @property
    def count(self) -> int:
        """Reports added."""
        return self._tally.count

    def add(self, reports: Sequence[Bytes], threads: int) -> None:
        """Add reports; up to fifteen are added in one pass."""
        refuse_more_than(MOST_BIT_CLIENTS, self.count + len(reports))
        self._tally.add(list(reports), threads)

    def merge(self, other: BitCounter) -> None:
        """Add another counter of the same layout."""
        refuse_more_than(MOST_BIT_CLIENTS, self.count + other.count)
        self._tally.merge(other._tally)

    def merge_sums(self, count: int, sums: Array) -> None:
        """Add the planes of so many reports; bits that are no weight's are left out."""
        refuse_more_than(MOST_BIT_CLIENTS, self.count + count)
        at, unused = self._codec.unused_bits(self._sizes)
        sums[:, at] &= ~unused
        part = _native.Tally(self._tally.bytes, host_isa())
        part.restore(count, sums)
        self._tally.merge(part)

    def to_bytes(self) -> bytes:
        """The planes, lowest bits first."""
        return self._tally.planes().tobytes()

    def restore(self, count: int, data: bytes | memoryview) -> None:
        """Read what `to_bytes` wrote."""
        refuse_more_than(MOST_BIT_CLIENTS, count)
        planes = np.frombuffer(data, np.uint8).reshape(count.bit_length(), self._tally.bytes)
        at, unused = self._codec.unused_bits(self._sizes)
        for plane in planes:
            refuse_unused_bits(plane, at, unused)
        _refuse_counts_above(count, planes)
        self._tally.restore(count, planes)

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> Array:
        """offset + step * count for one tensor."""
        out = np.empty(self._sizes[tensor], dtype)
        decode = self._tally.decode_f64 if dtype == "float64" else self._tally.decode_f32
        decode(self._firsts[tensor], offset, step, out, threads)
        return out


class ByteCounter:
    """The sum of one-byte reports."""

    def __init__(self, codec: ByteCodec, sizes: Sequence[int]) -> None:
        self._sizes, self._offsets = sizes, codec.offsets(sizes)
        self._count = 0
        self._sums: Array = np.zeros(codec.payload_bytes(sizes), np.uint32)

    @property
    def count(self) -> int:
        """Reports added."""
        return self._count

    def add(self, reports: Sequence[Bytes], threads: int) -> None:
        """Add reports."""
        rows, count = list(reports), self._count + len(reports)
        if any(row.dtype != np.uint8 or row.size != self._sums.size for row in rows):  # all: what follows counts them
            raise ValueError(f"a report of another size than {self._sums.size} bytes")
        self._make_room(count)
        try:
            _native.add_bytes(self._sums, rows, threads)
        finally:  # a signal's handler may raise when they were just added
            self._count = count

    def merge(self, other: ByteCounter) -> None:
        """Add another counter of the same layout."""
        self.merge_sums(other._count, other._sums)

    def merge_sums(self, count: int, sums: Array) -> None:
        """Add the sums of so many reports."""
        total = self._count + count
        refuse_more_than(MOST_CLIENTS, total)
        added = np.add(self._sums, sums, dtype=sums_dtype(total))
        self._sums, self._count = added, total  # together: a signal's handler may raise between two calls

    def to_bytes(self) -> bytes:
        """The sums as little-endian integers."""
        return self._sums.astype(self._sums.dtype.newbyteorder("<")).tobytes()

    def restore(self, count: int, data: bytes | memoryview) -> None:
        """Read what `to_bytes` wrote."""
        refuse_more_than(MOST_CLIENTS, count)
        dtype = sums_dtype(count)
        sums = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
        if sums.size and int(sums.max()) > 255 * count:
            raise ValueError(f"not an aggregate: a sum of {int(sums.max())} is more than {count} clients can have")
        self._sums, self._count = sums, count

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> Array:
        """offset + step * sum for one tensor."""
        start = self._offsets[tensor]
        decoded = self._sums[start : start + self._sizes[tensor]] * np.float64(step)
        decoded += offset
        return decoded.astype(dtype, copy=False)

    def _make_room(self, count: int) -> None:
        refuse_more_than(MOST_CLIENTS, count)
        self._sums = self._sums.astype(sums_dtype(count), copy=False)


def sums_dtype(count: int) -> np.dtype[np.unsignedinteger]:
    """The format of the sums of so many bytes."""
    return np.dtype(np.uint64 if 255 * count >= 2**32 else np.uint32)


def refuse_more_than(most: int, count: int) -> None:
    """Sums that would overflow."""
    if count > most:
        raise ValueError(f"{count} clients are more than an aggregate can count: {most} at most")


def refuse_unused_bits(payload: Bytes, at: Integers, unused: Bytes) -> None:
    """Bits that are no weight's."""
    if at.size and (payload[at] & unused).any():
        raise ValueError("not report bytes: a bit is set past the last weight of a tensor")


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


def codec_of(reported: Reported) -> Codec:
    """The codec of reports of bits or of cells."""
    return BitCodec() if reported == "bits" else ByteCodec()
