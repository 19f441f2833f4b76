# SPDX-License-Identifier: Apache-2.0
"""The piecewise and hybrid mechanisms in Triton: the laws of csrc/mechanisms/piecewise.h and hybrid.h, and the kernel.

A program is one warp and works through `tiles` tiles of one tensor, like the two-point kernel's. Every element takes a
32-bit draw: its high half from keystream 0, its low half from keystream 1.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Laws, Spans
from ldpkernels.triton import table as tables
from ldpkernels.triton.ciphers import load_key
from ldpkernels.triton.launch import is_chacha, over
from ldpkernels.triton.table import WEIGHTS, Part, place_of, row_of
from ldpkernels.triton.weights import F16, F32, F64, bits_of, draws, from_bits, load_line, number, threshold

VALUES, CELLS, TURNS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
OUTPUTS = {"values": int(VALUES), "cells": int(CELLS), "turns": int(TURNS)}
CIRCLE = ("origin", "band_draws", "band_scale", "rest_scale", "rest_shift", "band_end", "places", "cell_bits")
COIN = ("last_draw", "coin_lowest", "coin_shift", "coin_scale", "lower_cell", "upper_cell")
COLUMNS = WEIGHTS.and_(*CIRCLE, "lowest", "step", *COIN)


def launch(mechanism: str, output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None) -> None:
    """Replace every weight by its cell's value, or write its cell, a byte, or its turn, an int64, to where the span's
    `out` points in `out`.
    """
    constants = OUTPUTS[output], mechanism == "hybrid", is_chacha(key), tables.BLOCKS
    over(piecewise_kernel, (mechanism, output), partial(plan_of, output), spans, laws, key, out, constants)


def plan_of(output: str, spans: Spans, laws: Laws, per_block: int) -> list[Part]:
    """A launch for all tensors of a dtype that are aligned, and one for its others."""
    aligned = (spans["data"] % 16 == 0) & (spans["out"] % 8 == 0) & (output != "turns")

    def part(kind: int, spans: Spans, laws: Laws) -> Part:
        circle = laws["piecewise"] if "piecewise" in (laws.dtype.names or ()) else laws
        columns, tiles, programs = tables.weight_columns(spans, circle, per_block)
        columns |= {name: circle[name] for name in CIRCLE}
        columns |= {name: tables.number_bits(circle[name], tables.is_wide(spans)) for name in ("lowest", "step")}
        columns |= {name: laws[name] if circle is not laws else 0 for name in COIN}
        return Part(programs, COLUMNS.table(len(spans), columns), (len(spans), tiles, kind // 2, bool(kind % 2)))

    return tables.parts_by(spans["dtype"] * 2 + aligned, spans, laws, part)


@triton.jit
def _multiply_high(a, b):
    return ((a.to(tl.uint64) * b.to(tl.uint64)) >> 32).to(tl.uint32)


@triton.jit
def _word(row, column: tl.constexpr):
    return tl.load(row + column).to(tl.uint32)


@triton.jit
def load_law(row, DTYPE: tl.constexpr):
    """What a cell and its value follow from, read once: csrc's Piecewise, then what Hybrid has besides."""
    circle = (
        _word(row, COLUMNS.origin),
        _word(row, COLUMNS.band_draws),
        _word(row, COLUMNS.band_scale),
        _word(row, COLUMNS.rest_scale),
        _word(row, COLUMNS.rest_shift),
        _word(row, COLUMNS.origin) + _word(row, COLUMNS.band_end),
        _word(row, COLUMNS.places),
        _word(row, COLUMNS.cell_bits),
    )
    coin = (
        _word(row, COLUMNS.last_draw),
        _word(row, COLUMNS.k_lo),
        _word(row, COLUMNS.coin_shift),
        _word(row, COLUMNS.coin_scale),
        _word(row, COLUMNS.coin_lowest),
        _word(row, COLUMNS.lower_cell),
        _word(row, COLUMNS.upper_cell),
    )
    lowest, step = number(tl.load(row + COLUMNS.lowest), DTYPE), number(tl.load(row + COLUMNS.step), DTYPE)
    return circle, coin, (lowest, step)


@triton.jit
def circle_cell(k, draw, circle):
    """The cell of a weight's place and a draw, by csrc's Piecewise::cell."""
    origin, band_draws, band_scale, rest_scale, rest_shift, rest_start, places, cell_bits = circle
    in_band = draw < band_draws
    within = tl.where(in_band, draw, (draw - band_draws) << rest_shift)
    start = tl.where(in_band, origin, rest_start)
    place = start + _multiply_high(within, tl.where(in_band, band_scale, rest_scale)) + k
    return tl.minimum(place, place - places) >> cell_bits  # what is below the circle's length wraps to a larger number


