# SPDX-License-Identifier: Apache-2.0
"""Majority votes as section 3.3 of Han and Xue says them, one sample at a time."""

from __future__ import annotations

import numpy as np

from ldpkernels.common.arrays import Array


def majority_vote(votes: Array, classes: int) -> tuple[Array, Array]:
    """Labels and keeps of votes [parties, samples].

    >>> majority_vote(np.array([[0, 2], [0, 1]]), 3)
    (array([0, 1]), array([ True, False]))
    """
    labels, keep = np.empty(votes.shape[1], votes.dtype), np.empty(votes.shape[1], np.bool_)
    for i, ballots in enumerate(votes.T.tolist()):
        counts = [sum(ballot == j for ballot in ballots) for j in range(classes)]
        label = counts.index(max(counts))
        second = max(counts[:label] + counts[label + 1 :], default=0)
        labels[i], keep[i] = label, counts[label] - second > 1
    return labels, keep
