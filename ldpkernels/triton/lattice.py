# SPDX-License-Identifier: Apache-2.0
"""Whole vectors on the grid in Triton: weights to integers with the exact sum of their squares, and noise.

docs/mechanisms/vector_gaussian.md has the law; the integers and draws are those of csrc/cpu/lattice.h. One draw in a
hundred leaves something open: a first kernel marks it, a bit each, and a second has a lane for every 32 of these bits,
which takes its elements one after another (triton/lattice_noise.py).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Array, Spans
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.laws.noise_table import NoiseTable
from ldpkernels.triton import launch
from ldpkernels.triton.ciphers import keystream_words, load_key
from ldpkernels.triton.lattice_noise import quick_noise, slow_noise
from ldpkernels.triton.norms import norm as norm
from ldpkernels.triton.rotation import rotate as rotate
from ldpkernels.triton.table import SPAN, Columns, Part, parts_by, place_of, row_of, span_columns
from ldpkernels.triton.weights import bits_of, fp64, from_bits

COLUMNS = Columns(*SPAN)
# Cipher blocks of a tile, by the bits of a draw and by whether the cipher is ChaCha20.
BLOCKS = {32: (32, 32), 64: (128, 32)}
LANES = 32  # of a program that takes what draws have left open


def quantise(spans: Spans, scale: float, key: torch.Tensor | None, stream: int, device: torch.device) -> int:
    """Weights times `scale` as int32 to each span's `out`; the exact sum of their squares, for which the host waits."""
    if not spans["numel"].any():
        return 0
    chacha = key is not None and launch.is_chacha(key)
    found = []
    with launch.launching(device):
        for one in launches(32, spans, chacha, device):
            squares = torch.empty((one.programs, 2), dtype=torch.int64, device=device)
            found.append(squares)
            quantise_kernel[(one.programs,)](
                one.table, key, squares, launch.fp64_bits(scale), stream, *one.numbers, key is not None, chacha,
                BLOCKS[32][chacha], **launch.OPTIONS,
            )  # fmt: skip
        low, high = torch.cat(found).sum(0).tolist()
    return int(low) + (int(high) << 32)


def add_noise(spans: Spans, table: NoiseTable, key: torch.Tensor, bits: int, unit: float, device: torch.device) -> None:
    """The spans' int32 and noise from a table, to their `out`: modulo 2^bits, or as numbers times `unit`."""
    if not spans["numel"].any():
        return
    chacha = launch.is_chacha(key)
    high, low, guide = _on_device(table, device)
    blocks = BLOCKS[64][chacha]
    modulus = 0xFFFFFFFF >> (32 - bits) if bits else 0
    with launch.launching(device):
        for one in launches(64, spans, chacha, device):
            rows, tiles, dtype, aligned = one.numbers
            words = blocks * _per_block(64, chacha) // 32
            pending = torch.empty(one.programs * tiles * words, dtype=torch.int32, device=device)
            law = launch.fp64_bits(unit), modulus, rows, tiles, dtype == FLOAT64.code, bits > 0, table.shift, chacha
            noise_kernel[(one.programs,)](one.table, key, high, guide, pending, *law, blocks, aligned, **launch.OPTIONS)
            rest_kernel[(one.programs,)](
                one.table, key, high, low, guide, pending, *law, blocks, LANES, **launch.OPTIONS
            )


