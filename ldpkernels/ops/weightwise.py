# SPDX-License-Identifier: Apache-2.0
"""The operations of every mechanism in ldpkernels/laws/registry.py, in place and as a report, and thresholds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ldpkernels import launch
from ldpkernels.inputs.memory import locate
from ldpkernels.laws.registry import MECHANISMS, executed, law_table, mechanism_named
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.laws.weightwise import Output
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


def _two_point_threshold(x: torch.Tensor, c: float, r: float, eps: float, output: Output) -> torch.Tensor:
    weights = locate([x])
    laws = law_table(TwoPoint(eps), [c], [r], weights.dtypes, output)
    thresholds = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    key = torch.zeros(1, dtype=torch.int64, device=x.device)  # thresholds draw nothing
    weights.spans["out"] = thresholds.data_ptr()
    launch.run("two_point", "thresholds", weights.spans, laws, key, x.device.type, thresholds)
    return thresholds


def _fake_threshold(x: torch.Tensor, c: float, r: float, eps: float, output: str) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.int64, device=x.device)


two_point_threshold = define(
    "two_point_threshold(Tensor x, float c, float r, float eps, str output) -> Tensor",
    _two_point_threshold,
    _fake_threshold,
    keyed=False,
)
