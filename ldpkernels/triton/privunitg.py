# SPDX-License-Identifier: Apache-2.0
"""PrivUnitG's two passes in Triton: the product of a vector with normals, then the normals, moved along the vector.

The normals are made anew for the second, as in csrc/cpu/privunitg.h; their additions are those of order.py, with
nothing fused. docs/mechanisms/vector.md.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Spans
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.triton import launch
from ldpkernels.triton.ciphers import load_key
from ldpkernels.triton.lattice import BLOCKS, COLUMNS, launches, load_tile, store_tile
from ldpkernels.triton.normals import normals
from ldpkernels.triton.norms import PARTS, total_of_stretches
from ldpkernels.triton.order import OPTIONS as WIDE_OPTIONS
from ldpkernels.triton.order import PIECE, PIECE_LANES, PIECES, STRETCH, stretch_total
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


@triton.jit(do_not_specialize=["stream", "rows"], do_not_specialize_on_alignment=["table", "key", "parts"])
def product_kernel(table, key, parts, stream, rows, DTYPE: tl.constexpr, CHACHA: tl.constexpr):
    """The sum of products of one stretch of one tensor: 16 lanes of each piece, pieces in order."""
    AT_ONCE: tl.constexpr = 2 if CHACHA else 8  # cipher blocks: as many normals as a piece has lanes
    program = tl.program_id(0)
    row = row_of(table, rows, program, PARTS.width)
    stretch = program - tl.load(row + PARTS.program)
    begin = stretch.to(tl.int64) * STRETCH
    left = tl.load(row + PARTS.numel) - begin
    data = tl.load(row + PARTS.data).to(tl.pointer_type(bits_of(DTYPE))) + begin
    secret = load_key(key, CHACHA)
    piece = tl.arange(0, PIECES)
    element = piece[:, None] * PIECE + tl.arange(0, PIECE_LANES)[None, :]
    first = (tl.load(row + PARTS.first) + begin) // (PIECE_LANES // AT_ONCE)
    block = piece[:, None] * (PIECE // PIECE_LANES * AT_ONCE) + tl.arange(0, AT_ONCE)[None, :]
    block = first + block.to(tl.int64)
    lanes = tl.zeros((PIECES, PIECE_LANES), tl.float64)
    i = 0
    while i * PIECE_LANES < tl.minimum(left, PIECE):
        j = element + i * PIECE_LANES
        x = from_bits(tl.load(data + j, j < left, 0), DTYPE).to(tl.float64)
        lanes += x * normals(block + i * AT_ONCE, stream.to(tl.uint32), secret, CHACHA, PIECES, AT_ONCE)
        i += 1
    tl.store(parts + tl.load(row + PARTS.part) + stretch, stretch_total(lanes, left))


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
