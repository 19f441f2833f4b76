# SPDX-License-Identifier: Apache-2.0
"""Ordinal CLDP in Triton: csrc/mechanisms/ordinal_cldp.h, lane by lane.

A program is one warp. An element whose first draw does not decide gets the others of its attempt, and the next ones,
until the last of the tile has its sample; docs/mechanisms/ordinal_cldp.md has the law.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Laws, Spans
from ldpkernels.triton.ciphers import keystream_words, load_key
from ldpkernels.triton.launch import is_chacha, over
from ldpkernels.triton.table import SPAN, Columns, Part, places
from ldpkernels.triton.weights import BF16, F32, F64, bits_of, from_bits

INTEGERS = tl.constexpr(4)  # the dtype of a span of int64
ROUNDING = tl.constexpr(2**32 - 1)
TILES = {2: 64, 8: 256}  # elements a program, by draws of a cipher block: a block for each lane of its warp
DRAWS = tl.constexpr(8)  # an attempt's
TABLES = {"entries": 32, "thresholds": 256, "losses": 104}
LAW = ("bound", "reach", "saturate", "stochastic", "scale", "low", "middle", "tail", "unit", "keep")
COLUMNS = Columns(*SPAN, *LAW, **TABLES)


def launch(output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None) -> None:
    """Perturb weights in place, or integers to where the span's `out` points in `out`."""
    if output != "values":
        raise ValueError(f"ordinal CLDP has no {output!r}: its output is 'values'")
    chacha = is_chacha(key)
    constants = chacha, TILES[8 if chacha else 2]
    over(ordinal_cldp_kernel, "ordinal_cldp", plan_of, spans, laws, key, out, constants)


