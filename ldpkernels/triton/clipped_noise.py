# SPDX-License-Identifier: Apache-2.0
"""Clipped and noised sums in Triton: squares of rows, sums of scaled rows, noise.

The additions are those of docs/mechanisms/clipped_noise.md in the same order, with nothing fused: the bits are the
CPU's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from ldpkernels.inputs.spans import first_elements
from ldpkernels.laws.clipped_noise import Noise, is_single, scales
from ldpkernels.triton.ciphers import load_key
from ldpkernels.triton.discrete_gaussian import discrete_gaussian
from ldpkernels.triton.launch import fp64_bits, is_chacha, launching
from ldpkernels.triton.normals import normals
from ldpkernels.triton.order import OPTIONS, STRETCH, cut, stretch_squares
from ldpkernels.triton.single_numbers import sums_of_groups
from ldpkernels.triton.weights import fp64

BLOCKS = 128  # cipher blocks a program
SAMPLERS = 128  # columns of a program that draws discrete noise: one a thread
ROWS = tl.constexpr(64)  # of a block; blocks of a group
UNDER_WAY = tl.constexpr(16)  # loads of sums of groups before the first is added
AT_ONCE = tl.constexpr(8)  # rows that are loaded before the first is added
FEW = 128  # programs that leave a device idle: then blocks of rows are added beside each other
LANES = 128  # sums of a program that adds rows, one a thread


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
            norms, sums = sums_of_groups(x[0], limits[0], _inverse_unit(noise), noise.unit > 0, _wide(outs[0]))
            _release(sums, sums, sums.numel(), outs[0], key, noise, divisor, 0, True)
            return norms
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
        stretches = -(-out.numel() // STRETCH.value)
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
    """Write the noised sum of rows, or where `split` of sums of groups, to `out`."""
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


def _wide(out: torch.Tensor) -> tl.dtype:
    return tl.float64 if out.dtype == torch.float64 else tl.float32


@triton.jit
def squares_kernel(x, out, columns, stretches, WIDE: tl.constexpr):
    """The sum of squares of one stretch of one row, to out[row, stretch]."""
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = stretch.to(tl.int64) * STRETCH
    total = stretch_squares(x + row * columns + begin, columns - begin, WIDE)
    tl.store(out + row * stretches + stretch, total)


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
def _scaled(v, scale, inverse_unit, WIDE: tl.constexpr, GRID: tl.constexpr):
    """What is added of a row: v times its scale, which is rounded down, or whole units of that."""
    if GRID:
        result = cut(v.to(tl.float64) * (scale * fp64(inverse_unit)))  # exact: a power of two
    else:
        narrow = scale.to(WIDE)
        if WIDE == tl.float32:  # noqa: SIM300
            bits = narrow.to(tl.int32, bitcast=True) - 1
            rounded_down = bits.to(tl.float32, bitcast=True)
            narrow = tl.where(narrow.to(tl.float64) > scale, rounded_down, narrow)
        result = v * narrow
    return result


@triton.jit
def _plus_row(sums, x, scale, inside, inverse_unit, WIDE: tl.constexpr, GRID: tl.constexpr):
    """The row at x added; one of scale 0 may hold NaN: it is left out."""
    v = tl.load(x, inside, 0.0).to(WIDE)
    return tl.where(scale != 0, sums + _scaled(v, scale, inverse_unit, WIDE, GRID), sums)


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
    """The sums of groups of ROWS blocks, [groups, columns]: a lane has one, and adds its blocks in order."""
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
                row = tl.zeros((), tl.int64) + block
                end = tl.minimum(rows, block + ROWS)
                while row + AT_ONCE <= end:
                    for i in tl.static_range(AT_ONCE):
                        scale = tl.load(scales + (row + i) * stride)
                        sums = _plus_row(
                            sums, x + (row + i) * columns + column, scale, inside, inverse_unit, WIDE, GRID
                        )
                    row += AT_ONCE
                while row < end:
                    scale = tl.load(scales + row * stride)
                    sums = _plus_row(sums, x + row * columns + column, scale, inside, inverse_unit, WIDE, GRID)
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
        blocks = start + tl.arange(0, BLOCKS).to(tl.int64)[None, :]
        total += fp64(size) * normals(blocks, 0, load_key(key, CHACHA), CHACHA, 1, BLOCKS).reshape(TILE)
    tl.store(out + column, (total / fp64(divisor)).to(WIDE), inside)