@lru_cache(maxsize=64)
def _on_device(table: NoiseTable, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A table's numbers, copied once; the host waits, so that every stream may read them."""

    def copied(numbers: Array) -> torch.Tensor:
        return torch.from_numpy(numbers).to(device, copy=True)

    return copied(table.high.view(np.int32)), copied(table.low.view(np.int64)), copied(table.guide.view(np.int32))


def _per_block(bits: int, chacha: bool) -> int:
    """Draws of so many bits of a cipher block."""
    return (512 if chacha else 128) // bits


def launches(bits: int, spans: Spans, chacha: bool, device: torch.device) -> list[launch.Launch]:
    """A launch for all tensors of a dtype that begin, and whose `out` does, at a multiple of 16 bytes; one for others.

    Tiles begin at whole cipher blocks of draws of so many bits.
    """
    per_block = _per_block(bits, chacha)
    aligned = (spans["data"] % 16 == 0) & (spans["out"] % 16 == 0)

    def part(kind: int, spans: Spans, _: Array) -> Part:
        columns, tiles, programs = span_columns(spans, per_block, BLOCKS[bits][chacha])
        return Part(programs, COLUMNS.table(len(spans), columns), (len(spans), tiles, kind // 2, bool(kind % 2)))

    known = "lattice", bits, chacha, device, spans.tobytes()
    return launch.tables.get(known, device, lambda: parts_by(spans["dtype"] * 2 + aligned, spans, spans, part))


@triton.jit
def load_tile(pointers, start, numel, SIZE: tl.constexpr, ALIGNED: tl.constexpr):
    """Elements start, start + 1, ... of a tensor, zeros where it has none."""
    e = start + tl.arange(0, SIZE)
    if ALIGNED:
        if (start >= 0) & (start + SIZE <= numel):
            x = tl.load(tl.max_contiguous(tl.multiple_of(pointers + e, 16), SIZE))
        else:
            x = tl.load(pointers + e, (e >= 0) & (e < numel), 0)
    else:
        x = tl.load(pointers + e, (e >= 0) & (e < numel), 0)
    return x


@triton.jit
def store_tile(pointers, x, start, numel, SIZE: tl.constexpr, ALIGNED: tl.constexpr):
    """Write elements start, start + 1, ... of a tensor, those that it has."""
    e = start + tl.arange(0, SIZE)
    if ALIGNED:
        if (start >= 0) & (start + SIZE <= numel):
            tl.store(tl.max_contiguous(tl.multiple_of(pointers + e, 16), SIZE), x)
        else:
            tl.store(pointers + e, x, (e >= 0) & (e < numel))
    else:
        tl.store(pointers + e, x, (e >= 0) & (e < numel))


@triton.jit(
    do_not_specialize=["scale", "stream", "rows", "tiles"], do_not_specialize_on_alignment=["table", "key", "squares"]
)
def quantise_kernel(
    table, key, squares, scale, stream, rows, tiles,
    DTYPE: tl.constexpr, ALIGNED: tl.constexpr, RANDOM: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Tiles of one tensor, cut towards zero or rounded at random. A number that is no int32 becomes one too large."""
    PER_BLOCK: tl.constexpr = 16 if CHACHA else 4
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    start, block, count, numel = place_of(row, program, tiles, TILE, PER_BLOCK)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(bits_of(DTYPE)))
    out = tl.load(row + COLUMNS.out).to(tl.pointer_type(tl.int32))
    low = tl.zeros((TILE,), tl.int64)
    high = tl.zeros((TILE,), tl.int64)
    t = 0
    while t < count:
        begin = start + t * TILE
        z = from_bits(load_tile(data, begin, numel, TILE, ALIGNED), DTYPE).to(tl.float64) * fp64(scale)
        if RANDOM:
            words = keystream_words(block + t * BLOCKS, stream.to(tl.uint32), load_key(key, CHACHA), CHACHA, BLOCKS).to(
                tl.uint32, bitcast=True
            )
            z = tl.floor(z + words.to(tl.float64) * 2.3283064365386963e-10)
        z = tl.where(z > -2147483647.0, z, -2147483647.0)  # a NaN too
        q = tl.where(z < 2147483647.0, z, 2147483647.0).to(tl.int32)
        store_tile(out, q, begin, numel, TILE, ALIGNED)
        e = begin + tl.arange(0, TILE)
        square = tl.where((e >= 0) & (e < numel), q, 0).to(tl.int64)
        square *= square
        low += square & 0xFFFFFFFF
        high += square >> 32
        t += 1
    total = tl.sum(low, axis=0)
    tl.store(squares + 2 * program, total & 0xFFFFFFFF)
    tl.store(squares + 2 * program + 1, tl.sum(high, axis=0) + (total >> 32))


@triton.jit
def _released(q, noise, unit, modulus, WIDE: tl.constexpr, MODULAR: tl.constexpr):
    """What is released of integers and their noise."""
    if MODULAR:
        out = (q + noise) & modulus.to(tl.int32)
    else:
        out = (q.to(tl.float64) + noise.to(tl.float64)) * fp64(unit)
        if not WIDE:
            out = out.to(tl.float32)
    return out


@triton.jit
def _places(row, WIDE: tl.constexpr, MODULAR: tl.constexpr):
    """Pointers to a tensor's integers, and to what is released of them."""
    out = tl.load(row + COLUMNS.out)
    if MODULAR:
        to = out.to(tl.pointer_type(tl.int32))
    elif WIDE:
        to = out.to(tl.pointer_type(tl.float64))
    else:
        to = out.to(tl.pointer_type(tl.float32))
    return tl.load(row + COLUMNS.data).to(tl.pointer_type(tl.int32)), to


@triton.jit(
    do_not_specialize=["unit", "modulus", "rows", "tiles"],
    do_not_specialize_on_alignment=["table", "key", "high", "guide", "pending"],
)
def noise_kernel(
    table, key, high, guide, pending, unit, modulus, rows, tiles,
    WIDE: tl.constexpr, MODULAR: tl.constexpr, SHIFT: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Tiles of one tensor by their 64-bit draws alone; of those that leave something open, a bit in `pending`."""
    PER_BLOCK: tl.constexpr = 8 if CHACHA else 2
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    WORDS: tl.constexpr = TILE // 32
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    start, block, count, numel = place_of(row, program, tiles, TILE, PER_BLOCK)
    data, out = _places(row, WIDE, MODULAR)
    pending += program.to(tl.int64) * tiles * WORDS
    secret = load_key(key, CHACHA)
    t = 0
    while t < count:
        begin = start + t * TILE
        words = keystream_words(block + t * BLOCKS, 0, secret, CHACHA, BLOCKS).to(tl.uint32, bitcast=True)
        lower, upper = tl.split(words.reshape(TILE, 2))
        noise, undecided = quick_noise(upper, lower, high, guide, SHIFT)
        q = load_tile(data, begin, numel, TILE, ALIGNED)
        store_tile(out, _released(q, noise, unit, modulus, WIDE, MODULAR), begin, numel, TILE, ALIGNED)
        e = begin + tl.arange(0, TILE)
        bits = (undecided & (e >= 0) & (e < numel)).to(tl.int32).reshape(WORDS, 32) << tl.arange(0, 32)[None, :]
        tl.store(pending + t * WORDS + tl.arange(0, WORDS), tl.sum(bits, axis=1))
        t += 1


@triton.jit(
    do_not_specialize=["unit", "modulus", "rows", "tiles"],
    do_not_specialize_on_alignment=["table", "key", "high", "low", "guide", "pending"],
)
def rest_kernel(
    table, key, high, low, guide, pending, unit, modulus, rows, tiles,
    WIDE: tl.constexpr, MODULAR: tl.constexpr, SHIFT: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """What is pending of the same tiles: a lane has 32 elements and takes the lowest that is left."""
    PER_BLOCK: tl.constexpr = 8 if CHACHA else 2
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    WORDS: tl.constexpr = TILE // 32
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    start, _, count, _ = place_of(row, program, tiles, TILE, PER_BLOCK)
    data, out = _places(row, WIDE, MODULAR)
    first = tl.load(row + COLUMNS.first)
    pending += program.to(tl.int64) * tiles * WORDS
    secret = load_key(key, CHACHA)
    begin = 0
    while begin < count * WORDS:
        word = begin + tl.arange(0, LANES)
        left = tl.load(pending + word, word < count * WORDS, 0).to(tl.uint32, bitcast=True)
        while tl.max((left != 0).to(tl.int32), axis=0) != 0:
            here = left != 0
            e = tl.where(here, start + word * 32 + _lowest(left), 0)
            noise = slow_noise(first + e, here, high, low, guide, secret, SHIFT, CHACHA).to(tl.int32)
            q = tl.load(data + e, here, 0)
            tl.store(out + e, _released(q, noise, unit, modulus, WIDE, MODULAR), here)
            left &= left - 1
        begin += LANES


@triton.jit
def _lowest(bits):
    """The number of the lowest bit that is set."""
    number = tl.zeros_like(bits).to(tl.int64)
    for log in tl.static_range(5):
        above = (bits & ((1 << (16 >> log)) - 1)) == 0
        number += tl.where(above, 16 >> log, 0)
        bits = tl.where(above, bits >> (16 >> log), bits)
    return number
