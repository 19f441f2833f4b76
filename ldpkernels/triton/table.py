# SPDX-License-Identifier: Apache-2.0
"""The kernels' tables: a row of int64 numbers for each tensor, whose columns the host and the kernels know by name."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import triton
import triton.language as tl
from numpy.typing import ArrayLike

from ldpkernels.common.arrays import Array, Integers, Laws, Spans
from ldpkernels.common.dtypes import FLOAT64

BLOCKS = 32  # cipher blocks a tile: one for each lane of the warp that is a program
LONGEST = 16  # tiles a program: its prologue is then a hundredth of its work
PROGRAMS = 8192  # programs are made longer only when there are more than a GPU runs at once


class Columns(tl.constexpr):
    """The columns of a table. A kernel reads `tl.load(row + COLUMNS.numel)`; `COLUMNS.width` is how many there are.

    `several` are names of more than one column, and how many they have.
    """

    def __init__(self, *names: str, **several: int) -> None:
        self.sizes = dict.fromkeys(names, 1) | several
        starts = np.cumsum([0, *self.sizes.values()]).tolist()
        super().__init__(namedtuple("Columns", (*self.sizes, "width"))(*starts))
        vars(self).update(self.value._asdict())  # a compiled kernel reads .value, an interpreted one this object

    def and_(self, *names: str, **several: int) -> Columns:
        """These columns, and others behind them."""
        return Columns(**self.sizes, **dict.fromkeys(names, 1), **several)

    def table(self, rows: int, columns: Mapping[str, ArrayLike]) -> Integers:
        """A table of all columns."""
        if set(columns) != set(self.sizes):
            raise ValueError(f"a table of {', '.join(self.sizes)} was given {', '.join(columns)}")
        table = np.empty((rows, self.value.width), np.int64)
        for name, size in self.sizes.items():
            start = getattr(self.value, name)
            table[:, start : start + size] = np.asarray(columns[name]).reshape(-1, size)
        return table


# What every table of weights begins with: the tensor, and how a weight becomes an integer (weights.py). `out` is in
# bytes from the first of the kernel's argument of that name. Floating-point numbers are bits: those of fp64 for a
# center, slope or fallback of fp64 tensors, else of fp32.
SPAN = ("program", "data", "out", "numel", "first")
WEIGHTS = Columns(*SPAN, "center", "slope", "fallback", "k_lo", "k_hi", "floor", "ceiling")


@dataclass(frozen=True)
class Part:
    """One launch of a call: its programs, their table, and the numbers that the kernel takes behind it."""

    programs: int
    table: Integers
    numbers: tuple[int | bool, ...]


Plan: TypeAlias = Callable[[Spans, Laws, int], list[Part]]  # the third argument: 16-bit draws of a cipher block


def parts_by(kinds: Integers, spans: Spans, laws: Laws, make: Callable[[int, Spans, Laws], Part]) -> list[Part]:
    """A part for each kind of tensors that there are."""
    parts = []
    for kind in np.unique(kinds[spans["numel"] > 0]):
        chosen = (kinds == kind) & (spans["numel"] > 0)
        parts.append(make(int(kind), spans[chosen], laws[chosen]))
    return parts


def places(spans: Spans, programs_of: Integers) -> tuple[dict[str, ArrayLike], int]:
    """The columns of SPAN for tensors that take so many programs each, in their order, and the number of programs."""
    ends = np.cumsum(programs_of)
    columns: dict[str, ArrayLike] = {"program": ends - programs_of}
    columns |= {name: spans[name].view(np.int64) for name in SPAN[1:]}
    return columns, int(ends[-1])


def span_columns(spans: Spans, per_block: int, blocks: int = BLOCKS) -> tuple[dict[str, ArrayLike], int, int]:
    """The columns of SPAN for tensors of one dtype; tiles a program, and the number of programs."""
    tile = blocks * per_block
    tiles_of = -(-(spans["numel"] + spans["first"] % per_block) // tile)
    tiles = int(np.clip(tiles_of.sum() // PROGRAMS, 1, LONGEST))
    columns, programs = places(spans, -(-tiles_of // tiles))
    return columns, tiles, programs


def weight_columns(spans: Spans, laws: Laws, per_block: int) -> tuple[dict[str, ArrayLike], int, int]:
    """The columns of WEIGHTS for tensors of one dtype; tiles a program, and the number of programs."""
    columns, tiles, programs = span_columns(spans, per_block)
    wide = is_wide(spans)
    columns |= {name: number_bits(laws[name], wide) for name in ("center", "slope", "fallback")}
    columns |= {"k_lo": laws["k_lo"], "k_hi": laws["k_hi"]}
    columns["floor"] = (-_float_at_most(-laws["k_lo"])).view(np.int32)
    columns["ceiling"] = _float_at_most(laws["k_hi"]).view(np.int32)
    return columns, tiles, programs


def is_wide(spans: Spans) -> bool:
    """Whether these tensors, all of one dtype, are fp64."""
    return bool((spans["dtype"] == FLOAT64.code).all())


def number_bits(numbers: Array, wide: bool) -> Array:
    """fp64 numbers as the bits of fp64 (`wide`) or fp32 ones."""
    numbers = np.ascontiguousarray(numbers)
    return numbers.view(np.int64) if wide else numbers.astype(np.float32).view(np.int32)


def _float_at_most(k: Array) -> Array:
    """The largest fp32 numbers that are at most k (csrc/lanes.h)."""
    nearest = k.astype(np.float32)
    return np.where(nearest > k.astype(np.float64), np.nextafter(nearest, np.float32(-np.inf)), nearest)


@triton.jit
def row_of(table, rows, program, WIDTH: tl.constexpr):
    """The last row whose first program is at most this one."""
    found, end = 0, rows
    while end - found > 1:
        middle = (found + end) // 2
        after = tl.load(table + middle * WIDTH + WEIGHTS.program) > program
        found, end = tl.where(after, found, middle), tl.where(after, middle, end)
    return table + found * WIDTH


@triton.jit
def place_of(row, program, tiles, TILE: tl.constexpr, PER_BLOCK: tl.constexpr):
    """A program's first element in its tensor, the cipher block of that element, its tiles, and the tensor's length.

    Tiles start at whole blocks of the keystream: with ChaCha20 the first one may reach back before the tensor.
    """
    numel, first = tl.load(row + WEIGHTS.numel), tl.load(row + WEIGHTS.first)
    start = (program - tl.load(row + WEIGHTS.program)) * tiles * TILE - first % PER_BLOCK
    count = tl.minimum((numel - start + TILE - 1) // TILE, tiles).to(tl.int32)
    return start, (first + start) // PER_BLOCK, count, numel
