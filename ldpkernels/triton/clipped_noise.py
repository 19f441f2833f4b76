# SPDX-License-Identifier: Apache-2.0
"""Clipped and noised sums in Triton: squares of rows, sums of scaled rows, noise.

The additions are those of docs/mechanisms/clipped_noise.md in the same order, with nothing fused, and the normal pair
is that of csrc/mechanisms/clipped_noise.h: the bits are the CPU's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.inputs.spans import first_elements
from ldpkernels.laws.clipped_noise import Noise, at_most, is_single, scales
from ldpkernels.triton.ciphers import keystream_words, load_key
from ldpkernels.triton.discrete_gaussian import discrete_gaussian
from ldpkernels.triton.launch import fp64_bits, is_chacha, launching
from ldpkernels.triton.weights import fp64

PIECE = tl.constexpr(1024)
PIECES = tl.constexpr(64)  # of a stretch
STRETCH = 1 << 16
BLOCKS = 128  # cipher blocks a program
SAMPLERS = 128  # columns of a program that draws discrete noise: one a thread
ROWS = tl.constexpr(64)  # of a block; blocks of a group
GROUP_PIECES = tl.constexpr(4)  # pieces of single numbers; so many lanes has each
NUMBER_LANES = tl.constexpr(64)
UNDER_WAY = tl.constexpr(16)  # loads of sums of groups before the first is added
FEW = 128  # programs that leave a device idle: then blocks of rows are added beside each other
LANES = 128  # sums of a program that adds rows, one a thread
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
NUMBER_OPTIONS = OPTIONS | {"num_warps": 2}  # four lanes a thread: 16 bytes of fp32


def clipped_sums(
    x: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
    limits: Sequence[float],
    noise: Noise,
    divisor: float,
    key: torch.Tensor,
) -> torch.Tensor:
    """Write the noised sums of contiguous tensors to `outs`; the norms, [rows, 1] or [rows, tensors].

    Nothing waits for the device or is copied to it: the numbers are the kernels' arguments, so that a CUDA graph holds
    them.
    """
    with launching(key.device):
        if is_single([out.numel() for out in outs]):
            return _single_numbers(x[0], outs[0], limits[0], noise, divisor, key)
        norms = torch.stack(_norms(x, outs, len(x[0]), len(limits)), 1)
        factors = torch.stack(scales(norms, limits, torch.where), 1)
        firsts = first_elements([out.numel() for out in outs])
        for i, (t, out, first) in enumerate(zip(x, outs, firsts, strict=True)):
            if out.numel():
                _sum(t, factors[:, i if len(limits) > 1 else 0 :], out, key, noise, divisor, first)
    return norms


def _norms(x: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], rows: int, layers: int) -> list[torch.Tensor]:
    totals = [torch.zeros(rows, dtype=torch.float64, device=x[0].device) for _ in range(layers)]
    for i, (t, out) in enumerate(zip(x, outs, strict=True)):
        stretches = -(-out.numel() // STRETCH)
        if rows and stretches:
            parts = torch.empty(rows, stretches, dtype=torch.float64, device=t.device)
            squares_kernel[(rows, stretches)](t, parts, out.numel(), stretches, _wide(out), **OPTIONS)
            add_stretches_kernel[(rows,)](parts, totals[i if layers > 1 else 0], stretches, **OPTIONS)
    for total in totals if rows else []:
        root_kernel[(rows,)](total, **OPTIONS)
    return totals


def _sum(
    t: torch.Tensor, factors: torch.Tensor, out: torch.Tensor, key: torch.Tensor, law: Noise, divisor: float, first: int
) -> None:
    split = -(-out.numel() // _tile(key, law)) <= FEW and t.shape[0] > ROWS.value
    rows = t.shape[0]
    if split:
        t, rows = _groups(t, factors, out, _inverse_unit(law), law.unit > 0)
    _release(t, factors, rows, out, key, law, divisor, first, split)


def _release(
    t: torch.Tensor,
    factors: torch.Tensor,
    rows: int,
    out: torch.Tensor,
    key: torch.Tensor,
    law: Noise,
    divisor: float,
    first: int,
    split: bool,
) -> None:
    """The noised sum of rows, or where `split` of sums of groups, to `out`."""
    grid, chacha, tile = law.unit > 0, is_chacha(key), _tile(key, law)
    size = float(law.grid_std) if grid else law.stddev
    numbers = [fp64_bits(number) for number in (size, divisor, law.unit)]
    sums_kernel[(-(-out.numel() // tile),)](
        t, factors, factors.stride(0), out, key, *numbers, _inverse_unit(law), rows, out.numel(), first,
        _wide(out), grid, size > 0, chacha, tile // _columns_of_block(key), split, **OPTIONS,
    )  # fmt: skip


def _columns_of_block(key: torch.Tensor) -> int:
    return 8 if is_chacha(key) else 2


def _tile(key: torch.Tensor, law: Noise) -> int:
    """Columns of a program of `sums_kernel`."""
    return SAMPLERS if law.unit > 0 else BLOCKS * _columns_of_block(key)


def _inverse_unit(law: Noise) -> int:
    return fp64_bits(1 / law.unit if law.unit > 0 else 0.0)


def _single_numbers(
    t: torch.Tensor, out: torch.Tensor, limit: float, law: Noise, divisor: float, key: torch.Tensor
) -> torch.Tensor:
    """Numbers that are clamped: a program a group."""
    rows = t.shape[0]
    groups = -(-rows // (GROUP_PIECES.value * PIECE.value))
    norms = torch.empty((rows, 1), dtype=torch.float64, device=t.device)
    sums = torch.empty(groups, dtype=torch.float64, device=t.device)
    if groups:
        bound = fp64_bits(at_most(limit, np.float64 if out.dtype == torch.float64 else np.float32))
        numbers_kernel[(groups,)](
            t, norms, sums, bound, _inverse_unit(law), rows, _wide(out), law.unit > 0, **NUMBER_OPTIONS
        )
    _release(sums, sums, groups, out, key, law, divisor, 0, True)
    return norms


def _groups(
    t: torch.Tensor, factors: torch.Tensor, out: torch.Tensor, inverse_unit: int, grid: bool
) -> tuple[torch.Tensor, int]:
    """The sums of groups of rows, [groups, columns], and their number: what `sums_kernel` adds, beside each other."""
    columns = out.numel()
    blocks = -(-t.shape[0] // ROWS.value)
    groups = -(-blocks // ROWS.value)
    by_block = torch.empty(blocks * columns, dtype=torch.float64, device=t.device)
    by_group = torch.empty(groups * columns, dtype=torch.float64, device=t.device)
    blocks_kernel[(-(-by_block.numel() // LANES),)](
        t, factors, factors.stride(0), by_block, inverse_unit, t.shape[0], columns, by_block.numel(),
        _wide(out), grid, LANES, **OPTIONS,
    )  # fmt: skip
    groups_kernel[(-(-by_group.numel() // LANES),)](
        by_block, by_group, blocks, columns, by_group.numel(), LANES, **OPTIONS
    )
    return by_group, groups


def _wide(out: torch.Tensor) -> Any:
    return tl.float64 if out.dtype == torch.float64 else tl.float32


@triton.jit
def squares_kernel(x, out, columns, stretches, WIDE: tl.constexpr):
    """The sum of squares of one stretch of one row, to out[row, stretch]."""
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = stretch.to(tl.int64) * (PIECE * PIECES)
    total = stretch_squares(x + row * columns + begin, columns - begin, WIDE)
    tl.store(out + row * stretches + stretch, total)


@triton.jit
def stretch_squares(x, left, WIDE: tl.constexpr):
    """The sum of squares of a stretch that begins at x, of which so many numbers are left."""
    piece = tl.arange(0, PIECES)
    element = piece[:, None] * PIECE + tl.arange(0, 16)[None, :]
    sums = tl.zeros((PIECES, 16), tl.float64)
    i = 0
    while i * 16 < tl.minimum(left, PIECE):
        j = element + i * 16
        v = tl.load(x + j, j < left, 0.0).to(WIDE).to(tl.float64)
        sums += v * v
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
    return total


@triton.jit
def add_stretches_kernel(parts, out, stretches):
    """out[row] += the row's stretches, which are added in order first."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((), tl.float64)
    i = 0
    while i < stretches:
        total += tl.load(parts + row * stretches + i)
        i += 1
    tl.store(out + row, tl.load(out + row) + total)


