# SPDX-License-Identifier: Apache-2.0
"""What ranges follow from: extremes, sums and quantiles of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels import _native, capabilities
from ldpkernels.arrays import Floats, Integers, Spans
from ldpkernels.launch.dispatch import threads_for

if TYPE_CHECKING:
    import torch


def summaries(spans: Spans, device: torch.device | None) -> Sequence[_native.Summary]:
    """Extremes, sums and the count of every span's finite weights, in one pass; `device` is None for arrays."""
    if device is not None and capabilities.chosen("summary", device.type) == "triton":
        from ldpkernels.triton import summary

        return summary.summarize(spans, device)
    return _native.summarize(spans, capabilities.host_isa(), threads_for(int(spans["numel"].sum())))


def quantiles(spans: Spans, layers: Integers, finite: Integers, q: Floats, device: torch.device | None) -> Floats:
    """The quantiles q of the finite weights of each layer, [layers, len(q)]; `layers` has the layer of each span."""
    if device is not None and capabilities.chosen("quantiles", device.type) == "triton":
        from ldpkernels.triton import quantiles as kernels

        return kernels.quantiles(spans, layers, finite, q, device)

    def select(ranks: Integers) -> Floats:
        parts = [spans[layers == layer] for layer in range(len(ranks))]
        sizes = [int(part["numel"].sum()) for part in parts]
        rows = zip(parts, ranks.tolist(), sizes, strict=True)
        return np.array([_native.order_statistics(part, row, threads_for(size, 1 << 20)) for part, row, size in rows])

    return interpolated(finite, q, select)


def interpolated(finite: Integers, q: Floats, select: Callable[[Integers], Floats]) -> Floats:
    """The quantiles q, from 0 to 1, of each layer's finite weights, as np.quantile gives them: [layers, len(q)].

    `finite` is how many a layer has, 1 or more; `select` gives those of ranks, [layers, ranks]: the smallest has 0.
    """
    places = (finite[:, None] - 1) * q[None, :]
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, finite[:, None] - 1)
    ranks = np.stack([below, above], -1)
    ends = select(ranks.reshape(len(finite), -1)).reshape(ranks.shape)
    shares = places - below
    return np.array([[np.quantile(e, s) for e, s in zip(*row, strict=True)] for row in zip(ends, shares, strict=True)])
