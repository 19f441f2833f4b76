# SPDX-License-Identifier: Apache-2.0
"""Majority votes on a device: one launch, no synchronization."""

from __future__ import annotations

import torch

from ldpkernels.triton.launch import _launching
from ldpkernels.triton.votes import majority_kernel

BLOCK = 256


def run(votes: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and keeps of contiguous votes. A number that is no class is a vote for nobody."""
    parties, columns = votes.shape
    labels = votes.new_empty(columns)
    keep = votes.new_empty(columns, dtype=torch.bool)
    if columns:
        with _launching(votes.device):
            majority_kernel[(-(-columns // BLOCK),)](votes, labels, keep, parties, columns, classes, BLOCK)
    return labels, keep