@triton.jit
def root_kernel(numbers):
    """The square root in place: torch's on the CPU need not be the nearest number."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(numbers + row, tl.sqrt(tl.load(numbers + row)))


@triton.jit
def _clamped_lanes(
    x, norms, element, rows, limit, inverse_unit, WIDE: tl.constexpr, GRID: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """The lanes of pieces, of which the first elements are given. Without masks, a WHOLE group is read by vectors.

    Norms are written apart, from numbers that are near by then: no load waits behind a write.
    """
    lanes = tl.zeros((GROUP_PIECES, NUMBER_LANES), tl.float64 if GRID else WIDE)
    for i in tl.static_range(PIECE // NUMBER_LANES):
        j = element + i * NUMBER_LANES
        v = (tl.load(x + j) if WHOLE else tl.load(x + j, j < rows, 0.0)).to(WIDE)
        magnitude = tl.abs(v)
        kept = tl.where(magnitude < float("inf"), tl.minimum(tl.maximum(v, -limit), limit), 0.0)
        lanes += _cut(kept.to(tl.float64) * fp64(inverse_unit)) if GRID else kept
    for i in tl.static_range(PIECE // NUMBER_LANES):
        j = element + i * NUMBER_LANES
        if WHOLE:
            tl.store(norms + j, tl.abs(tl.load(x + j).to(WIDE)).to(tl.float64))
        else:
            tl.store(norms + j, tl.abs(tl.load(x + j, j < rows, 0.0).to(WIDE)).to(tl.float64), j < rows)
    return lanes


@triton.jit(do_not_specialize=["bound", "inverse_unit", "rows"])
def numbers_kernel(x, norms, sums, bound, inverse_unit, rows, WIDE: tl.constexpr, GRID: tl.constexpr):
    """The sum of a group of clamped numbers, and their norms. A piece's number i goes to lane i mod 64."""
    group = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, GROUP_PIECES)
    element = (group * GROUP_PIECES + piece)[:, None] * PIECE + tl.arange(0, NUMBER_LANES)[None, :]
    limit = fp64(bound).to(WIDE)  # exact
    if (group + 1) * (GROUP_PIECES * PIECE) <= rows:
        lanes = _clamped_lanes(x, norms, element, rows, limit, inverse_unit, WIDE, GRID, True)
    else:
        lanes = _clamped_lanes(x, norms, element, rows, limit, inverse_unit, WIDE, GRID, False)
    half = tl.sum(lanes.reshape(GROUP_PIECES, 2, 32), axis=1)  # two numbers each: one addition, so one order
    half = tl.sum(half.reshape(GROUP_PIECES, 2, 16), axis=1)
    half = tl.sum(half.reshape(GROUP_PIECES, 2, 8), axis=1)
    half = tl.sum(half.reshape(GROUP_PIECES, 2, 4), axis=1)
    half = tl.sum(half.reshape(GROUP_PIECES, 2, 2), axis=1)
    pieces = tl.sum(half, axis=1).to(tl.float64)
    total = tl.zeros((), tl.float64)
    for i in tl.static_range(GROUP_PIECES):  # one after the other: zeros change nothing
        total += tl.sum(tl.where(piece == i, pieces, 0.0), axis=0)
    tl.store(sums + group, total)