@triton.jit
def hybrid_cell(k, draw, circle, coin):
    """The cell of a weight's place and a draw, by csrc's Hybrid::cell."""
    last, k_lo, shift, scale, lowest, lower_cell, upper_cell = coin
    upper = lowest + _multiply_high((k - k_lo) << shift, scale)
    tossed = tl.where(draw - last - 1 < upper, upper_cell, lower_cell)
    return tl.where(last < draw, tossed, circle_cell(k, draw, circle))


@triton.jit
def _value(cell, outputs, DTYPE: tl.constexpr):
    """lowest + step * cell as bits of the dtype; nothing is rounded."""
    lowest, step = outputs
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


@triton.jit
def _cells(
    bits, here, line, law, key, DTYPE: tl.constexpr, HYBRID: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr
):
    """The cells of a tile's weights."""
    high = draws(here, 0, key, CHACHA, BLOCKS).to(tl.uint32, bitcast=True)
    low = draws(here, 1, key, CHACHA, BLOCKS).to(tl.uint32, bitcast=True)
    draw = (high & 0xFFFF0000) | (low >> 16)
    k = threshold(from_bits(bits, DTYPE), line, DTYPE).to(tl.uint32, bitcast=True)
    circle, coin, _ = law
    return hybrid_cell(k, draw, circle, coin) if HYBRID else circle_cell(k, draw, circle)


@triton.jit(do_not_specialize=["rows", "tiles"], do_not_specialize_on_alignment=["table", "key", "out"])
def piecewise_kernel(
    table,
    key,
    out,
    rows,
    tiles,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    OUTPUT: tl.constexpr,
    HYBRID: tl.constexpr,
    CHACHA: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Tiles of BLOCKS cipher blocks. ALIGNED: all weights begin at a multiple of 16 bytes, all cells at one of 8."""
    PER_BLOCK: tl.constexpr = 32 if CHACHA else 8
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    BITS_OF: tl.constexpr = bits_of(DTYPE)
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    start, block, count, numel = place_of(row, program, tiles, TILE, PER_BLOCK)
    whole_from, whole_to = tl.where(start < 0, 1, 0), ((numel - start) // TILE).to(tl.int32)
    line, law = load_line(row, DTYPE), load_law(row, DTYPE)
    words = load_key(key, CHACHA)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(BITS_OF)) + start
    if OUTPUT == CELLS:
        bytes_out = out.to(tl.pointer_type(tl.uint8)) + tl.load(row + COLUMNS.out) + start

    t = 0
    while t < count:
        e = t * TILE + tl.arange(0, TILE)
        here = block + t * BLOCKS
        if OUTPUT == TURNS:
            inside = (start + e >= 0) & (start + e < numel)
            k = threshold(from_bits(tl.load(data + e, inside, 0), DTYPE), line, DTYPE)
            turns_out = out.to(tl.pointer_type(tl.int64)) + tl.load(row + COLUMNS.out) // 8 + start
            tl.store(turns_out + e, k.to(tl.int64) + tl.load(row + COLUMNS.origin), inside)
        elif (t >= whole_from) & (t < whole_to):
            pointers = data + e
            if ALIGNED:
                pointers = tl.max_contiguous(tl.multiple_of(pointers, 16), TILE)
            cells = _cells(tl.load(pointers), here, line, law, words, DTYPE, HYBRID, CHACHA, BLOCKS)
            if OUTPUT == VALUES:
                tl.store(pointers, _value(cells, law[2], DTYPE))
            else:
                bytes_of = bytes_out + e
                if ALIGNED:
                    bytes_of = tl.max_contiguous(tl.multiple_of(bytes_of, 8), TILE)
                tl.store(bytes_of, cells.to(tl.uint8))
        else:
            inside = (start + e >= 0) & (start + e < numel)
            cells = _cells(tl.load(data + e, inside, 0), here, line, law, words, DTYPE, HYBRID, CHACHA, BLOCKS)
            if OUTPUT == VALUES:
                tl.store(data + e, _value(cells, law[2], DTYPE), inside)
            else:
                tl.store(bytes_out + e, cells.to(tl.uint8), inside)
        t += 1
