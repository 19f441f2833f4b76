# SPDX-License-Identifier: Apache-2.0
"""Ordinal CLDP in Triton: csrc/mechanisms/ordinal_cldp.h, lane by lane.

A program is one warp. Every element walks its own draws, a cipher block each, until the last of the tile has its
sample; docs/mechanisms/ordinal_cldp.md has the law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.triton.ciphers import _chacha, _philox, load_key
from ldpkernels.triton.launch import OPTIONS, _is_chacha, _Launch, _launching, _tables
from ldpkernels.triton.two_point import BF16, F32, F64, _weights

INTEGERS = tl.constexpr(4)
ROUNDING = tl.constexpr(2**32 - 1)
TILE = 64

# A row of the table, in int64: the span's four numbers, then the law's.
FIELDS = ("bound", "reach", "saturate", "wide", "stochastic", "scale", "lanes", "sign", "quotient")
COLUMNS = tl.constexpr(4 + len(FIELDS) + 128)
THRESHOLDS = tl.constexpr(4 + len(FIELDS))


def ordinal_cldp(spans: Any, laws: Any, key: torch.Tensor) -> None:
    """The kernel's interface: weights in place, or integers from each span's `data` to its `out`."""
    chacha = _is_chacha(key)
    device = key.device
    with _launching(device):
        known = ("ordinal_cldp", device, spans.tobytes(), laws.tobytes())
        for launch in _tables.get(known, device, lambda: _make_launches(spans, laws, device)):
            ordinal_cldp_kernel[(launch.programs,)](
                launch.table, key, launch.dtype, chacha, bool(laws["wide"][launch.rows]), TILE, **OPTIONS
            )


def _make_launches(spans: Any, laws: Any, device: torch.device) -> list[_Launch]:
    launches = []
    for row in np.flatnonzero(spans["numel"] > 0):
        span, law = spans[row], laws[row]
        head = [span[name].view(np.int64) for name in ("data", "out", "numel", "first")]
        head += [law[name].view(np.int64) for name in FIELDS]
        table = torch.from_numpy(np.concatenate([np.array(head, np.int64), law["thresholds"].view(np.int64)]))
        if device.type == "cuda":
            table = table.pin_memory().to(device, non_blocking=True)
        programs = -(-int(span["numel"]) // TILE)
        launches.append(_Launch(int(span["dtype"]), False, int(row), 1, programs, table))
    return launches


@triton.jit
def _draw(element, number, key, CHACHA: tl.constexpr, WIDE: tl.constexpr):
    """Draw `number` of each element, as uint64."""
    words: tl.constexpr = 2 if WIDE else 1
    per_block: tl.constexpr = (16 if CHACHA else 4) // words
    at = (element % per_block).to(tl.int32) * words
    cipher: tl.constexpr = _chacha if CHACHA else _philox
    block = cipher(element // per_block, number, key)
    low = tl.zeros_like(number)
    high = tl.zeros_like(number)
    for i in tl.static_range(per_block * words):
        low = tl.where(at == i, block[i], low)
        if WIDE:
            high = tl.where(at + 1 == i, block[i], high)
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@triton.jit
def _round(z):
    """The nearest integer, ties to even, as a number: beyond 2^52 there are no others."""
    shift = tl.where(z < 0, -4503599627370496.0, 4503599627370496.0).to(tl.float64)
    return tl.where(tl.abs(z) < 4503599627370496.0, (z + shift) - shift, z)


@triton.jit
def _integers(weights, row, element, key, CHACHA: tl.constexpr, WIDE: tl.constexpr):
    bound, scale = tl.load(row + 4), tl.load(row + 9).to(tl.float64, bitcast=True)
    nearest = bound.to(tl.float64)
    too_high = nearest.to(tl.int64) > bound
    top = (nearest.to(tl.int64, bitcast=True) - too_high.to(tl.int64)).to(tl.float64, bitcast=True)
    z = weights.to(tl.float64) * scale
    z = tl.where(z != z, 0.0, z)
    z = tl.where(z > top, top, tl.where(z < -top, -top, z))
    if tl.load(row + 8) != 0:
        floor = tl.floor(z)
        share = _round((z - floor) * 4294967296.0).to(tl.int64)
        number = tl.zeros_like(element).to(tl.uint32) + ROUNDING
        drawn = _draw(element, number, key, CHACHA, WIDE)
        if WIDE:
            drawn = drawn >> 32
        k = floor.to(tl.int64) + (drawn.to(tl.int64) < share).to(tl.int64)
    else:
        k = _round(z).to(tl.int64)
    return tl.where(z <= -top, -bound, tl.where(z >= top, bound, k))


@triton.jit
def _samples(v, inside, element, row, key, CHACHA: tl.constexpr, WIDE: tl.constexpr):
    reach, saturate = tl.load(row + 5).to(tl.uint64, bitcast=True), tl.load(row + 6)
    lanes = tl.load(row + 10).to(tl.uint64, bitcast=True)
    sign = tl.load(row + 11).to(tl.uint64, bitcast=True)
    quotient = tl.load(row + 12).to(tl.uint64, bitcast=True)
    at = v.to(tl.uint64, bitcast=True)
    zero = tl.zeros_like(at)
    number = zero.to(tl.uint32)
    undecided, less, carried, out = zero + lanes, zero, zero, at
    walking = inside
    while tl.max(walking.to(tl.int32), axis=0) != 0:
        word = _draw(element, number, key, CHACHA, WIDE)
        digit = number & 127
        threshold = tl.load(row + THRESHOLDS + digit.to(tl.int32)).to(tl.uint64, bitcast=True)
        less = tl.where((number & 65535) == 0, word & sign, less)
        decided = undecided & (word ^ threshold)
        less |= decided & threshold
        undecided = undecided & ~decided
        concluded = (undecided == 0) | (digit == 127)

        down = (less & sign) != 0
        room = tl.where(down, at + reach, reach - at)
        again = (less & quotient) != 0
        total = carried + tl.where(again, sign, zero)
        magnitude = total + (less & (sign - 1))
        goes_on = concluded & again & (magnitude <= room)
        capped = tl.where((saturate != 0) & (magnitude > room), room, magnitude)
        accepted = concluded & ~goes_on & (capped <= room) & ~(down & (capped == 0))
        rejected = concluded & ~goes_on & ~accepted

        out = tl.where(walking & accepted, tl.where(down, at - capped, at + capped), out)
        walking = walking & ~accepted
        carried = tl.where(rejected, zero, tl.where(goes_on, total, carried))
        undecided = tl.where(rejected, zero + lanes, tl.where(goes_on, zero + quotient, undecided))
        less = tl.where(goes_on, less & ~quotient, less)
        after = tl.where(goes_on, (number | 127) + 1, number + 1)
        number = tl.where(rejected, ((number >> 16) + 1) << 16, after)
    return out.to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize_on_alignment=["table", "key"])
def ordinal_cldp_kernel(table, key, DTYPE: tl.constexpr, CHACHA: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr):
    """A tile of SIZE elements of the one span that the table describes."""
    numel, first = tl.load(table + 2), tl.load(table + 3)
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = e < numel
    element = first + e
    words = load_key(key, CHACHA)
    if DTYPE == INTEGERS:
        bound = tl.load(table + 4)
        v = tl.load(tl.load(table).to(tl.pointer_type(tl.int64)) + e, inside, 0)
        v = tl.where(v > bound, bound, tl.where(v < -bound, -bound, v))
        y = _samples(v, inside, element, table, words, CHACHA, WIDE)
        tl.store(tl.load(table + 1).to(tl.pointer_type(tl.int64)) + e, y, inside)
    else:
        BITS_OF: tl.constexpr = tl.int64 if DTYPE == F64 else (tl.int32 if DTYPE == F32 else tl.int16)
        data = tl.load(table).to(tl.pointer_type(BITS_OF)) + e
        v = _integers(_weights(tl.load(data, inside, 0), DTYPE), table, element, words, CHACHA, WIDE)
        y = _samples(v, inside, element, table, words, CHACHA, WIDE)
        x = y.to(tl.float64) / tl.load(table + 9).to(tl.float64, bitcast=True)
        if DTYPE == F64:
            tl.store(data, x.to(tl.int64, bitcast=True), inside)
        elif DTYPE == F32:
            tl.store(data, x.to(tl.float32).to(tl.int32, bitcast=True), inside)
        elif DTYPE == BF16:
            b = x.to(tl.float32).to(tl.uint32, bitcast=True)
            tl.store(data, ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).to(tl.uint16).to(tl.int16, bitcast=True), inside)
        else:
            tl.store(data, x.to(tl.float32).to(tl.float16).to(tl.int16, bitcast=True), inside)