def plan_of(spans: Spans, laws: Laws, per_block: int) -> list[Part]:
    """A launch for each tensor."""
    draws = per_block // 4  # of 64 bits
    parts = []
    for row in np.flatnonzero(spans["numel"] > 0):
        span, law = spans[row : row + 1], laws[row : row + 1]
        columns, programs = places(span, -(-(span["numel"] + span["first"] % draws) // TILES[draws]))
        columns |= {name: law[name].view(np.int64) for name in (*LAW, *TABLES)}
        numbers = int(span["dtype"][0]), bool(law["wide"][0])
        parts.append(Part(programs, COLUMNS.table(1, columns), numbers))
    return parts


@triton.jit
def _draw(block, number, key, CHACHA: tl.constexpr, SIZE: tl.constexpr):
    """Draw `number` of each element of a tile, as uint64. The tile begins with a cipher block, and a lane computes a
    block, which has the draws of several elements."""
    PER_BLOCK: tl.constexpr = 8 if CHACHA else 2
    words = keystream_words(block, number, key, CHACHA, SIZE // PER_BLOCK)
    low, high = tl.split(words.reshape(SIZE, 2))
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@triton.jit
def _round(z):
    """The nearest integer, ties to even, as a number: beyond 2^52 there are no others."""
    shift = tl.where(z < 0, -4503599627370496.0, 4503599627370496.0).to(tl.float64)
    return tl.where(tl.abs(z) < 4503599627370496.0, (z + shift) - shift, z)


@triton.jit
def _integers(weights, row, block, key, CHACHA: tl.constexpr, SIZE: tl.constexpr):
    bound, scale = tl.load(row + COLUMNS.bound), tl.load(row + COLUMNS.scale).to(tl.float64, bitcast=True)
    nearest = bound.to(tl.float64)
    too_high = nearest.to(tl.int64) > bound
    top = (nearest.to(tl.int64, bitcast=True) - too_high.to(tl.int64)).to(tl.float64, bitcast=True)
    z = weights.to(tl.float64) * scale
    z = tl.where(z != z, 0.0, z)
    z = tl.where(z > top, top, tl.where(z < -top, -top, z))
    if tl.load(row + COLUMNS.stochastic) != 0:
        floor = tl.floor(z)
        share = _round((z - floor) * 4294967296.0).to(tl.int64)
        drawn = _draw(block, tl.full([], ROUNDING, tl.uint32), key, CHACHA, SIZE) >> 32
        k = floor.to(tl.int64) + (drawn.to(tl.int64) < share).to(tl.int64)
    else:
        k = _round(z).to(tl.int64)
    return tl.where(z <= -top, -bound, tl.where(z >= top, bound, k))


@triton.jit
def _load(address):
    return tl.load(address).to(tl.uint64, bitcast=True)


@triton.jit
def _below(
    high, low, leading, BITS: tl.constexpr, needed, block, number, key, CHACHA: tl.constexpr, SIZE: tl.constexpr
):
    """Whether numbers of 128 digits are below thresholds. BITS of them are `leading`, draws `number` and the next begin
    with the others, and are drawn if any of those `needed` is not decided yet."""
    head = high >> (64 - BITS)
    found = leading < head
    tied = needed & (leading == head)
    if tl.max(tied.to(tl.int32), axis=0) != 0:
        following = (high << BITS) | (low >> (64 - BITS))
        drawn = _draw(block, number, key, CHACHA, SIZE)
        last = _draw(block, number + 1, key, CHACHA, SIZE) < (low << BITS)
        found = tl.where(tied, (drawn < following) | ((drawn == following) & last), found)
    return found


@triton.jit
def _value(field, row, TABLE: tl.constexpr, needed, block, number, key, CHACHA: tl.constexpr, SIZE: tl.constexpr):
    """An alias table's value: the column's own, or the other one."""
    column = (field & 63).to(tl.int32)
    threshold = row + COLUMNS.thresholds + 128 * TABLE + 2 * column
    entry = _load(row + COLUMNS.entries + 16 * TABLE + column // 4) >> (column % 4 * 16).to(tl.uint64)
    leading = (field >> 6) & 1023
    own = _below(_load(threshold), _load(threshold + 1), leading, 10, needed, block, number, key, CHACHA, SIZE)
    return tl.where(own, field & 63, entry & 63)


@triton.jit
def _loss(digits, row):
    """The probability of giving up low digits, out of 2^128, as two halves."""
    high, low = tl.zeros_like(digits), tl.zeros_like(digits)
    digit, end = 0, tl.load(row + COLUMNS.low).to(tl.int32)
    while digit < end:  # NumPy's newer releases and Triton 3.6's interpreter disagree about range() of a tensor
        c, d = _load(row + COLUMNS.losses + 2 * digit), _load(row + COLUMNS.losses + 2 * digit + 1)
        c, d = tl.zeros_like(digits) + c, tl.zeros_like(digits) + d
        both_low, both_high = high * c, tl.umulhi(high, c)
        one, other = tl.umulhi(high, d), tl.umulhi(low, c)
        both_low += one
        both_high += (both_low < one).to(tl.uint64)
        both_low += other
        both_high += (both_low < other).to(tl.uint64)
        sum_low = low + d
        sum_high = high + c + (sum_low < d).to(tl.uint64)
        there = (digits & 1) != 0
        high = tl.where(there, sum_high - both_high - (sum_low < both_low).to(tl.uint64), high)
        low = tl.where(there, sum_low - both_low, low)
        digits = digits >> 1
        digit += 1
    return high, low


@triton.jit
def _sum_or_most(a, b):
    """The sum of two 64-bit numbers, or 2^64 - 1 where it would be more."""
    total = a + b
    return tl.where(total < a, tl.zeros_like(a) - 1, total)


@triton.jit
def _samples(v, inside, block, row, key, CHACHA: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr):
    reach, saturate = _load(row + COLUMNS.reach), tl.load(row + COLUMNS.saturate)
    low_digits, middle_digits = _load(row + COLUMNS.low), _load(row + COLUMNS.middle)
    tail, unit, keep = _load(row + COLUMNS.tail), _load(row + COLUMNS.unit), _load(row + COLUMNS.keep)
    at = v.to(tl.uint64, bitcast=True)
    carried, out = tl.zeros_like(at), at
    number = tl.zeros([], tl.uint32)
    walking = inside
    while tl.max(walking.to(tl.int32), axis=0) != 0:
        word = _draw(block, number, key, CHACHA, SIZE)
        upper = _value(word, row, 0, walking, block, number + 2, key, CHACHA, SIZE)
        is_tail = upper == tail
        needed = walking & ~is_tail
        middle = _value(word >> 16, row, 1, needed, block, number + 4, key, CHACHA, SIZE)
        low = word >> 32
        if WIDE:
            low = _draw(block, number + 1, key, CHACHA, SIZE)
        low = low & ((tl.zeros_like(at) + 1 << low_digits) - 1)
        leading = word >> 49
        needed = needed & (leading < keep)
        given_up = inside & ~inside
        if tl.max(needed.to(tl.int32), axis=0) != 0:
            high_loss, low_loss = _loss(low, row)
            given_up = needed & _below(high_loss, low_loss, leading, 15, needed, block, number + 6, key, CHACHA, SIZE)

        step = (upper << (low_digits + middle_digits)) + (middle << low_digits) + low
        magnitude = _sum_or_most(carried, step)
        down = ((word >> 48) & 1) != 0
        room = tl.where(down, at + reach, reach - at)
        magnitude = tl.where((saturate != 0) & (magnitude > room), room, magnitude)
        accepted = walking & ~is_tail & ~given_up & (magnitude <= room) & ~(down & (magnitude == 0))
        out = tl.where(accepted, tl.where(down, at - magnitude, at + magnitude), out)
        carried = tl.where(is_tail, _sum_or_most(carried, tl.zeros_like(at) + unit), 0)
        walking = walking & ~accepted
        number += DRAWS
    return out.to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize_on_alignment=["table", "key", "out"])
def ordinal_cldp_kernel(
    table, key, out, DTYPE: tl.constexpr, WIDE: tl.constexpr, CHACHA: tl.constexpr, SIZE: tl.constexpr
):
    """A tile of SIZE elements of the one span that the table describes, which begins with a cipher block."""
    numel, first = tl.load(table + COLUMNS.numel), tl.load(table + COLUMNS.first)
    PER_BLOCK: tl.constexpr = 8 if CHACHA else 2
    start = tl.program_id(0).to(tl.int64) * SIZE - first % PER_BLOCK
    e = start + tl.arange(0, SIZE)
    inside = (e >= 0) & (e < numel)
    block = (first + start) // PER_BLOCK
    words = load_key(key, CHACHA)
    if DTYPE == INTEGERS:
        bound = tl.load(table + COLUMNS.bound)
        v = tl.load(tl.load(table + COLUMNS.data).to(tl.pointer_type(tl.int64)) + e, inside, 0)
        v = tl.where(v > bound, bound, tl.where(v < -bound, -bound, v))
        y = _samples(v, inside, block, table, words, CHACHA, SIZE, WIDE)
        tl.store(out.to(tl.pointer_type(tl.int64)) + tl.load(table + COLUMNS.out) // 8 + e, y, inside)
    else:
        BITS_OF: tl.constexpr = bits_of(DTYPE)
        data = tl.load(table + COLUMNS.data).to(tl.pointer_type(BITS_OF)) + e
        v = _integers(from_bits(tl.load(data, inside, 0), DTYPE), table, block, words, CHACHA, SIZE)
        y = _samples(v, inside, block, table, words, CHACHA, SIZE, WIDE)
        x = y.to(tl.float64) / tl.load(table + COLUMNS.scale).to(tl.float64, bitcast=True)
        if DTYPE == F64:
            tl.store(data, x.to(tl.int64, bitcast=True), inside)
        elif DTYPE == F32:
            tl.store(data, x.to(tl.float32).to(tl.int32, bitcast=True), inside)
        elif DTYPE == BF16:
            b = x.to(tl.float32).to(tl.uint32, bitcast=True)
            tl.store(data, ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).to(tl.uint16).to(tl.int16, bitcast=True), inside)
        else:
            tl.store(data, x.to(tl.float32).to(tl.float16).to(tl.int16, bitcast=True), inside)
