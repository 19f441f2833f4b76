# SPDX-License-Identifier: Apache-2.0
"""Votes: what most parties say of every sample."""

from __future__ import annotations

import numpy as np

from ldpkernels import _native
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import AnyArray
from ldpkernels.launch import proved
from ldpkernels.launch.dispatch import tensors, threads_for


def majority_vote(votes: AnyArray, classes: int, device: str) -> tuple[AnyArray, AnyArray] | None:
    """Labels and keeps of contiguous votes [parties, samples]; None where a vote is none of the classes."""
    name = capabilities.chosen("votes", device)
    if name == "triton":
        from ldpkernels.triton import votes as kernels

        there = tensors([votes])[0]
        proved.proved(name, "votes", "labels", [str(votes.dtype).removeprefix("torch.")], "none", there.device)
        return kernels.majority_vote(there, classes)
    ballots = votes if isinstance(votes, np.ndarray) else votes.numpy()
    if name == "reference":
        from ldpkernels.reference import votes as twin

        known = bool(((ballots >= 0) & (ballots < classes)).all())
        return twin.majority_vote(ballots, classes) if known else None
    labels, keep = np.empty(ballots.shape[1], ballots.dtype), np.empty(ballots.shape[1], np.bool_)
    counted = _native.majority_vote(ballots, classes, labels, keep, name, threads_for(ballots.size, 1 << 20))
    return (labels, keep) if counted else None
