# SPDX-License-Identifier: Apache-2.0
"""Clipped sums of rows of one number each, as losses are: numbers are clamped, and a program adds a group."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ldpkernels.laws.clipped_noise import at_most
from ldpkernels.triton.launch import fp64_bits
from ldpkernels.triton.order import OPTIONS, PIECE, cut, sum_of_lanes
from ldpkernels.triton.weights import fp64

GROUP_PIECES = tl.constexpr(4)  # of so many lanes each
NUMBER_LANES = tl.constexpr(64)
NUMBER_OPTIONS = OPTIONS | {"num_warps": 2}  # four lanes a thread: 16 bytes of fp32


def sums_of_groups(
    x: torch.Tensor, limit: float, inverse_unit: int, grid: bool, wide: tl.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norms of numbers, [rows, 1], and the sums of their groups, which are added in order."""
    rows = x.shape[0]
    groups = -(-rows // (GROUP_PIECES.value * PIECE.value))
    norms = torch.empty((rows, 1), dtype=torch.float64, device=x.device)
    sums = torch.empty(groups, dtype=torch.float64, device=x.device)
    if groups:
        bound = fp64_bits(at_most(limit, np.float64 if wide is tl.float64 else np.float32))
        numbers_kernel[(groups,)](x, norms, sums, bound, inverse_unit, rows, wide, grid, **NUMBER_OPTIONS)
    return norms, sums


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
        lanes += cut(kept.to(tl.float64) * fp64(inverse_unit)) if GRID else kept
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
    pieces = sum_of_lanes(lanes, GROUP_PIECES, NUMBER_LANES).to(tl.float64)
    total = tl.zeros((), tl.float64)
    for i in tl.static_range(GROUP_PIECES):  # one after the other: zeros change nothing
        total += tl.sum(tl.where(piece == i, pieces, 0.0), axis=0)
    tl.store(sums + group, total)
