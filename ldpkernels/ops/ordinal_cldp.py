# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels.ordinal_cldp_` and `ordinal_cldp_sample`."""

from __future__ import annotations

import torch

from ldpkernels import launch
from ldpkernels.inputs.checks import check_key, refuse_freed, refuse_outside
from ldpkernels.inputs.memory import contiguous, locate
from ldpkernels.inputs.spans import integer_span
from ldpkernels.laws.ordinal_cldp_integers import Noise
from ldpkernels.laws.ordinal_cldp_thresholds import Rounding, integer_laws, weight_laws
from ldpkernels.ops.define import define, no_output, refuse_apart


def _ordinal_cldp_(
    tensors: list[torch.Tensor],
    key: torch.Tensor,
    alpha: list[float],
    c: float,
    rho: int,
    mechanism: Noise,
    rounding: Rounding,
) -> None:
    weights = locate(tensors, key=key, written=True)
    laws = weight_laws(alpha, c, rho, weights.dtypes, mechanism, rounding)
    launch.overwrite("ordinal_cldp", weights, laws, key)


def _ordinal_cldp_sample(v: torch.Tensor, key: torch.Tensor, alpha: float, M: int, mechanism: Noise) -> torch.Tensor:
    check_integers(v)
    check_key(key, v.device)
    laws = integer_laws(alpha, M, mechanism)
    (flat,) = contiguous([v])
    if v.numel() and not v.is_cuda:  # a GPU would have to be waited for: there, the kernel clips
        lowest, highest = (int(x) for x in flat.aminmax())
        refuse_outside("v", lowest, highest, M)
    out = torch.empty(v.shape, dtype=torch.int64, device=v.device)
    spans = integer_span(flat.data_ptr(), out.data_ptr(), flat.numel())
    launch.run("ordinal_cldp", "values", spans, laws, key, v.device.type, out)
    return out


def check_integers(v: object) -> None:
    """v is a tensor that the kernel can read."""
    if not isinstance(v, torch.Tensor) or v.is_quantized or v.layout is not torch.strided or v.dtype != torch.int64:
        kind = f"{v.dtype} tensor ({v.layout})" if isinstance(v, torch.Tensor) else type(v).__name__
        raise TypeError(f"v is a {kind}: pass a dense int64 tensor")
    if v.is_meta:
        raise ValueError("v is on the meta device and has no data: materialize it first")
    refuse_freed("v", v)


def _fake_sample(v: torch.Tensor, key: torch.Tensor, alpha: float, M: int, mechanism: str) -> torch.Tensor:
    refuse_apart(key, v.device)
    return torch.empty(v.shape, dtype=torch.int64, device=v.device)


ordinal_cldp_ = define(
    "ordinal_cldp_(Tensor(a!)[] tensors, Tensor key, float[] alpha, float c, int rho, str mechanism, str rounding)"
    " -> ()",
    _ordinal_cldp_,
    no_output,
)
ordinal_cldp_sample = define(
    "ordinal_cldp_sample(Tensor v, Tensor key, float alpha, int M, str mechanism) -> Tensor",
    _ordinal_cldp_sample,
    _fake_sample,
)
