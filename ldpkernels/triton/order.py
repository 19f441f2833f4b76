# SPDX-License-Identifier: Apache-2.0
"""csrc/order.h in Triton: in which order numbers are added, with nothing fused. docs/mechanisms/clipped_noise.md."""

from __future__ import annotations

import triton
import triton.language as tl

PIECE_LANES = tl.constexpr(16)
PIECE = tl.constexpr(1024)
PIECES = tl.constexpr(64)  # of a stretch
STRETCH = tl.constexpr(1 << 16)
AT_ONCE = tl.constexpr(4)  # numbers of a lane that are loaded before the first is added
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


@triton.constexpr_function
def _halvings(LANES):
    """How often LANES lanes, a power of two, are halved until two are left."""
    return LANES.bit_length() - 2


@triton.jit
def sum_of_lanes(lanes, ROWS: tl.constexpr, LANES: tl.constexpr):
    """The sum of each row's lanes, a power of two of them: their second half is added to the first, until one is left.

    A sum of two numbers is one addition, so it has one order.
    """
    for i in tl.static_range(_halvings(LANES)):
        lanes = tl.sum(lanes.reshape(ROWS, 2, LANES >> (i + 1)), axis=1)
    return tl.sum(lanes, axis=1)


@triton.jit
def stretch_total(lanes, left):
    """The sum of a stretch from its pieces' lanes, [PIECES, PIECE_LANES], where so many numbers are left of a row."""
    piece = tl.arange(0, PIECES)
    pieces = sum_of_lanes(lanes, PIECES, PIECE_LANES)
    total = tl.zeros((), tl.float64)
    i = 0
    while i * PIECE < tl.minimum(left, STRETCH):  # one after the other: zeros change nothing
        total += tl.sum(tl.where(piece == i, pieces, 0.0), axis=0)
        i += 1
    return total


@triton.jit
def stretch_squares(x, left, WIDE: tl.constexpr):
    """The sum of squares of a stretch that begins at x, of which so many numbers are left."""
    element = tl.arange(0, PIECES)[:, None] * PIECE + tl.arange(0, PIECE_LANES)[None, :]
    lanes = tl.zeros((PIECES, PIECE_LANES), tl.float64)
    i = 0
    while i * PIECE_LANES < tl.minimum(left, PIECE):
        for _ in tl.static_range(AT_ONCE):  # zeros change nothing
            j = element + i * PIECE_LANES
            v = tl.load(x + j, j < left, 0.0).to(WIDE).to(tl.float64)
            lanes += v * v
            i += 1
    return stretch_total(lanes, left)


@triton.jit
def cut(units):
    """Cut towards zero, so that sums are of integers, which any order leaves as they are."""
    return tl.where(units < 0, tl.ceil(units), tl.floor(units))
