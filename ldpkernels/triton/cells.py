# SPDX-License-Identifier: Apache-2.0
"""The piecewise and hybrid mechanisms in Triton: the laws of csrc/mechanisms/piecewise.h and hybrid.h, and the kernel.

A program is one warp and works through `tiles` tiles of one tensor, like the two-point kernel's. Every element takes a
32-bit draw: its high half from keystream 0, its low half from keystream 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ldpkernels.triton.ciphers import load_key
from ldpkernels.triton.two_point import F16, F32, F64, VALUES, _draws, _load_law, _number, _threshold, _weights

CELLS, TURNS = tl.constexpr(3), tl.constexpr(4)  # outputs, beside VALUES

# A row of the table, in int64: ldpkernels/triton/launch_cells.py writes it. 0 to 11 are the two-point kernel's; then
# 12 origin, 13 band_draws, 14 band_scale, 15 rest_scale, 16 rest_shift, 17 band_end, 18 places, 19 cell_bits,
# 20 lowest, 21 step, 22 last_draw, 23 coin_lowest, 24 coin_shift, 25 coin_scale, 26 lower_cell, 27 upper_cell.
CELL_COLUMNS = tl.constexpr(28)


@triton.jit
def _multiply_high(a, b):
    return ((a.to(tl.uint64) * b.to(tl.uint64)) >> 32).to(tl.uint32)


@triton.jit
def _column(row, i: tl.constexpr):
    return tl.load(row + i).to(tl.uint32)


@triton.jit
def _circle_cell(k, draw, row):
    """csrc's Piecewise::cell."""
    band_draws = _column(row, 13)
    in_band = draw < band_draws
    within = tl.where(in_band, draw, (draw - band_draws) << _column(row, 16))
    scale = tl.where(in_band, _column(row, 14), _column(row, 15))
    start = tl.where(in_band, _column(row, 12), _column(row, 12) + _column(row, 17))
    place = start + _multiply_high(within, scale) + k.to(tl.uint32, bitcast=True)
    places = _column(row, 18)
    return tl.where(place < places, place, place - places) >> _column(row, 19)


@triton.jit
def _hybrid_cell(k, draw, row):
    """csrc's Hybrid::cell."""
    last = _column(row, 22)
    raised = (k.to(tl.uint32, bitcast=True) - _column(row, 8)) << _column(row, 24)
    upper = _column(row, 23) + _multiply_high(raised, _column(row, 25))
    coin = tl.where(draw - last - 1 < upper, _column(row, 27), _column(row, 26))
    return tl.where(last < draw, coin, _circle_cell(k, draw, row))


@triton.jit
def _value(cell, row, DTYPE: tl.constexpr):
    """lowest + step * cell as bits of the dtype; nothing is rounded."""
    lowest, step = _number(tl.load(row + 20), DTYPE), _number(tl.load(row + 21), DTYPE)
    if DTYPE == F64:
        bits = (lowest + step * cell.to(tl.float64)).to(tl.int64, bitcast=True)
    elif DTYPE == F32:
        bits = (lowest + step * cell.to(tl.float32)).to(tl.int32, bitcast=True)
    elif DTYPE == F16:
        bits = (lowest + step * cell.to(tl.float32)).to(tl.float16).to(tl.int16, bitcast=True)
    else:
        wide = (lowest + step * cell.to(tl.float32)).to(tl.uint32, bitcast=True)
        bits = (wide >> 16).to(tl.uint16).to(tl.int16, bitcast=True)
    return bits


@triton.jit(do_not_specialize=["rows", "tiles"], do_not_specialize_on_alignment=["table", "key"])
def cells_kernel(
    table,
    key,
    rows,
    tiles,
    DTYPE: tl.constexpr,
    OUTPUT: tl.constexpr,
    HYBRID: tl.constexpr,
    CHACHA: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Tiles of BLOCKS cipher blocks."""
    PER_BLOCK: tl.constexpr = 32 if CHACHA else 8
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    BITS_OF: tl.constexpr = tl.int64 if DTYPE == F64 else (tl.int32 if DTYPE == F32 else tl.int16)
    program = tl.program_id(0)
    found, end = 0, rows
    while end - found > 1:  # the last row whose first program is at most this one
        middle = (found + end) // 2
        after = tl.load(table + middle * CELL_COLUMNS) > program
        found, end = tl.where(after, found, middle), tl.where(after, middle, end)
    row = table + found * CELL_COLUMNS
    numel, first = tl.load(row + 3), tl.load(row + 4)
    start = (program - tl.load(row)) * tiles * TILE - first % PER_BLOCK
    block = (first + start) // PER_BLOCK
    count = tl.minimum((numel - start + TILE - 1) // TILE, tiles).to(tl.int32)
    law = _load_law(row, DTYPE)
    words = load_key(key, CHACHA)
    data = tl.load(row + 1).to(tl.pointer_type(BITS_OF)) + start
    bytes_out = tl.load(row + 2).to(tl.pointer_type(tl.uint8)) + start
    turns_out = tl.load(row + 2).to(tl.pointer_type(tl.int64)) + start

    t = 0
    while t < count:
        e = t * TILE + tl.arange(0, TILE)
        inside = (start + e >= 0) & (start + e < numel)
        k = _threshold(_weights(tl.load(data + e, inside, 0), DTYPE), law, DTYPE)
        if OUTPUT == TURNS:
            tl.store(turns_out + e, k.to(tl.int64) + tl.load(row + 12), inside)
        else:
            here = block + t * BLOCKS
            high = _draws(here, 0, words, CHACHA, BLOCKS).to(tl.uint32, bitcast=True)
            low = _draws(here, 1, words, CHACHA, BLOCKS).to(tl.uint32, bitcast=True)
            draw = (high & 0xFFFF0000) | (low >> 16)
            cell = _hybrid_cell(k, draw, row) if HYBRID else _circle_cell(k, draw, row)
            if OUTPUT == VALUES:
                tl.store(data + e, _value(cell, row, DTYPE), inside)
            else:
                tl.store(bytes_out + e, cell.to(tl.uint8), inside)
        t += 1


__all__ = ["CELLS", "CELL_COLUMNS", "TURNS", "cells_kernel"]
