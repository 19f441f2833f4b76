# SPDX-License-Identifier: Apache-2.0
"""Quantiles of finite weights in Triton, exactly, by selection: nothing is sorted and the host waits once.

A number's bits become an integer in the numbers' order. Its digits, 8 bits at a time from the highest, are counted over
all weights whose higher digits are those found so far; the digit in which a rank falls is the next one found.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Floats, Integers, Spans
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.inputs.flat import interpolated
from ldpkernels.triton import launch
from ldpkernels.triton import table as tables
from ldpkernels.triton.table import SPAN, Columns, Part, row_of
from ldpkernels.triton.weights import bits_of, from_bits

DIGIT = tl.constexpr(8)  # bits that are found in a pass: more make a count cost more than another pass
BINS = tl.constexpr(1 << 8)
TILE = tl.constexpr(2048)
PROGRAMS = 4096
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
COLUMNS = Columns(*SPAN, "layer")


def quantiles(spans: Spans, layers: Integers, finite: Integers, q: Floats, device: torch.device) -> Floats:
    """The quantiles q, from 0 to 1, of each layer's finite weights, as np.quantile gives them: [layers, len(q)].

    `layers` is the layer of each span, `finite` how many finite weights a layer has, 1 or more.
    """
    return interpolated(finite, q, lambda ranks: order_statistics(spans, layers, ranks, device))


def order_statistics(spans: Spans, layers: Integers, ranks: Integers, device: torch.device) -> Floats:
    """The finite weights of each layer with these ranks, [layers, ranks]: the smallest has rank 0.

    Weights are read once for each run of ranks whose digits so far are the same: neighbours come together.
    """
    wide = bool((spans["dtype"] == FLOAT64.code).any())
    step = int(DIGIT)
    shifts = range((64 if wide else 32) - step, -step, -step)
    count, ranked = ranks.shape
    with launch.launching(device):
        start = np.stack([np.zeros_like(ranks), ranks])  # digits found, and the rank among the weights that have them
        state = launch.to_device(start, device)
        counts = torch.zeros((len(shifts), count, ranked, int(BINS)), dtype=torch.int64, device=device)
        known = "quantiles", device, spans.tobytes(), layers.tobytes()
        launches = launch.tables.get(known, device, lambda: plan_of(spans, layers))
        for of_pass, shift in zip(counts, shifts, strict=True):
            for one in launches:
                count_kernel[(one.programs,)](one.table, state, of_pass, shift, *one.numbers, ranked, wide, **OPTIONS)
            before, state = state, torch.empty_like(state)
            choose_kernel[(count * ranked,)](before, of_pass, state, count * ranked, ranked, **OPTIONS)
        keys = state[0].cpu().numpy()
    if wide:
        return np.where(keys < 0, keys ^ np.int64(-(2**63)), ~keys).view(np.float64)
    keys = keys.astype(np.uint32)
    return np.where(keys >> 31, keys ^ np.uint32(2**31), ~keys).view(np.float32).astype(np.float64)


def plan_of(spans: Spans, layers: Integers) -> list[Part]:
    """A launch for all tensors of a dtype whose weights start at a multiple of 16 bytes, and one for its others."""

    def part(kind: int, spans: Spans, layers: Integers) -> Part:
        tiles_of = -(-spans["numel"] // int(TILE))
        tiles = int(max(1, tiles_of.sum() // PROGRAMS))
        columns, programs = tables.places(spans, -(-tiles_of // tiles))
        table = COLUMNS.table(len(spans), columns | {"layer": layers})
        return Part(programs, table, (len(spans), tiles, kind // 2, bool(kind % 2)))

    return tables.parts_by(spans["dtype"] * 2 + (spans["data"] % 16 == 0), spans, layers, part)


@triton.jit
def _digits(x, WIDE: tl.constexpr):
    """Integers in the order of numbers, as int64; -0 is 0."""
    if WIDE:
        bits = (x.to(tl.float64) + 0.0).to(tl.int64, bitcast=True)
        return tl.where(bits < 0, ~bits, bits ^ -0x8000000000000000)
    else:
        bits = (x + 0.0).to(tl.int32, bitcast=True)
        return tl.where(bits < 0, ~bits, bits ^ -0x80000000).to(tl.uint32, bitcast=True).to(tl.int64)


@triton.jit(
    do_not_specialize=["shift", "rows", "tiles"],
    do_not_specialize_on_alignment=["table", "state", "counts"],
)
def count_kernel(
    table, state, counts, shift, rows, tiles,
    DTYPE: tl.constexpr, ALIGNED: tl.constexpr, RANKS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """counts[layer, rank, digit] += how many weights of some tiles have the digits found for the rank, then this one.

    Of ranks in a row for which the same digits were found, the first counts for all.
    """
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    numel, layer = tl.load(row + COLUMNS.numel), tl.load(row + COLUMNS.layer)
    start = (program - tl.load(row + COLUMNS.program)) * tiles * TILE
    end = tl.minimum(start + tiles.to(tl.int64) * TILE, numel)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(bits_of(DTYPE)))
    bin_number = tl.arange(0, BINS)
    last = tl.zeros((), tl.int64) - 1
    for r in tl.static_range(RANKS):
        found = tl.load(state + layer * RANKS + r)
        total = tl.zeros((BINS,), tl.int64)
        at = tl.where(found == last, end, start)
        last = found
        while at < end:
            e = at + tl.arange(0, TILE)
            if at + TILE <= end:
                pointers = data + e
                if ALIGNED:
                    pointers = tl.max_contiguous(tl.multiple_of(pointers, 16), TILE)
                loaded = tl.load(pointers)
            else:
                loaded = tl.load(data + e, e < end, 0)
            x = from_bits(loaded, DTYPE)
            digits = _digits(x, WIDE).to(tl.uint64, bitcast=True) >> shift
            same = (digits >> DIGIT).to(tl.int64, bitcast=True) == found
            digit = (digits & (BINS - 1)).to(tl.int32)
            total += tl.histogram(digit, BINS, mask=(e < end) & (x - x == 0) & same).to(tl.int64)
            at += TILE
        tl.atomic_add(counts + (layer * RANKS + r) * BINS + bin_number, total, total > 0, sem="relaxed")


@triton.jit(do_not_specialize=["ranks"], do_not_specialize_on_alignment=["state", "counts", "after"])
def choose_kernel(state, counts, after, ranks, RANKS: tl.constexpr):
    """The digit in which a rank falls, and the rank among the weights that have it, to `after`."""
    i = tl.program_id(0)
    found, rank = tl.load(state + i), tl.load(state + ranks + i)
    counted_by = i
    while (counted_by % RANKS > 0) & (tl.load(state + tl.maximum(counted_by - 1, 0)) == found):
        counted_by -= 1
    digit = tl.arange(0, BINS)
    counted = tl.load(counts + counted_by.to(tl.int64) * BINS + digit)
    before = tl.cumsum(counted, axis=0) - counted
    here = (before <= rank) & (rank < before + counted)
    tl.store(after + i, (found << DIGIT) | tl.sum(tl.where(here, digit, 0), axis=0))
    tl.store(after + ranks + i, rank - tl.sum(tl.where(here, before, 0), axis=0))
