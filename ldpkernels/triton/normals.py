# SPDX-License-Identifier: Apache-2.0
"""PrivUnitG's two passes in Triton: the product of a vector with normals, then the normals, moved along the vector.

The normals are made anew for the second, as in csrc/cpu/privunitg.h; their additions are those of csrc/order.h with
nothing fused. docs/mechanisms/vector.md.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ldpkernels.arrays import Spans
from ldpkernels.dtypes import FLOAT64
from ldpkernels.triton import launch
from ldpkernels.triton.ciphers import chacha, load_key, philox
from ldpkernels.triton.clipped_noise import OPTIONS as WIDE_OPTIONS
from ldpkernels.triton.clipped_noise import PIECE, PIECES, natural_log, sine_cosine
from ldpkernels.triton.lattice import BLOCKS, COLUMNS, PARTS, launches, load_tile, store_tile, total_of_stretches
from ldpkernels.triton.table import place_of, row_of
from ldpkernels.triton.weights import bits_of, fp64, from_bits


def normal_product(spans: Spans, key: torch.Tensor, stream: int, device: torch.device) -> float:
    """The sum of products of weights with the normals of their elements, in the CPU's bits. The host waits for it."""

    def fill(one: launch.Launch, parts: torch.Tensor) -> None:
        product_kernel[(one.programs,)](
            one.table, key, parts, stream, *one.numbers, launch.is_chacha(key), **WIDE_OPTIONS
        )

    return total_of_stretches(spans, device, fill, root=False)


def moved_normals(
    spans: Spans, key: torch.Tensor, stream: int, along: float, factor: float, device: torch.device
) -> None:
    """(g + along x) factor for weights x and their normals g, to each span's `out`: fp64 for fp64, else fp32."""
    is_chacha = launch.is_chacha(key)
    numbers = launch.fp64_bits(along), launch.fp64_bits(factor)
    with launch.launching(device):
        for one in launches(64, spans, is_chacha, device):
            rows, tiles, dtype, aligned = one.numbers
            moved_kernel[(one.programs,)](
                one.table, key, *numbers, stream, rows, tiles, dtype, dtype == FLOAT64.code, aligned, is_chacha,
                BLOCKS[64][is_chacha], **launch.OPTIONS,
            )  # fmt: skip


@triton.jit
def _fourth(a, b, c, d):
    """One word of every four of ChaCha20's: a is of the first four of a block, d of the last."""
    return tl.join(tl.join(a, c), tl.join(b, d))


