# SPDX-License-Identifier: Apache-2.0
"""The operations of every mechanism in ldpkernels/laws/registry.py: in place, and as a report."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ldpkernels import launch
from ldpkernels.inputs.memory import locate
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
        weights = locate(tensors, key=key, written=True)
        mechanism, laws = executed(name, eps, c, r, weights.dtypes, "values")
        launch.overwrite(mechanism.kernel, weights, laws, key)

    def report(
        tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
    ) -> torch.Tensor:
        weights = locate(tensors, key=key)
        mechanism, laws = executed(name, eps, c, r, weights.dtypes, "report")
        sizes, codec = [t.numel() for t in tensors], codec_of(mechanism.reported)
        room = codec.payload_bytes(sizes), codec.offsets(sizes)
        payload = launch.report(mechanism.kernel, mechanism.reported, weights, laws, key, *room)
        return torch.as_tensor(payload)

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
