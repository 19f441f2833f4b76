# SPDX-License-Identifier: Apache-2.0
"""Majority votes in Triton, a column a lane (csrc/cpu/votes.h): one launch, no synchronization."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ldpkernels.triton.launch import launching

BLOCK = 256
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


def majority_vote(votes: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and keeps of contiguous votes. A number that is no class is a vote for nobody."""
    parties, columns = votes.shape
    labels = votes.new_empty(columns)
    keep = votes.new_empty(columns, dtype=torch.bool)
    if columns:
        with launching(votes.device):
            programs = -(-columns // BLOCK)
            majority_kernel[(programs,)](votes, labels, keep, parties, columns, classes, BLOCK, **OPTIONS)
    return labels, keep


@triton.jit
def majority_kernel(votes, labels, keep, parties, columns, classes, BLOCK: tl.constexpr):
    """Write the labels and the keeps of BLOCK columns a program."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    first = tl.zeros([BLOCK], tl.int32)
    second = tl.zeros([BLOCK], tl.int32)
    label = tl.zeros([BLOCK], tl.int32)
    c = 0
    while c < classes:  # NumPy's newer releases and Triton 3.6's interpreter disagree about range() of a tensor
        count = tl.zeros([BLOCK], tl.int32)
        party = 0
        while party < parties:
            vote = tl.load(votes + party.to(tl.int64) * columns + column, mask=inside, other=0)
            count += (vote == c).to(tl.int32)
            party += 1
        above = count > first
        second = tl.maximum(second, tl.where(above, first, count))
        first = tl.where(above, count, first)
        label = tl.where(above, c, label)
        c += 1
    tl.store(labels + column, label.to(labels.dtype.element_ty), mask=inside)
    tl.store(keep + column, first - second > 1, mask=inside)
