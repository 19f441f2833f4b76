# SPDX-License-Identifier: Apache-2.0
"""How the weights of a report lie in its bytes, and how the reports of many clients are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ldpkernels import _native
from ldpkernels.capabilities import host_isa
from ldpkernels.inputs.spans import first_elements, report_bytes
from ldpkernels.laws.weightwise import Reported

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
MOST_CLIENTS = 2**62 // 255  # of an aggregate whose sums fit 64 bits


class Counter(Protocol):
    """The sum of reports of one layout."""

    @property
    def count(self) -> int:
        """Reports added."""

    def add(self, reports: Sequence[Bytes], threads: int) -> None:
        """Add reports."""

    def merge(self, other: Any) -> None:
        """Add another counter of the same layout."""

    def to_bytes(self) -> bytes:
        """The sums for the wire."""

    def restore(self, count: int, data: bytes) -> None:
        """Read what `to_bytes` wrote; anything else is a ValueError."""

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> np.ndarray[Any, Any]:
        """offset + step * sum for the weights of one tensor, in fp64 until the last rounding."""


class Codec(Protocol):
    """Weights to bytes."""

    def payload_bytes(self, sizes: Sequence[int]) -> int:
        """The length of a report of tensors of these sizes."""

    def offsets(self, sizes: Sequence[int]) -> list[int]:
        """The byte at which each tensor starts."""

    def check(self, payload: Bytes, sizes: Sequence[int]) -> None:
        """Refuse bytes that no report has."""

    def counter(self, sizes: Sequence[int]) -> Counter:
        """An empty counter."""


class BitCodec:
    """Eight weights a byte; each tensor starts a byte of its own."""

    def payload_bytes(self, sizes: Sequence[int]) -> int:
        """The length of a report of tensors of these sizes."""
        return report_bytes(sizes)

    def offsets(self, sizes: Sequence[int]) -> list[int]:
        """The byte at which each tensor starts."""
        return [first // 8 for first in first_elements(sizes)]

    def check(self, payload: Bytes, sizes: Sequence[int]) -> None:
        """The unused bits after each tensor's last weight are zero, so that equal reports are equal bytes."""
        for size, offset in zip(sizes, self.offsets(sizes), strict=True):
            if size % 8 and payload[offset + size // 8] >> size % 8:
                raise ValueError("not report bytes: a bit is set past the last weight of a tensor")

    def counter(self, sizes: Sequence[int]) -> Counter:
        """Bit-sliced counters of log2(n + 1) bits a weight."""
        return BitCounter(self, sizes)


class ByteCodec:
    """One byte a weight, tensor after tensor."""

    def payload_bytes(self, sizes: Sequence[int]) -> int:
        """The length of a report of tensors of these sizes."""
        return sum(sizes)

    def offsets(self, sizes: Sequence[int]) -> list[int]:
        """The byte at which each tensor starts."""
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def check(self, payload: Bytes, sizes: Sequence[int]) -> None:
        """Every byte is a cell."""

    def counter(self, sizes: Sequence[int]) -> Counter:
        """32-bit counters, and 64-bit ones from 2^32 / 255 clients on."""
        return ByteCounter(self, sizes)


class BitCounter:
    """The sum of one-bit reports."""

    def __init__(self, codec: BitCodec, sizes: Sequence[int]) -> None:
        self._codec, self._sizes = codec, sizes
        self._tally = _native.Tally(codec.payload_bytes(sizes), host_isa())

    @property
    def count(self) -> int:
        """Reports added."""
        return int(self._tally.count)

    def add(self, reports: Sequence[Bytes], threads: int) -> None:
        """Add reports; up to fifteen are added in one pass."""
        self._tally.add(list(reports), threads)

    def merge(self, other: BitCounter) -> None:
        """Add another counter of the same layout."""
        self._tally.merge(other._tally)

    def to_bytes(self) -> bytes:
        """The planes, lowest bits first."""
        planes: bytes = self._tally.planes().tobytes()
        return planes

    def restore(self, count: int, data: bytes) -> None:
        """Read what `to_bytes` wrote."""
        planes, length = count.bit_length(), self._codec.payload_bytes(self._sizes)
        if len(data) != planes * length:
            raise ValueError(f"not an aggregate: {len(data)} bytes where the header promises {planes * length}")
        bits = np.frombuffer(data, np.uint8).reshape(planes, length)
        for plane in bits:
            self._codec.check(plane, self._sizes)
        _refuse_counts_above(count, bits)
        self._tally.restore(count, bits)

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> np.ndarray[Any, Any]:
        """offset + step * count for one tensor."""
        out: np.ndarray[Any, Any] = np.empty(self._sizes[tensor], dtype)
        decode = self._tally.decode_f64 if dtype == "float64" else self._tally.decode_f32
        decode(first_elements(self._sizes)[tensor], offset, step, out, threads)
        return out


class ByteCounter:
    """The sum of one-byte reports."""

    def __init__(self, codec: ByteCodec, sizes: Sequence[int]) -> None:
        self._codec, self._sizes = codec, sizes
        self._count = 0
        self._sums: np.ndarray[Any, Any] = np.zeros(codec.payload_bytes(sizes), np.uint32)

    @property
    def count(self) -> int:
        """Reports added."""
        return self._count

    def add(self, reports: Sequence[Bytes], threads: int) -> None:
        """Add reports."""
        self._make_room(self._count + len(reports))
        _native.add_bytes(self._sums, list(reports), threads)
        self._count += len(reports)

    def merge(self, other: ByteCounter) -> None:
        """Add another counter of the same layout."""
        self._make_room(self._count + other._count)
        self._sums += other._sums.astype(self._sums.dtype, copy=False)
        self._count += other._count

    def to_bytes(self) -> bytes:
        """The sums as little-endian integers."""
        return self._sums.astype(self._sums.dtype.newbyteorder("<")).tobytes()

    def restore(self, count: int, data: bytes) -> None:
        """Read what `to_bytes` wrote."""
        self._make_room(count)
        if len(data) != self._sums.nbytes:
            raise ValueError(f"not an aggregate: {len(data)} bytes where the header promises {self._sums.nbytes}")
        sums = np.frombuffer(data, self._sums.dtype.newbyteorder("<")).astype(self._sums.dtype)
        if sums.size and int(sums.max()) > 255 * count:
            raise ValueError(f"not an aggregate: a sum of {int(sums.max())} is more than {count} clients can have")
        self._sums, self._count = sums, count

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> np.ndarray[Any, Any]:
        """offset + step * sum for one tensor."""
        start = self._codec.offsets(self._sizes)[tensor]
        decoded = self._sums[start : start + self._sizes[tensor]] * np.float64(step)
        decoded += offset
        return decoded.astype(dtype, copy=False)

    def _make_room(self, count: int) -> None:
        if count > MOST_CLIENTS:
            raise ValueError(f"not an aggregate: {count} clients are more than its sums can count")
        if 255 * count >= 2**32 and self._sums.dtype == np.uint32:
            self._sums = self._sums.astype(np.uint64)


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
