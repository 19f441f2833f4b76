# SPDX-License-Identifier: Apache-2.0
"""What a server computes: extremes, sums and quantiles of tensors, votes, and sums of reports on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from ldpkernels import _native
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import AnyArray, Floats, Integers, Spans
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.inputs.flat import interpolated
from ldpkernels.launch import proved
from ldpkernels.launch.dispatch import tensors, threads_for

if TYPE_CHECKING:
    import torch

    from ldpkernels.triton.tally import BitTally, ByteTally


def summaries(spans: Spans, device: torch.device | None) -> Sequence[_native.Summary]:
    """Extremes, sums and the count of every span's finite weights, in one pass; `device` is None for arrays."""
    if device is not None and capabilities.chosen("summary", device.type) == "triton":
        proved.of_spans("triton", "summary", "finite", spans, 0, device)
        from ldpkernels.triton import summary

        return summary.summarize(spans, device)
    return _native.summarize(spans, capabilities.host_isa(), threads_for(int(spans["numel"].sum())))


def quantiles(spans: Spans, layers: Integers, finite: Integers, q: Floats, device: torch.device | None) -> Floats:
    """The quantiles q of the finite weights of each layer, [layers, len(q)]; `layers` has the layer of each span."""
    if device is not None and capabilities.chosen("quantiles", device.type) == "triton":
        width = "64 bits" if (spans["dtype"] == FLOAT64.code).any() else "32 bits"
        proved.of_spans("triton", "quantiles", width, spans, 0, device)
        from ldpkernels.triton import quantiles as kernels

        return kernels.quantiles(spans, layers, finite, q, device)

    def select(ranks: Integers) -> Floats:
        parts = [spans[layers == layer] for layer in range(len(ranks))]
        sizes = [int(part["numel"].sum()) for part in parts]
        rows = zip(parts, ranks.tolist(), sizes, strict=True)
        return np.array([_native.order_statistics(part, row, threads_for(size, 1 << 20)) for part, row, size in rows])

    return interpolated(finite, q, select)


def tally(kind: Literal["bits", "bytes"], size: int, device: torch.device) -> BitTally | ByteTally:
    """A sum of no reports yet, of so many bytes each, by Triton's kernels."""
    proved.proved("triton", "tally", kind, ["uint8"], "none", device)
    from ldpkernels.triton import tally as kernels

    return (kernels.BitTally if kind == "bits" else kernels.ByteTally)(size, device)


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
