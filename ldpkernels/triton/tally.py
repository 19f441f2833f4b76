# SPDX-License-Identifier: Apache-2.0
"""Sums of reports in Triton, on the device that holds them: csrc/cpu/tally.h, and sums of bytes.

Plane p holds bit p of every weight's count, packed as the reports are. Fifteen reports at a time become four bits by
full adders, and are added to the planes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Array, Bytes
from ldpkernels.common.gpu import capturing
from ldpkernels.triton.launch import launching, to_device

AT_ONCE = 15  # reports
BLOCK = 512  # words or bytes of a program
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


class BitTally:
    """The sum of one-bit reports, log2(n + 1) bits a weight: `_native.Tally` for a device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.bytes, self.count = size, 0
        self._device = torch.empty(0, device=device).device  # with its index, as a report's
        self._planes: list[torch.Tensor] = []

    def add(self, reports: Sequence[torch.Tensor]) -> None:
        """Add reports, uint8 tensors on the device. Nothing waits for them."""
        _check(reports, self.bytes, self._device)
        self.reserve(len(reports))
        for i in range(0, len(reports), AT_ONCE):
            some = [*reports[i : i + AT_ONCE], *self._planes]
            count, planes = len(some) - len(self._planes), len(self._planes)
            table = _addresses(some, self._device)
            with launching(self._device):
                for begin, size, word in _pieces(self.bytes, some):
                    add_bits_kernel[(-(-size // BLOCK),)](table, count, planes, begin, size, word, BLOCK, **OPTIONS)
        self.count += len(reports)

    def sums(self) -> Bytes:
        """The planes in host memory, lowest bits first."""
        planes = [plane.cpu().numpy() for plane in self._planes]
        return np.stack(planes) if planes else np.zeros((0, self.bytes), np.uint8)

    def reserve(self, count: int) -> None:
        """Make room for so many more reports."""
        while len(self._planes) < (self.count + count).bit_length():
            self._planes.append(torch.zeros(self.bytes, dtype=torch.uint8, device=self._device))

    def used_on(self, stream: torch.cuda.Stream) -> None:
        """Another stream than the one that the memory is from will read or write it."""
        for plane in self._planes:
            plane.record_stream(stream)


class ByteTally:
    """The sum of reports of one byte a weight, on a device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.bytes, self.count = size, 0
        self._sums = torch.zeros(size, dtype=torch.int32, device=device)

    def add(self, reports: Sequence[torch.Tensor]) -> None:
        """Add reports, uint8 tensors on the device. Nothing waits for them."""
        _check(reports, self.bytes, self._sums.device)
        self.reserve(len(reports))
        for i in range(0, len(reports), AT_ONCE):
            some = reports[i : i + AT_ONCE]
            table = _addresses(some, self._sums.device)
            with launching(self._sums.device):
                for begin, size, word in _pieces(self.bytes, some):
                    add_bytes_kernel[(-(-size // BLOCK),)](
                        table, len(some), self._sums, begin, size, word, BLOCK, **OPTIONS
                    )
        self.count += len(reports)

    def sums(self) -> Array:
        """The sums in host memory, as unsigned integers of 32 or 64 bits."""
        sums = self._sums.cpu().numpy()
        return sums.astype(np.uint64 if 255 * self.count >= 2**32 else np.uint32)

    def used_on(self, stream: torch.cuda.Stream) -> None:
        """Another stream than the one that the memory is from will read or write it."""
        self._sums.record_stream(stream)

    def reserve(self, count: int) -> None:
        """Make room for so many more reports."""
        if 255 * (self.count + count) >= 2**31:
            self._sums = self._sums.to(torch.int64)


def _check(reports: Sequence[torch.Tensor], size: int, device: torch.device) -> None:
    if capturing(device):
        raise RuntimeError("a CUDA graph would hold the addresses of these reports: capture `report`, and add outside")
    for report in reports:
        if report.dtype != torch.uint8 or report.shape != (size,) or report.device != device:
            raise ValueError(f"a report is {size} bytes on {device}, not {report.dtype} {tuple(report.shape)}")
        if not report.is_contiguous():
            raise ValueError("a report's bytes must be contiguous")


def _addresses(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    return to_device(np.array([t.data_ptr() for t in tensors], np.uint64).view(np.int64), device)


def _pieces(size: int, tensors: Sequence[torch.Tensor]) -> list[tuple[int, int, tl.dtype]]:
    """Where the words of bytes begin, how many they are, and of which type: of 32 bits as far as possible."""
    words = size // 4 if all(t.data_ptr() % 4 == 0 for t in tensors) else 0
    pieces = [(0, words, tl.int32), (4 * words, size - 4 * words, tl.uint8)]
    return [piece for piece in pieces if piece[1]]


@triton.jit
def _load(table, r, count, at, inside, WORD: tl.constexpr):
    """Words of report r, zeros beyond the last."""
    report = tl.load(table + tl.minimum(r, count - 1)).to(tl.pointer_type(WORD))
    return tl.load(report + at, inside & (tl.zeros_like(at) + r < count), 0)


@triton.jit
def _add(a, b, carry):
    """The sum bit and the carry of three bits."""
    half = a ^ b
    return half ^ carry, (a & b) | (half & carry)


@triton.jit
def _three(table, r, count, at, inside, WORD: tl.constexpr):
    return _add(
        _load(table, r, count, at, inside, WORD),
        _load(table, r + 1, count, at, inside, WORD),
        _load(table, r + 2, count, at, inside, WORD),
    )


@triton.jit
def _seven(table, r, count, at, inside, WORD: tl.constexpr):
    """How many of seven reports have a one: three bits."""
    a0, a1 = _three(table, r, count, at, inside, WORD)
    b0, b1 = _three(table, r + 3, count, at, inside, WORD)
    s0, carry = _add(a0, b0, _load(table, r + 6, count, at, inside, WORD))
    s1, s2 = _add(a1, b1, carry)
    return s0, s1, s2


@triton.jit(do_not_specialize=["count", "planes", "begin", "size"], do_not_specialize_on_alignment=["table"])
def add_bits_kernel(table, count, planes, begin, size, WORD: tl.constexpr, BLOCK: tl.constexpr):
    """Add up to 15 reports, whose addresses the table begins with, to the planes behind them: bytes from `begin` on."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = e < size
    at = begin // (WORD.primitive_bitwidth // 8) + e
    a0, a1, a2 = _seven(table, 0, count, at, inside, WORD)
    b0, b1, b2 = _seven(table, 7, count, at, inside, WORD)
    s0, carry = _add(a0, b0, _load(table, 14, count, at, inside, WORD))
    s1, carry = _add(a1, b1, carry)
    s2, s3 = _add(a2, b2, carry)
    carry = s0 ^ s0
    p = 0
    while p < planes:
        plane = tl.load(table + count + p).to(tl.pointer_type(WORD)) + at
        bit = tl.where(p == 0, s0, tl.where(p == 1, s1, tl.where(p == 2, s2, tl.where(p == 3, s3, s0 ^ s0))))
        total, carry = _add(tl.load(plane, inside, 0), bit, carry)
        tl.store(plane, total, inside)
        p += 1


@triton.jit(do_not_specialize=["count", "begin", "size"], do_not_specialize_on_alignment=["table", "sums"])
def add_bytes_kernel(table, count, sums, begin, size, WORD: tl.constexpr, BLOCK: tl.constexpr):
    """Add up to 15 reports, whose addresses the table holds: bytes from `begin` on, a word as four fields."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = e < size
    if tl.uint8 == WORD:
        total = tl.zeros((BLOCK,), tl.int32)
        for r in tl.static_range(15):
            total += _load(table, r, count, begin + e, inside, WORD).to(tl.int32)
        at = sums + begin + e
    else:
        even = tl.zeros((BLOCK,), tl.uint32)
        odd = even
        for r in tl.static_range(15):
            word = _load(table, r, count, e, inside, WORD).to(tl.uint32, bitcast=True)
            even += word & 0x00FF00FF
            odd += (word >> 8) & 0x00FF00FF
        pairs = tl.join(even & 0xFFFF, even >> 16), tl.join(odd & 0xFFFF, odd >> 16)
        total = tl.join(pairs[0], pairs[1]).reshape(BLOCK * 4).to(tl.int32)
        i = tl.program_id(0).to(tl.int64) * (BLOCK * 4) + tl.arange(0, BLOCK * 4)
        inside = i < size * 4
        at = sums + i
    tl.store(at, tl.load(at, inside, 0) + total, inside)
