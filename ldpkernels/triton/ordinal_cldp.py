# SPDX-License-Identifier: Apache-2.0
"""Ordinal CLDP in Triton: csrc/mechanisms/ordinal_cldp.h, lane by lane.

A program is one warp. Every element walks its own draws, a cipher block each, until the last of the tile has its
sample; docs/mechanisms/ordinal_cldp.md has the law.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.arrays import Laws, Spans
from ldpkernels.triton.ciphers import chacha, load_key, philox
from ldpkernels.triton.launch import is_chacha, over
from ldpkernels.triton.table import SPAN, Columns, Part
from ldpkernels.triton.weights import BF16, F32, F64, bits_of, from_bits

INTEGERS = tl.constexpr(4)  # the dtype of a span of int64
ROUNDING = tl.constexpr(2**32 - 1)
TILE = 64
DIGITS = 128  # of a threshold
LAW = ("bound", "reach", "saturate", "wide", "stochastic", "scale", "lanes", "sign", "quotient")
COLUMNS = Columns(*SPAN, *LAW, thresholds=DIGITS)


def launch(output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None) -> None:
    """Perturb weights in place, or integers to where the span's `out` points in `out`."""
    if output != "values":
        raise ValueError(f"ordinal CLDP has no {output!r}: its output is 'values'")
    constants = is_chacha(key), TILE
    over(ordinal_cldp_kernel, "ordinal_cldp", plan_of, spans, laws, key, out, constants)


def plan_of(spans: Spans, laws: Laws, _: int) -> list[Part]:
    """A launch for each tensor."""
    parts = []
    for row in np.flatnonzero(spans["numel"] > 0):
        span, law = spans[row : row + 1], laws[row : row + 1]
        columns = {"program": 0} | {name: span[name].view(np.int64) for name in SPAN[1:]}
        columns |= {name: law[name].view(np.int64) for name in (*LAW, "thresholds")}
        programs = -(-int(span["numel"][0]) // TILE)
        numbers = int(span["dtype"][0]), bool(law["wide"][0])
        parts.append(Part(programs, COLUMNS.table(1, columns), numbers))
    return parts


@triton.jit
def _draw(element, number, key, CHACHA: tl.constexpr, WIDE: tl.constexpr):
    """Draw `number` of each element, as uint64."""
    words: tl.constexpr = 2 if WIDE else 1
    per_block: tl.constexpr = (16 if CHACHA else 4) // words
    at = (element % per_block).to(tl.int32) * words
    cipher: tl.constexpr = chacha if CHACHA else philox
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
    reach = tl.load(row + COLUMNS.reach).to(tl.uint64, bitcast=True)
    saturate = tl.load(row + COLUMNS.saturate)
    lanes = tl.load(row + COLUMNS.lanes).to(tl.uint64, bitcast=True)
    sign = tl.load(row + COLUMNS.sign).to(tl.uint64, bitcast=True)
    quotient = tl.load(row + COLUMNS.quotient).to(tl.uint64, bitcast=True)
    at = v.to(tl.uint64, bitcast=True)
    zero = tl.zeros_like(at)
    number = zero.to(tl.uint32)
    undecided, less, carried, out = zero + lanes, zero, zero, at
    walking = inside
    while tl.max(walking.to(tl.int32), axis=0) != 0:
        word = _draw(element, number, key, CHACHA, WIDE)
        digit = number & 127
        threshold = tl.load(row + COLUMNS.thresholds + digit.to(tl.int32)).to(tl.uint64, bitcast=True)
        less = tl.where((number & 65535) == 0, word & sign, less)
        decided = undecided & (word ^ threshold)
        less |= decided & threshold
        undecided = undecided ^ decided  # which are some of them
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
        less = tl.where(goes_on, less ^ quotient, less)  # which has come up
        after = tl.where(goes_on, (number | 127) + 1, number + 1)
        number = tl.where(rejected, ((number >> 16) + 1) << 16, after)
    return out.to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize_on_alignment=["table", "key", "out"])
def ordinal_cldp_kernel(
    table, key, out, DTYPE: tl.constexpr, WIDE: tl.constexpr, CHACHA: tl.constexpr, SIZE: tl.constexpr
):
    """A tile of SIZE elements of the one span that the table describes."""
    numel, first = tl.load(table + COLUMNS.numel), tl.load(table + COLUMNS.first)
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = e < numel
    element = first + e
    words = load_key(key, CHACHA)
    if DTYPE == INTEGERS:
        bound = tl.load(table + COLUMNS.bound)
        v = tl.load(tl.load(table + COLUMNS.data).to(tl.pointer_type(tl.int64)) + e, inside, 0)
        v = tl.where(v > bound, bound, tl.where(v < -bound, -bound, v))
        y = _samples(v, inside, element, table, words, CHACHA, WIDE)
        tl.store(out.to(tl.pointer_type(tl.int64)) + tl.load(table + COLUMNS.out) // 8 + e, y, inside)
    else:
        BITS_OF: tl.constexpr = bits_of(DTYPE)
        data = tl.load(table + COLUMNS.data).to(tl.pointer_type(BITS_OF)) + e
        v = _integers(from_bits(tl.load(data, inside, 0), DTYPE), table, element, words, CHACHA, WIDE)
        y = _samples(v, inside, element, table, words, CHACHA, WIDE)
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
