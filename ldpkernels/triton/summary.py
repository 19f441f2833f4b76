# SPDX-License-Identifier: Apache-2.0
"""Extremes, sums and counts of finite weights in Triton: one pass, with csrc/cpu/summary.h's additions in their order.

A tensor is cut into chunks of 2^16 elements. Element i of a chunk goes to partial sum i mod 16, which takes its
elements in order; the 16 sums of a chunk are added in order, then the chunks of a tensor. A lane is one partial sum, so
that none waits for another, and a program's 32 lanes are two chunks.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels._native import Summary
from ldpkernels.common.arrays import Spans
from ldpkernels.triton import launch
from ldpkernels.triton import table as tables
from ldpkernels.triton.table import SPAN, Columns, Part, row_of
from ldpkernels.triton.weights import bits_of, from_bits

CHUNK = tl.constexpr(1 << 16)
WIDTH = tl.constexpr(16)  # partial sums of a chunk
CHUNKS = tl.constexpr(2)  # of a program
AT_ONCE = tl.constexpr(8)  # elements of a lane that are loaded before the first is added
FIELDS = tl.constexpr(5)  # of a summary
COLUMNS = Columns(*SPAN, "tensor", "part")  # its number, and that of its first chunk among all


EMPTY = Summary(math.inf, -math.inf, 0.0, 0.0, 0)


def summarize(spans: Spans, device: torch.device) -> list[Summary]:
    """The summary of every tensor, in the bits of `_native.summarize`. The host waits once, for all of them."""
    if not spans["numel"].any():
        return [EMPTY] * len(spans)
    parts = torch.empty((_chunks(spans).sum(), int(FIELDS)), dtype=torch.int64, device=device)
    totals = torch.empty((len(spans), int(FIELDS)), dtype=torch.int64, device=device)
    with launch.launching(device):
        known = "summary", device, spans.tobytes()
        for one in launch.tables.get(known, device, lambda: plan_of(spans)):
            rows, dtype = one.numbers
            summary_kernel[(one.programs,)](one.table, parts, rows, dtype, **launch.OPTIONS)
            totals_kernel[(rows,)](one.table, parts, totals, **launch.OPTIONS)
        found = totals.cpu().numpy()
    numbers = found[:, :4].copy().view(np.float64).tolist()
    summaries = [Summary(*four, finite) for four, finite in zip(numbers, found[:, 4].tolist(), strict=True)]
    return [one if size else EMPTY for one, size in zip(summaries, spans["numel"], strict=True)]


def plan_of(spans: Spans) -> list[Part]:
    """A launch for all tensors of a dtype."""
    chunks = _chunks(spans)
    places = np.stack([np.arange(len(spans)), np.cumsum(chunks) - chunks], 1)

    def part(dtype: int, spans: Spans, places: np.ndarray) -> Part:
        columns, programs = tables.places(spans, -(-_chunks(spans) // int(CHUNKS)))
        table = COLUMNS.table(len(spans), columns | {"tensor": places[:, 0], "part": places[:, 1]})
        return Part(programs, table, (len(spans), dtype))

    return tables.parts_by(spans["dtype"], spans, places, part)


def _chunks(spans: Spans) -> np.ndarray:
    return -(-spans["numel"] // int(CHUNK))


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["table", "parts"])
def summary_kernel(table, parts, rows, DTYPE: tl.constexpr):
    """The summaries of two chunks of one tensor."""
    program = tl.program_id(0)
    row = row_of(table, rows, program, COLUMNS.width)
    numel = tl.load(row + COLUMNS.numel)
    first = (program - tl.load(row + COLUMNS.program)) * CHUNKS
    lane = tl.arange(0, CHUNKS * WIDTH)
    begin = (first + lane // WIDTH) * CHUNK
    end = tl.minimum(begin + CHUNK, numel)
    data = tl.load(row + COLUMNS.data).to(tl.pointer_type(bits_of(DTYPE))) + begin + lane % WIDTH
    left = end - begin - lane % WIDTH
    steps = tl.minimum(numel - first * CHUNK, CHUNK)

    low = from_bits(tl.zeros(lane.shape, bits_of(DTYPE)), DTYPE) + float("inf")
    high = -low
    total = tl.zeros(lane.shape, tl.float64)
    squares = tl.zeros(lane.shape, tl.float64)
    finite = tl.zeros(lane.shape, tl.int64)
    i = 0
    while i < steps:
        for _ in tl.static_range(AT_ONCE):
            inside = i < left
            x = from_bits(tl.load(data + i, inside, 0), DTYPE)
            ok = inside & (x - x == 0)  # neither infinite nor NaN
            low = tl.where(ok & (x < low), x, low)
            high = tl.where(ok & (x > high), x, high)
            v = tl.where(ok, x, 0.0).to(tl.float64)
            total += v
            squares += v * v
            finite += ok.to(tl.int64)
            i += WIDTH

    # One lane after the other, where its number is the only one that is not left out.
    place = tl.arange(0, WIDTH)[None, :] + tl.zeros((CHUNKS, 1), tl.int32)
    lows = low.to(tl.float64).reshape(CHUNKS, WIDTH)
    highs = high.to(tl.float64).reshape(CHUNKS, WIDTH)
    totals, all_squares = total.reshape(CHUNKS, WIDTH), squares.reshape(CHUNKS, WIDTH)
    least = tl.zeros((CHUNKS,), tl.float64) + float("inf")
    most = -least
    sums = tl.zeros((CHUNKS,), tl.float64)
    sums_of_squares = tl.zeros((CHUNKS,), tl.float64)
    for i in tl.static_range(WIDTH):
        one = tl.min(tl.where(place == i, lows, float("inf")), axis=1)
        least = tl.where(one < least, one, least)
        one = tl.max(tl.where(place == i, highs, float("-inf")), axis=1)
        most = tl.where(one > most, one, most)
        sums += tl.sum(tl.where(place == i, totals, 0.0), axis=1)
        sums_of_squares += tl.sum(tl.where(place == i, all_squares, 0.0), axis=1)
    chunk = first + tl.arange(0, CHUNKS)
    exists = chunk * CHUNK < numel
    out = parts + (tl.load(row + COLUMNS.part) + chunk) * FIELDS
    tl.store(out, least.to(tl.int64, bitcast=True), exists)
    tl.store(out + 1, most.to(tl.int64, bitcast=True), exists)
    tl.store(out + 2, sums.to(tl.int64, bitcast=True), exists)
    tl.store(out + 3, sums_of_squares.to(tl.int64, bitcast=True), exists)
    tl.store(out + 4, tl.sum(finite.reshape(CHUNKS, WIDTH), axis=1), exists)


@triton.jit
def _number(part, inside, nothing):
    return tl.where(inside, tl.load(part, inside, 0).to(tl.float64, bitcast=True), nothing)


@triton.jit(do_not_specialize_on_alignment=["table", "parts", "totals"])
def totals_kernel(table, parts, totals):
    """The chunks of one tensor, in order."""
    row = table + tl.program_id(0) * COLUMNS.width
    chunks = (tl.load(row + COLUMNS.numel) + CHUNK - 1) // CHUNK
    part = parts + tl.load(row + COLUMNS.part) * FIELDS
    least = tl.zeros((), tl.float64) + float("inf")
    most = -least
    total = tl.zeros((), tl.float64)
    squares = tl.zeros((), tl.float64)
    finite = tl.zeros((), tl.int64)
    i = 0
    while i < chunks:
        for _ in tl.static_range(AT_ONCE):
            inside = i < chunks
            one = _number(part, inside, float("inf"))
            least = tl.where(one < least, one, least)
            one = _number(part + 1, inside, float("-inf"))
            most = tl.where(one > most, one, most)
            total += _number(part + 2, inside, 0.0)
            squares += _number(part + 3, inside, 0.0)
            finite += tl.load(part + 4, inside, 0)
            part += FIELDS
            i += 1
    out = totals + tl.load(row + COLUMNS.tensor) * FIELDS
    tl.store(out, least.to(tl.int64, bitcast=True))
    tl.store(out + 1, most.to(tl.int64, bitcast=True))
    tl.store(out + 2, total.to(tl.int64, bitcast=True))
    tl.store(out + 3, squares.to(tl.int64, bitcast=True))
    tl.store(out + 4, finite)
