# SPDX-License-Identifier: Apache-2.0
"""The operations of every mechanism in ldpkernels/laws/registry.py: in place, and as a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ldpkernels import launch
from ldpkernels.inputs.checks import checked_tensors
from ldpkernels.inputs.spans import span_table
from ldpkernels.inputs.views import contiguous, through
from ldpkernels.laws.registry import MECHANISMS, executed, mechanism_named
from ldpkernels.ops.define import Operation, define, no_output
from ldpkernels.wire.codec import codec_of

_ARGUMENTS = "Tensor key, float[] c, float[] r, float eps"


@dataclass(frozen=True)
class Operations:
    """What `perturb_` and `report` call."""

    perturb: Operation
    report: Operation


def _operations(name: str, kernel: str) -> Operations:
    def perturb_(tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float) -> None:
        dtypes, device, plain = checked_tensors(tensors, key)
        mechanism, laws = executed(name, eps, c, r, dtypes, "values")

        def run(flat: Sequence[torch.Tensor]) -> None:
            spans = span_table([t.data_ptr() for t in flat], [0] * len(flat), [t.numel() for t in flat], dtypes)
            launch.run(mechanism.kernel, "values", spans, laws, key, device)

        if plain:
            run(tensors)
        else:
            through(tensors, contiguous(tensors), run)
        torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])

    def report(
        tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
    ) -> torch.Tensor:
        dtypes, device, plain = checked_tensors(tensors, key)
        mechanism, laws = executed(name, eps, c, r, dtypes, "report")
        flat = tensors if plain else contiguous(tensors)
        sizes, codec = [t.numel() for t in flat], codec_of(mechanism.reported)
        payload = torch.empty(codec.payload_bytes(sizes), dtype=torch.uint8, device=key.device)
        outs = [payload.data_ptr() + offset for offset in codec.offsets(sizes)]
        spans = span_table([t.data_ptr() for t in flat], outs, sizes, dtypes)
        launch.run(mechanism.kernel, mechanism.reported, spans, laws, key, device, payload)
        return payload

    def fake_report(
        tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
    ) -> torch.Tensor:
        no_output(tensors, key)
        size = codec_of(mechanism_named(name, eps).reported).payload_bytes([t.numel() for t in tensors])
        return torch.empty(size, dtype=torch.uint8, device=key.device)

    return Operations(
        define(f"{kernel}_(Tensor(a!)[] tensors, {_ARGUMENTS}) -> ()", perturb_, no_output),
        define(f"{kernel}_report(Tensor[] tensors, {_ARGUMENTS}) -> Tensor", report, fake_report),
    )


OPERATIONS = {name: _operations(name, kind.kernel) for name, kind in MECHANISMS.items()}
