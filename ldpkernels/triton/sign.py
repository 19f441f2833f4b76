# SPDX-License-Identifier: Apache-2.0
"""The sign mechanism in Triton: the law of csrc/mechanisms/sign.h, and the kernel.

It draws both halves of every number, which two_point.py shows how to avoid.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Laws, Spans
from ldpkernels.triton import table as tables
from ldpkernels.triton.ciphers import load_key
from ldpkernels.triton.launch import is_chacha, over
from ldpkernels.triton.table import SPAN, Columns, Part, place_of, row_of
from ldpkernels.triton.weights import F32, F64, draws, from_bits, number

VALUES, BITS, THRESHOLDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
OUTPUTS = {"values": int(VALUES), "bits": int(BITS), "thresholds": int(THRESHOLDS)}
INTEGERS = ("at", "below", "above", "lower", "upper")
COLUMNS = Columns(*SPAN, "center", *INTEGERS)


def launch(output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None) -> None:
    """Replace every weight by one of its law's two values, or write its bit or its threshold to `out`."""
    constants = OUTPUTS[output], is_chacha(key), tables.BLOCKS
    over(sign_kernel, ("sign", output), plan_of, spans, laws, key, out, constants)


def plan_of(spans: Spans, laws: Laws, per_block: int) -> list[Part]:
    """A launch for all tensors of a dtype."""

    def part(dtype: int, spans: Spans, laws: Laws) -> Part:
        columns, tiles, programs = tables.span_columns(spans, per_block)
        columns["center"] = tables.number_bits(laws["center"], tables.is_wide(spans))
        columns |= {name: laws[name].view(np.int64) for name in INTEGERS}
        return Part(programs, COLUMNS.table(len(spans), columns), (len(spans), tiles, dtype))

    return tables.parts_by(spans["dtype"], spans, laws, part)


@triton.jit(do_not_specialize=["rows", "tiles"], do_not_specialize_on_alignment=["table", "key", "out"])
def sign_kernel(
    table,
    key,
    out,
    rows,
    tiles,
    DTYPE: tl.constexpr,
    OUTPUT: tl.constexpr,
    CHACHA: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Tiles of BLOCKS cipher blocks; one program takes `tiles` of one tensor."""
    PER_BLOCK: tl.constexpr = 32 if CHACHA else 8
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    BITS_OF: tl.constexpr = tl.int64 if DTYPE == F64 else (tl.int32 if DTYPE == F32 else tl.int16)
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    start, block, count, numel = place_of(row, program, tiles, TILE, PER_BLOCK)
    center, at = number(tl.load(row + COLUMNS.center), DTYPE), tl.load(row + COLUMNS.at)
    below, above = tl.load(row + COLUMNS.below), tl.load(row + COLUMNS.above)
    lower, upper = tl.load(row + COLUMNS.lower).to(BITS_OF), tl.load(row + COLUMNS.upper).to(BITS_OF)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(BITS_OF))
    words = load_key(key, CHACHA)

    t = 0
    while t < count:
        e = start + t * TILE + tl.arange(0, TILE)
        inside = (e >= 0) & (e < numel)
        x = from_bits(tl.load(data + e, inside, 0), DTYPE)
        k = (at + tl.where(x > center, above, tl.where(x < center, below, 0))).to(tl.int32)
        if OUTPUT == THRESHOLDS:
            thresholds_out = out.to(tl.pointer_type(tl.int64)) + tl.load(row + COLUMNS.out) // 8
            tl.store(thresholds_out + e, k.to(tl.int64) + 2147483648, inside)
        else:
            high = draws(block + t * BLOCKS, 0, words, CHACHA, BLOCKS) & -65536
            low = draws(block + t * BLOCKS, 1, words, CHACHA, BLOCKS).to(tl.uint32, bitcast=True) >> 16
            chosen = (high | low.to(tl.int32, bitcast=True)) < k
            if OUTPUT == VALUES:
                tl.store(data + e, tl.where(chosen, upper, lower), inside)
            else:
                bits = (chosen & inside).to(tl.int32).reshape(TILE // 8, 8) << tl.arange(0, 8)[None, :]
                first = start + t * TILE + 8 * tl.arange(0, TILE // 8)
                bytes_out = out.to(tl.pointer_type(tl.uint8)) + tl.load(row + COLUMNS.out) + first // 8
                tl.store(bytes_out, tl.sum(bits, axis=1).to(tl.uint8), (first >= 0) & (first < numel))
        t += 1
