# SPDX-License-Identifier: Apache-2.0
"""The Walsh-Hadamard transform with signs in Triton, in place: docs/mechanisms/rotation.md.

A level adds and subtracts numbers 2^level apart. A pass takes some levels of a tile: 2^12 numbers that lie together,
then 32 columns of rows 2^level apart. Which numbers meet at a level is fixed, so tiles change no bit.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.triton.launch import is_chacha, keystream, launching

FIRST = 12  # levels of the first pass: 16 kB a program
LATER = 7  # of another, at most
STRIP = tl.constexpr(32)  # columns of another pass: 128 bytes that lie together, and a word of signs
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


def rotate(x: torch.Tensor, key: torch.Tensor, inverse: bool) -> None:
    """Rotate a power of two of fp32 numbers in place; the signs are keystream 0's."""
    levels = x.numel().bit_length() - 1
    root_half = float(np.float32(0.5**0.5)) if levels % 2 else 1.0
    factor = root_half * 2.0 ** -(levels // 2)  # an fp32 number, as an argument is
    signs = keystream(key, 0, 0, -(-x.numel() // (512 if is_chacha(key) else 128)))
    with launching(x.device):
        low = 0
        for count in passes(levels):
            last = low + count == levels
            strip = STRIP.value if low else 1
            programs = x.numel() >> count
            flips = not inverse and low == 0, inverse and last
            rotate_kernel[(programs // strip,)](x, signs, low, factor, count, strip, *flips, last, **OPTIONS)
            low += count


def passes(levels: int) -> list[int]:
    """The levels of each pass: those behind the first are of about the same size."""
    first = min(levels, FIRST)
    left = levels - first
    others = -(-left // LATER)
    return [first, *((left + i) // others for i in range(others))]


@triton.jit
def _level(v, SIZE: tl.constexpr, APART: tl.constexpr):
    """(a, b) to (a + b, a - b) for all pairs of a tile that are so far apart."""
    pairs = tl.permute(v.reshape(SIZE // (2 * APART), 2, APART), (0, 2, 1))
    a, b = tl.split(pairs)
    return tl.permute(tl.join(a + b, a - b), (0, 2, 1)).reshape(SIZE)


@triton.jit
def _flipped(v, e, signs):
    """Minus where an element's bit is set: also of zero."""
    bit = (tl.load(signs + (e >> 5)) >> (e & 31).to(tl.int32)) << 31
    return (v.to(tl.int32, bitcast=True) ^ bit).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["low", "factor"])
def rotate_kernel(
    x, signs, low, factor,
    LEVELS: tl.constexpr, COLUMNS: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """LEVELS levels from level `low` on of COLUMNS columns, whose rows are 2^low apart; one column is a row itself."""
    SIZE: tl.constexpr = COLUMNS << LEVELS
    i = tl.arange(0, SIZE)
    if COLUMNS == 1:
        e = tl.program_id(0).to(tl.int64) * SIZE + i
    else:
        column = tl.program_id(0).to(tl.int64) * COLUMNS
        rows = column >> low << (low + LEVELS)
        stride = tl.multiple_of(tl.full((), 1, tl.int64) << low, COLUMNS)
        first = tl.multiple_of(rows + (column & (stride - 1)), COLUMNS)
        e = first + i // COLUMNS * stride + i % COLUMNS
    v = tl.load(x + e)
    if BEFORE:
        v = _flipped(v, e, signs)
    for level in tl.static_range(LEVELS):
        v = _level(v, SIZE, COLUMNS << level)
    if LAST:
        v = v * factor
    if AFTER:
        v = _flipped(v, e, signs)
    tl.store(x + e, v)