@triton.jit
def normals(index, stream, key, CHACHA: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Two normals from each four words of keystream blocks [ROWS, BLOCKS], in order: [ROWS, numbers]."""
    PAIRS: tl.constexpr = BLOCKS * (4 if CHACHA else 1)
    if CHACHA:
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = chacha(index, stream, key)
        w0, w1 = _fourth(x0, x4, x8, x12).reshape(ROWS, PAIRS), _fourth(x1, x5, x9, x13).reshape(ROWS, PAIRS)
        w2, w3 = _fourth(x2, x6, x10, x14).reshape(ROWS, PAIRS), _fourth(x3, x7, x11, x15).reshape(ROWS, PAIRS)
    else:
        w0, w1, w2, w3 = philox(index, stream, key)
    first, second = normal_pair(w0, w1, w2, w3)
    return tl.join(first, second).reshape(ROWS, PAIRS * 2)


@triton.jit
def normal_pair(w0, w1, w2, w3):
    """csrc's normal_pair."""
    w0, w1, w2, w3 = w0.to(tl.int64), w1.to(tl.int64), w2.to(tl.int64), w3.to(tl.int64)
    u = (w1.to(tl.float64) * 4294967296.0 + (w0.to(tl.float64) + 0.5)) * 5.421010862427522e-20
    radius = tl.sqrt(-2.0 * natural_log(u))
    fraction = (w3 & 0x3FFFFFFF).to(tl.float64) - 536870912.0
    turn = (fraction * 4294967296.0 + (w2.to(tl.float64) + 0.5)) * 2.168404344971009e-19
    sine, cosine = sine_cosine(turn * 1.5707963267948966)
    quadrant = w3 >> 30
    swap = (quadrant & 1) != 0
    a, b = tl.where(swap, sine, cosine), tl.where(swap, cosine, sine)
    first = radius * tl.where(((quadrant + 1) & 2) != 0, -a, a)
    return first, radius * tl.where((quadrant & 2) != 0, -b, b)


@triton.jit(do_not_specialize=["stream", "rows"], do_not_specialize_on_alignment=["table", "key", "parts"])
def product_kernel(table, key, parts, stream, rows, DTYPE: tl.constexpr, CHACHA: tl.constexpr):
    """The sum of products of one stretch of one tensor: 16 lanes of each piece, pieces in order."""
    AT_ONCE: tl.constexpr = 2 if CHACHA else 8  # blocks of 16 normals
    program = tl.program_id(0)
    row = row_of(table, rows, program, PARTS.width)
    stretch = program - tl.load(row + PARTS.program)
    begin = stretch.to(tl.int64) * (PIECE * PIECES)
    left = tl.load(row + PARTS.numel) - begin
    data = tl.load(row + PARTS.data).to(tl.pointer_type(bits_of(DTYPE))) + begin
    secret = load_key(key, CHACHA)
    piece = tl.arange(0, PIECES)
    element = piece[:, None] * PIECE + tl.arange(0, 16)[None, :]
    first_block = (tl.load(row + PARTS.first) + begin) // (16 // AT_ONCE)
    block = first_block + (piece[:, None] * (PIECE // 16 * AT_ONCE) + tl.arange(0, AT_ONCE)[None, :]).to(tl.int64)
    sums = tl.zeros((PIECES, 16), tl.float64)
    i = 0
    while i * 16 < tl.minimum(left, PIECE):
        j = element + i * 16
        x = from_bits(tl.load(data + j, j < left, 0), DTYPE).to(tl.float64)
        sums += x * normals(block + i * AT_ONCE, stream.to(tl.uint32), secret, CHACHA, PIECES, AT_ONCE)
        i += 1
    half = tl.sum(sums.reshape(PIECES, 2, 8), axis=1)  # two numbers each: one addition, so one order
    half = tl.sum(half.reshape(PIECES, 2, 4), axis=1)
    half = tl.sum(half.reshape(PIECES, 2, 2), axis=1)
    pieces = tl.sum(half, axis=1)
    total = tl.zeros((), tl.float64)
    i = 0
    while i * PIECE < tl.minimum(left, PIECE * PIECES):  # one after the other: zeros change nothing
        total += tl.sum(tl.where(piece == i, pieces, 0.0), axis=0)
        i += 1
    tl.store(parts + tl.load(row + PARTS.part) + stretch, total)


@triton.jit(
    do_not_specialize=["along", "factor", "stream", "rows", "tiles"], do_not_specialize_on_alignment=["table", "key"]
)
def moved_kernel(
    table, key, along, factor, stream, rows, tiles,
    DTYPE: tl.constexpr, WIDE: tl.constexpr, ALIGNED: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Tiles of one tensor."""
    PER_BLOCK: tl.constexpr = 8 if CHACHA else 2
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    start, block, count, numel = place_of(row, program, tiles, TILE, PER_BLOCK)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(bits_of(DTYPE)))
    out = tl.load(row + COLUMNS.out).to(tl.pointer_type(tl.float64 if WIDE else tl.float32))
    secret = load_key(key, CHACHA)
    blocks = block + tl.arange(0, BLOCKS).to(tl.int64)[None, :]
    t = 0
    while t < count:
        begin = start + t * TILE
        g = normals(blocks + t * BLOCKS, stream.to(tl.uint32), secret, CHACHA, 1, BLOCKS).reshape(TILE)
        x = from_bits(load_tile(data, begin, numel, TILE, ALIGNED), DTYPE).to(tl.float64)
        moved = (g + fp64(along) * x) * fp64(factor)
        store_tile(out, moved if WIDE else moved.to(tl.float32), begin, numel, TILE, ALIGNED)
        t += 1
