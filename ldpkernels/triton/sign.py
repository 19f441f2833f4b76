# SPDX-License-Identifier: Apache-2.0
"""The sign mechanism in Triton: the law of csrc/mechanisms/sign.h, and the kernel.

It draws both halves of every number, which two_point.py shows how to avoid.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Laws, Spans
from ldpkernels.triton import table as tables
from ldpkernels.triton.ciphers import load_key
from ldpkernels.triton.launch import is_chacha, over
from ldpkernels.triton.table import SPAN, Columns, Part, place_of, row_of
from ldpkernels.triton.weights import bits_of, draws, from_bits, number, pack

VALUES, BITS, THRESHOLDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
OUTPUTS = {"values": int(VALUES), "bits": int(BITS), "thresholds": int(THRESHOLDS)}
INTEGERS = ("at", "below", "above", "lower", "upper")
COLUMNS = Columns(*SPAN, "center", *INTEGERS)


def launch(output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None) -> None:
    """Replace every weight by one of its law's two values, or write its bit or its threshold to `out`."""
    constants = OUTPUTS[output], is_chacha(key), tables.BLOCKS
    over(sign_kernel, ("sign", output), partial(plan_of, output), spans, laws, key, out, constants)


def plan_of(output: str, spans: Spans, laws: Laws, per_block: int) -> list[Part]:
    """A launch for all tensors of a dtype whose weights start at a multiple of 16 bytes, and one for its others."""
    aligned = (spans["data"] % 16 == 0) & (output != "thresholds")

    def part(kind: int, spans: Spans, laws: Laws) -> Part:
        columns, tiles, programs = tables.span_columns(spans, per_block)
        columns["center"] = tables.number_bits(laws["center"], tables.is_wide(spans))
        columns |= {name: laws[name].view(np.int64) for name in INTEGERS}
        return Part(programs, COLUMNS.table(len(spans), columns), (len(spans), tiles, kind // 2, bool(kind % 2)))

    return tables.parts_by(spans["dtype"] * 2 + aligned, spans, laws, part)


@triton.jit
def _threshold(x, law):
    center, at, below, above = law
    return (at + tl.where(x > center, above, tl.where(x < center, below, 0))).to(tl.int32)


@triton.jit
def _decide(x, law, block, key, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    high = draws(block, 0, key, CHACHA, BLOCKS) & -65536
    low = draws(block, 1, key, CHACHA, BLOCKS).to(tl.uint32, bitcast=True) >> 16
    return (high | low.to(tl.int32, bitcast=True)) < _threshold(x, law)


@triton.jit(do_not_specialize=["rows", "tiles"], do_not_specialize_on_alignment=["table", "key", "out"])
def sign_kernel(
    table,
    key,
    out,
    rows,
    tiles,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    OUTPUT: tl.constexpr,
    CHACHA: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Tiles of BLOCKS cipher blocks. ALIGNED: all weights of the table start at a multiple of 16 bytes."""
    PER_BLOCK: tl.constexpr = 32 if CHACHA else 8
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    BITS_OF: tl.constexpr = bits_of(DTYPE)
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    start, block, count, numel = place_of(row, program, tiles, TILE, PER_BLOCK)
    whole_from, whole_to = tl.where(start < 0, 1, 0), ((numel - start) // TILE).to(tl.int32)
    center, at = number(tl.load(row + COLUMNS.center), DTYPE), tl.load(row + COLUMNS.at)
    law = center, at, tl.load(row + COLUMNS.below), tl.load(row + COLUMNS.above)
    if OUTPUT == BITS:
        lower, upper = 0, 1
        bytes_out = out.to(tl.pointer_type(tl.uint8)) + tl.load(row + COLUMNS.out) + start // 8
    else:
        lower, upper = tl.load(row + COLUMNS.lower).to(BITS_OF), tl.load(row + COLUMNS.upper).to(BITS_OF)
    words = load_key(key, CHACHA)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(BITS_OF)) + start

    t = 0
    while t < count:
        e = t * TILE + tl.arange(0, TILE)
        byte = t * (TILE // 8) + tl.arange(0, TILE // 8)
        here = block + t * BLOCKS
        if OUTPUT == THRESHOLDS:
            inside = (start + e >= 0) & (start + e < numel)
            k = _threshold(from_bits(tl.load(data + e, inside, 0), DTYPE), law)
            thresholds_out = out.to(tl.pointer_type(tl.int64)) + tl.load(row + COLUMNS.out) // 8 + start
            tl.store(thresholds_out + e, k.to(tl.int64) + 2147483648, inside)
        elif (t >= whole_from) & (t < whole_to):
            pointers = data + e
            if ALIGNED:
                pointers = tl.max_contiguous(tl.multiple_of(pointers, 16), TILE)
            x = from_bits(tl.load(pointers), DTYPE)
            chosen = tl.where(_decide(x, law, here, words, CHACHA, BLOCKS), upper, lower)
            if OUTPUT == VALUES:
                tl.store(pointers, chosen)
            else:
                tl.store(bytes_out + byte, pack(chosen, TILE))
        else:
            inside = (start + e >= 0) & (start + e < numel)
            x = from_bits(tl.load(data + e, inside, 0), DTYPE)
            decision = _decide(x, law, here, words, CHACHA, BLOCKS)
            if OUTPUT == VALUES:
                tl.store(data + e, tl.where(decision, upper, lower), inside)
            else:
                first_bit = start + 8 * byte
                chosen = tl.where(decision & inside, upper, lower)
                tl.store(bytes_out + byte, pack(chosen, TILE), (first_bit >= 0) & (first_bit < numel))
        t += 1
