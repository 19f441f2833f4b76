# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels.two_point_threshold`: the integers by which a weight's report is decided."""

from __future__ import annotations

import torch

from ldpkernels import launch
from ldpkernels.inputs.memory import locate
from ldpkernels.laws.registry import law_table
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.laws.weightwise import Output
from ldpkernels.ops.define import define


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