@triton.jit
def natural_log(u):
    """ln u for normal fp64 numbers in (0, 1]."""
    half_root = 0x3FE6A09E667F3BCD
    bits = u.to(tl.int64, bitcast=True) + (0x3FF0000000000000 - half_root)
    k = (bits >> 52).to(tl.float64) - 1023.0
    f = ((bits & 0x000FFFFFFFFFFFFF) + half_root).to(tl.float64, bitcast=True) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (0.3999999999940941908 + w * (0.2222219843214978396 + w * 0.1531383769920937332))
    inner = 0.2857142874366239149 + w * (0.1818357216161805012 + w * 0.1479819860511658591)
    odd = z * (0.6666666666666735130 + w * inner)
    square = 0.5 * f * f
    low = k * 1.90821492927058770002e-10
    return k * 6.93147180369123816490e-01 - ((square - (s * (square + (even + odd)) + low)) - f)


@triton.jit
def sine_cosine(x):
    """Sine and cosine for |x| <= pi/4."""
    z = x * x
    rs = -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10
    rs = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * (2.75573137070700676789e-06 + z * rs))
    rc = 2.08757232129817482790e-09 + z * -1.13596475577881948265e-11
    rc = 2.48015872894767294178e-05 + z * (-2.75573143513906633035e-07 + z * rc)
    rc = z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * rc))
    half = 0.5 * z
    w = 1.0 - half
    return x + (z * x) * (-1.66666666666666324348e-01 + z * rs), w + (((1.0 - w) - half) + z * rc)


