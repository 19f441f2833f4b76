# SPDX-License-Identifier: Apache-2.0
"""The two-point mechanism in Triton: the law of csrc/mechanisms/two_point.h, and the kernel.

A program is one warp and works through `tiles` tiles of one tensor. A report is "upper" if u < k for a 32-bit draw u
and a threshold k. `guess` decides almost every element in fp32 from the draw's high half, and knows where it could be
wrong; only a tile that has such an element, 1 in 128 of Philox's, computes k and draws the low halves. With one warp a
program, that question is a reduction without a barrier.
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
from ldpkernels.triton.table import WEIGHTS, Part, place_of, row_of
from ldpkernels.triton.weights import bits_of, draws, from_bits, load_line, pack, threshold

VALUES, BITS, THRESHOLDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
OUTPUTS = {"values": int(VALUES), "bits": int(BITS), "thresholds": int(THRESHOLDS)}
COLUMNS = WEIGHTS.and_("lower", "upper")


def launch(output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None) -> None:
    """Replace every weight by one of its law's two values, or write its bit (eight to a byte, the first lowest, unused
    bits zero) or its threshold (2^31 + k, as int64) to where the span's `out` points in `out`.
    """
    plan, code = partial(plan_of, output), OUTPUTS[output]
    constants = code, is_chacha(key), tables.BLOCKS
    over(two_point_kernel, ("two_point", output), plan, spans, laws, key, out, constants)


def plan_of(output: str, spans: Spans, laws: Laws, per_block: int) -> list[Part]:
    """A launch for all tensors of a dtype whose weights start at a multiple of 16 bytes, and one for its others."""
    aligned = (spans["data"] % 16 == 0) & (output != "thresholds")

    def part(kind: int, spans: Spans, laws: Laws) -> Part:
        columns, tiles, programs = tables.weight_columns(spans, laws, per_block)
        columns |= {name: laws[name].view(np.int64) for name in ("lower", "upper")}
        return Part(programs, COLUMNS.table(len(spans), columns), (len(spans), tiles, kind // 2, bool(kind % 2)))

    return tables.parts_by(spans["dtype"] * 2 + aligned, spans, laws, part)


@triton.jit
def decide(x, high, line, block, key, DTYPE: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    """The decision by the whole draw."""
    low = draws(block, 1, key, CHACHA, BLOCKS).to(tl.uint32, bitcast=True) >> 16
    return ((high & -65536) | low.to(tl.int32, bitcast=True)) < threshold(x, line, DTYPE)


@triton.jit
def guess(x, high, line):
    """A number whose sign is the decision, positive for upper, wherever its magnitude exceeds 2^16.

    With M the draw's high half times 2^16, u lies in [M, M + 2^16 - 1] and so does `high`. The law of z is monotone:
      z > M + 2^16 gives k >= M + 2^16 > u, and z < M gives k <= M <= u, clamped or not: `floor` is the smallest
      float at or above k_lo and `ceiling` the largest at or below k_hi, and M and M + 2^16 are floats.
    Every operation here rounds monotonically and M, M + 2^16 and 2^16 are floats, so a difference above 2^16 says that
    z > M + 2^16 and one below -2^16 that z < M. A NaN stays a NaN, which exceeds nothing.
    """
    center, slope, _, _, _, floor, ceiling = line
    z = ((x - center) * slope).to(tl.float32)
    z = tl.maximum(z, floor, propagate_nan=tl.PropagateNan.ALL)
    z = tl.minimum(z, ceiling, propagate_nan=tl.PropagateNan.ALL)
    return z - high.to(tl.float32)


@triton.jit
def _lesser(x, N: tl.constexpr):
    a, b = tl.split(x.reshape(N // 2, 2))
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _any_unsure(guessed, N: tl.constexpr):
    # Four neighbours are one lane's: their minimum costs less than their four comparisons.
    least = _lesser(_lesser(tl.abs(guessed), N), N // 2)
    return tl.max((~(least > 65536.0)).to(tl.int32), axis=0) != 0


@triton.jit(do_not_specialize=["rows", "tiles"], do_not_specialize_on_alignment=["table", "key", "out"])
def two_point_kernel(
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
    line = load_line(row, DTYPE)
    if OUTPUT == BITS:
        lower, upper = 0, 1
        bytes_out = out.to(tl.pointer_type(tl.uint8)) + tl.load(row + COLUMNS.out) + start // 8
    else:
        lower, upper = tl.load(row + COLUMNS.lower).to(BITS_OF), tl.load(row + COLUMNS.upper).to(BITS_OF)
    words = load_key(key, CHACHA)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(BITS_OF)) + start

    t = 0
    while t < count:  # NumPy's newer releases and Triton 3.6's interpreter disagree about range() of a tensor
        e = t * TILE + tl.arange(0, TILE)
        byte = t * (TILE // 8) + tl.arange(0, TILE // 8)
        here = block + t * BLOCKS
        if OUTPUT == THRESHOLDS:
            inside = (start + e >= 0) & (start + e < numel)
            k = threshold(from_bits(tl.load(data + e, inside, 0), DTYPE), line, DTYPE)
            thresholds_out = out.to(tl.pointer_type(tl.int64)) + tl.load(row + COLUMNS.out) // 8 + start
            tl.store(thresholds_out + e, k.to(tl.int64) + 2147483648, inside)
        elif (t >= whole_from) & (t < whole_to):
            pointers = data + e
            if ALIGNED:
                pointers = tl.max_contiguous(tl.multiple_of(pointers, 16), TILE)
            x = from_bits(tl.load(pointers), DTYPE)
            high = draws(here, 0, words, CHACHA, BLOCKS)
            guessed = guess(x, high, line)
            # Chosen before the branch: a decision would cross it as a predicate, of which there are few.
            chosen = tl.where(guessed > 0, upper, lower)
            if _any_unsure(guessed, TILE):
                chosen = tl.where(decide(x, high, line, here, words, DTYPE, CHACHA, BLOCKS), upper, lower)
            if OUTPUT == VALUES:
                tl.store(pointers, chosen)
            else:
                tl.store(bytes_out + byte, pack(chosen, TILE))
        else:
            inside = (start + e >= 0) & (start + e < numel)
            x = from_bits(tl.load(data + e, inside, 0), DTYPE)
            high = draws(here, 0, words, CHACHA, BLOCKS)
            decision = decide(x, high, line, here, words, DTYPE, CHACHA, BLOCKS)
            if OUTPUT == VALUES:
                tl.store(data + e, tl.where(decision, upper, lower), inside)
            else:
                first_bit = start + 8 * byte
                chosen = tl.where(decision & inside, upper, lower)
                tl.store(bytes_out + byte, pack(chosen, TILE), (first_bit >= 0) & (first_bit < numel))
        t += 1
