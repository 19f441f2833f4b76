# SPDX-License-Identifier: Apache-2.0
"""The norm of whole vectors in Triton, and other sums of all their stretches, in the order of csrc/order.h."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.common.arrays import Array, Spans
from ldpkernels.triton import launch
from ldpkernels.triton.order import OPTIONS as WIDE_OPTIONS
from ldpkernels.triton.order import STRETCH, stretch_squares
from ldpkernels.triton.table import SPAN, Columns, Part, parts_by, places, row_of
from ldpkernels.triton.weights import BF16, F16, F32, F64

PARTS = Columns(*SPAN, "part")  # the number of its first stretch among all
AT_ONCE = tl.constexpr(8)


def norm(spans: Spans, device: torch.device) -> float:
    """The Euclidean norm of all weights together, in the bits of the CPU's. The host waits for it."""

    def fill(one: launch.Launch, parts: torch.Tensor) -> None:
        squares_kernel[(one.programs,)](one.table, parts, *one.numbers, **WIDE_OPTIONS)

    return total_of_stretches(spans, device, fill, root=True)


def total_of_stretches(
    spans: Spans, device: torch.device, fill: Callable[[launch.Launch, torch.Tensor], None], *, root: bool
) -> float:
    """What `fill` writes for every stretch, added in order, or its square root. The host waits for it."""
    if not spans["numel"].any():
        return 0.0
    stretches = _counts(spans)
    found = torch.empty(1, dtype=torch.float64, device=device)
    with launch.launching(device):
        parts = torch.empty(int(stretches.sum()), dtype=torch.float64, device=device)
        for one in launch.tables.get(("stretches", device, spans.tobytes()), device, lambda: _stretches(spans)):
            fill(one, parts)
        counts = launch.to_device(stretches, device)
        total_kernel[(1,)](counts, parts, found, len(spans), root, **launch.OPTIONS)
        return float(found.item())


def _counts(spans: Spans) -> Array:
    """How many stretches each tensor has."""
    return -(-spans["numel"] // STRETCH.value)


def _stretches(spans: Spans) -> list[Part]:
    counts = _counts(spans)

    def part(dtype: int, spans: Spans, first: Array) -> Part:
        columns, programs = places(spans, _counts(spans))
        return Part(programs, PARTS.table(len(spans), columns | {"part": first}), (len(spans), dtype))

    return parts_by(spans["dtype"], spans, np.cumsum(counts) - counts, part)


@triton.constexpr_function
def _numbers(DTYPE):
    """A format's type: pointers to it load numbers."""
    names = {F32.value: tl.float32, F64.value: tl.float64, BF16.value: tl.bfloat16, F16.value: tl.float16}
    return names[DTYPE]


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["table", "parts"])
def squares_kernel(table, parts, rows, DTYPE: tl.constexpr):
    """The sum of squares of one stretch of one tensor."""
    program = tl.program_id(0)
    row = row_of(table, rows, program, PARTS.width)
    stretch = program - tl.load(row + PARTS.program)
    begin = stretch.to(tl.int64) * STRETCH
    NUMBER: tl.constexpr = _numbers(DTYPE)
    WIDE: tl.constexpr = tl.float64 if DTYPE == F64 else tl.float32
    data = tl.load(row + PARTS.data).to(tl.pointer_type(NUMBER)) + begin
    total = stretch_squares(data, tl.load(row + PARTS.numel) - begin, WIDE)
    tl.store(parts + tl.load(row + PARTS.part) + stretch, total)


@triton.jit(do_not_specialize=["spans"])
def total_kernel(counts, parts, out, spans, ROOT: tl.constexpr):
    """Stretches of a tensor in order, tensors in order, or the root of that. Zeros behind the last change nothing."""
    total = tl.zeros((), tl.float64)
    span = 0
    while span < spans:
        count = tl.load(counts + span)
        squares = tl.zeros((), tl.float64)
        i = tl.zeros((), tl.int64)
        while i < count:
            for _ in tl.static_range(AT_ONCE):
                squares += tl.load(parts + i, i < count, 0.0)
                i += 1
        total += squares
        parts += count
        span += 1
    if ROOT:
        total = tl.sqrt(total)
    tl.store(out, total)