@triton.jit
def normals(block, key, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    """Two normals from each four words of BLOCKS blocks of keystream 0, in order."""
    PAIRS: tl.constexpr = BLOCKS * (4 if CHACHA else 1)
    words = keystream_words(block, 0, key, CHACHA, BLOCKS).to(tl.uint32, bitcast=True).to(tl.int64)
    even, odd = tl.split(words.reshape(PAIRS, 2, 2))  # words 0 and 2, words 1 and 3
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    u = (w1.to(tl.float64) * 4294967296.0 + (w0.to(tl.float64) + 0.5)) * 5.421010862427522e-20
    radius = tl.sqrt(-2.0 * natural_log(u))
    fraction = (w3 & 0x3FFFFFFF).to(tl.float64) - 536870912.0
    turn = (fraction * 4294967296.0 + (w2.to(tl.float64) + 0.5)) * 2.168404344971009e-19
    sine, cosine = sine_cosine(turn * 1.5707963267948966)
    quadrant = w3 >> 30
    swap = (quadrant & 1) != 0
    a, b = tl.where(swap, sine, cosine), tl.where(swap, cosine, sine)
    first = radius * tl.where(((quadrant + 1) & 2) != 0, -a, a)
    second = radius * tl.where((quadrant & 2) != 0, -b, b)
    return tl.join(first, second).reshape(PAIRS * 2)


@triton.jit
def _cut(units):
    """Cut towards zero."""
    return tl.where(units < 0, tl.ceil(units), tl.floor(units))


@triton.jit
def _scaled(v, scale, inverse_unit, WIDE: tl.constexpr, GRID: tl.constexpr):
    """What is added of a row: v times its scale, which is rounded down, or whole units of that."""
    if GRID:
        result = _cut(v.to(tl.float64) * (scale * fp64(inverse_unit)))  # exact: a power of two
    else:
        narrow = scale.to(WIDE)
        if WIDE == tl.float32:  # noqa: SIM300
            bits = narrow.to(tl.int32, bitcast=True) - 1
            rounded_down = bits.to(tl.float32, bitcast=True)
            narrow = tl.where(narrow.to(tl.float64) > scale, rounded_down, narrow)
        result = v * narrow
    return result


@triton.jit(do_not_specialize=["inverse_unit", "rows", "columns", "size"])
def blocks_kernel(
    x, scales, stride, out, inverse_unit, rows, columns, size,
    WIDE: tl.constexpr, GRID: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The sums of blocks of ROWS scaled rows, [blocks, columns]: a lane has one, and adds its rows in order."""
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    row, column = lane // columns * ROWS, lane % columns
    sums = tl.zeros((LANES,), tl.float64 if GRID else WIDE)
    for i in range(ROWS):
        inside = (lane < size) & (row + i < rows)
        scale = tl.load(scales + (row + i) * stride, inside, 0.0)
        counted = inside & (scale != 0)  # a row left out is not read
        v = tl.load(x + (row + i) * columns + column, counted, 0.0).to(WIDE)
        sums = tl.where(counted, sums + _scaled(v, scale, inverse_unit, WIDE, GRID), sums)
    tl.store(out + lane, sums.to(tl.float64), lane < size)


@triton.jit(do_not_specialize=["blocks", "columns", "size"])
def groups_kernel(parts, out, blocks, columns, size, LANES: tl.constexpr):
    """The sums of groups of ROWS blocks, [groups, columns], likewise."""
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    block, column = lane // columns * ROWS, lane % columns
    sums = tl.zeros((LANES,), tl.float64)
    for i in range(ROWS):
        inside = (lane < size) & (block + i < blocks)
        part = tl.load(parts + (block + i) * columns + column, inside, 0.0)
        sums = tl.where(inside, sums + part, sums)
    tl.store(out + lane, sums, lane < size)


@triton.jit(do_not_specialize=["size", "divisor", "unit", "inverse_unit"])
def sums_kernel(
    x, scales, stride, out, key, size, divisor, unit, inverse_unit, rows, columns, first,
    WIDE: tl.constexpr, GRID: tl.constexpr, NOISY: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """(Sum of scaled rows + noise) / divisor, columns of BLOCKS cipher blocks.

    SPLIT: the rows are sums of groups, which are added in order as they are. GRID is for discrete noise, whose sums are
    of integers. `size` is the noise's, in units where GRID. It, `divisor`, `unit` and `inverse_unit` are the bits of
    fp64 numbers.
    """
    SUM: tl.constexpr = tl.float64 if GRID else WIDE
    PER_BLOCK: tl.constexpr = 8 if CHACHA else 2
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    column = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)  # `first` is a multiple of 8
    inside = column < columns
    total = tl.zeros((TILE,), tl.float64)
    group = 0
    while group < rows:
        if SPLIT:
            start = tl.zeros((TILE,), tl.int32) + group
            for i in tl.static_range(UNDER_WAY):  # zeros change nothing
                there = inside & (start + i < rows)
                total += tl.load(x + (start + i).to(tl.int64) * columns + column, there, 0.0)
            group += UNDER_WAY
        else:
            subtotal = tl.zeros((TILE,), tl.float64)
            block = group
            while block < tl.minimum(rows, group + ROWS * ROWS):
                sums = tl.zeros((TILE,), SUM)
                row = block
                while row < tl.minimum(rows, block + ROWS):
                    scale = tl.load(scales + row.to(tl.int64) * stride)
                    if scale != 0:  # a row left out is not read
                        v = tl.load(x + row.to(tl.int64) * columns + column, inside, 0.0).to(WIDE)
                        sums += _scaled(v, scale, inverse_unit, WIDE, GRID)
                    row += 1
                subtotal += sums.to(tl.float64)
                block += ROWS
            total += subtotal
            group += ROWS * ROWS
    if GRID:
        if NOISY:
            s = fp64(size).to(tl.int64)
            total += discrete_gaussian(first + column, inside, s, load_key(key, CHACHA), CHACHA).to(tl.float64)
        total *= fp64(unit)
    elif NOISY:
        start = first // PER_BLOCK + tl.program_id(0).to(tl.int64) * BLOCKS
        total += fp64(size) * normals(start, load_key(key, CHACHA), CHACHA, BLOCKS)
    tl.store(out + column, (total / fp64(divisor)).to(WIDE), inside)
