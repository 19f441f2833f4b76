# SPDX-License-Identifier: Apache-2.0
"""What ranges follow from: extremes, sums and quantiles of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels import _native
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import Floats, Integers, Spans
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.inputs.flat import interpolated
from ldpkernels.launch import proved
from ldpkernels.launch.dispatch import threads_for

if TYPE_CHECKING:
    import torch


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
