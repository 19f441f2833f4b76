# SPDX-License-Identifier: Apache-2.0
"""The piecewise and hybrid mechanisms in Triton: the laws of csrc/mechanisms/piecewise.h and hybrid.h, and the kernel.

A program is one warp and works through `tiles` tiles of one tensor, like the two-point kernel's. Every element takes a
32-bit draw: its high half from keystream 0, its low half from keystream 1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ldpkernels.arrays import Laws, Spans
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


def launch_piecewise(output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None) -> None:
    """Replace every weight by its cell's value, or write its cell, a byte, or its turn, an int64, to where the span's
    `out` points in `out`.
    """
    constants = OUTPUTS[output], False, is_chacha(key), tables.BLOCKS
    over(piecewise_kernel, ("piecewise", output), plan_of, spans, laws, key, out, constants)


def launch_hybrid(output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None) -> None:
    """The hybrid mechanism, likewise."""
    constants = OUTPUTS[output], True, is_chacha(key), tables.BLOCKS
    over(piecewise_kernel, ("hybrid", output), plan_of, spans, laws, key, out, constants)


def plan_of(spans: Spans, laws: Laws, per_block: int) -> list[Part]:
    """A launch for all tensors of a dtype."""

    def part(dtype: int, spans: Spans, laws: Laws) -> Part:
        circle = laws["piecewise"] if "piecewise" in (laws.dtype.names or ()) else laws
        columns, tiles, programs = tables.weight_columns(spans, circle, per_block)
        columns |= {name: circle[name] for name in CIRCLE}
        columns |= {name: tables.number_bits(circle[name], tables.is_wide(spans)) for name in ("lowest", "step")}
        columns |= {name: laws[name] if circle is not laws else 0 for name in COIN}
        return Part(programs, COLUMNS.table(len(spans), columns), (len(spans), tiles, dtype))

    return tables.parts_by(spans["dtype"], spans, laws, part)


@triton.jit
def _multiply_high(a, b):
    return ((a.to(tl.uint64) * b.to(tl.uint64)) >> 32).to(tl.uint32)


@triton.jit
def _word(row, column: tl.constexpr):
    return tl.load(row + column).to(tl.uint32)


@triton.jit
def circle_cell(k, draw, row):
    """csrc's Piecewise::cell."""
    band_draws = _word(row, COLUMNS.band_draws)
    in_band = draw < band_draws
    within = tl.where(in_band, draw, (draw - band_draws) << _word(row, COLUMNS.rest_shift))
    scale = tl.where(in_band, _word(row, COLUMNS.band_scale), _word(row, COLUMNS.rest_scale))
    origin = _word(row, COLUMNS.origin)
    start = tl.where(in_band, origin, origin + _word(row, COLUMNS.band_end))
    place = start + _multiply_high(within, scale) + k.to(tl.uint32, bitcast=True)
    places = _word(row, COLUMNS.places)
    return tl.where(place < places, place, place - places) >> _word(row, COLUMNS.cell_bits)


@triton.jit
def hybrid_cell(k, draw, row):
    """csrc's Hybrid::cell."""
    last = _word(row, COLUMNS.last_draw)
    raised = (k.to(tl.uint32, bitcast=True) - _word(row, COLUMNS.k_lo)) << _word(row, COLUMNS.coin_shift)
    upper = _word(row, COLUMNS.coin_lowest) + _multiply_high(raised, _word(row, COLUMNS.coin_scale))
    coin = tl.where(draw - last - 1 < upper, _word(row, COLUMNS.upper_cell), _word(row, COLUMNS.lower_cell))
    return tl.where(last < draw, coin, circle_cell(k, draw, row))


@triton.jit
def _value(cell, row, DTYPE: tl.constexpr):
    """lowest + step * cell as bits of the dtype; nothing is rounded."""
    lowest, step = number(tl.load(row + COLUMNS.lowest), DTYPE), number(tl.load(row + COLUMNS.step), DTYPE)
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


@triton.jit(do_not_specialize=["rows", "tiles"], do_not_specialize_on_alignment=["table", "key", "out"])
def piecewise_kernel(
    table,
    key,
    out,
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
    BITS_OF: tl.constexpr = bits_of(DTYPE)
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    start, block, count, numel = place_of(row, program, tiles, TILE, PER_BLOCK)
    line = load_line(row, DTYPE)
    words = load_key(key, CHACHA)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(BITS_OF)) + start

    t = 0
    while t < count:
        e = t * TILE + tl.arange(0, TILE)
        inside = (start + e >= 0) & (start + e < numel)
        k = threshold(from_bits(tl.load(data + e, inside, 0), DTYPE), line, DTYPE)
        if OUTPUT == TURNS:
            turns_out = out.to(tl.pointer_type(tl.int64)) + tl.load(row + COLUMNS.out) // 8 + start
            tl.store(turns_out + e, k.to(tl.int64) + tl.load(row + COLUMNS.origin), inside)
        else:
            here = block + t * BLOCKS
            high = draws(here, 0, words, CHACHA, BLOCKS).to(tl.uint32, bitcast=True)
            low = draws(here, 1, words, CHACHA, BLOCKS).to(tl.uint32, bitcast=True)
            draw = (high & 0xFFFF0000) | (low >> 16)
            cell = hybrid_cell(k, draw, row) if HYBRID else circle_cell(k, draw, row)
            if OUTPUT == VALUES:
                tl.store(data + e, _value(cell, row, DTYPE), inside)
            else:
                bytes_out = out.to(tl.pointer_type(tl.uint8)) + tl.load(row + COLUMNS.out) + start
                tl.store(bytes_out + e, cell.to(tl.uint8), inside)
        t += 1
