# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels.ordinal_cldp_` and `ordinal_cldp_sample`: schemas, fake kernels and implementations."""

from __future__ import annotations

from typing import Any

import torch

from ldpkernels import _launch_cldp
from ldpkernels.inputs.checks import refuse_outside
from ldpkernels.laws.ordinal_cldp_thresholds import Mechanism
from ldpkernels.ops import two_point as ops

_library: Any = torch.library.Library("ldpkernels", "FRAGMENT")
_library.define(
    "ordinal_cldp_(Tensor(a!)[] tensors, Tensor key, float[] alpha, float c, int rho, str mechanism, str rounding)"
    " -> ()"
)
_library.define("ordinal_cldp_sample(Tensor v, Tensor key, float alpha, int M, str mechanism) -> Tensor")


def _ordinal_cldp_(
    tensors: list[torch.Tensor],
    key: torch.Tensor,
    alpha: list[float],
    c: float,
    rho: int,
    mechanism: Mechanism,
    rounding: str,
) -> None:
    dtypes, device = ops.check(tensors)
    laws = _launch_cldp.weight_laws(alpha, c, rho, dtypes, mechanism, rounding)
    # A view that is not contiguous is perturbed in a copy, in the order of its elements, and written back.
    flat = [t if ops._is_plain(t) else t.contiguous().resolve_neg() for t in tensors]
    _launch_cldp.run(ops._spans(flat, [0] * len(flat), dtypes), laws, ops._key(key, device), device.type)
    for tensor, values in zip(tensors, flat, strict=True):
        if values is not tensor:
            with torch.inference_mode():  # inference tensors and leaves too: nothing may fail after the first write
                tensor.copy_(values)
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


def _ordinal_cldp_sample(
    v: torch.Tensor, key: torch.Tensor, alpha: float, M: int, mechanism: Mechanism
) -> torch.Tensor:
    check_integers(v)
    laws = _launch_cldp.integer_laws(alpha, M, mechanism)
    flat = v.contiguous().resolve_neg()
    if v.numel() and not v.is_cuda:  # a GPU would have to be waited for: there, the kernel clips
        lowest, highest = (int(x) for x in flat.aminmax())
        refuse_outside("v", lowest, highest, M)
    out = torch.empty(v.shape, dtype=torch.int64, device=v.device)
    spans = _launch_cldp.integer_span(flat.data_ptr(), out.data_ptr(), flat.numel())
    _launch_cldp.run(spans, laws, ops._key(key, v.device), v.device.type, out)
    return out


def check_integers(v: Any) -> None:
    """v is a tensor that the kernel can read."""
    if not isinstance(v, torch.Tensor) or v.is_quantized or v.layout is not torch.strided or v.dtype != torch.int64:
        kind = f"{v.dtype} tensor ({v.layout})" if isinstance(v, torch.Tensor) else type(v).__name__
        raise TypeError(f"v is a {kind}: pass a dense int64 tensor")
    if v.is_meta:
        raise ValueError("v is on the meta device and has no data: materialize it first")


def _fake_ordinal_cldp_(
    tensors: list[torch.Tensor],
    key: torch.Tensor,
    alpha: list[float],
    c: float,
    rho: int,
    mechanism: str,
    rounding: str,
) -> None:
    for tensor in tensors:
        ops.refuse_apart(key, tensor.device)


def _fake_sample(v: torch.Tensor, key: torch.Tensor, alpha: float, M: int, mechanism: str) -> Any:
    ops.refuse_apart(key, v.device)
    return torch.empty(v.shape, dtype=torch.int64, device=v.device)


for _name, _implementation, _fake in (
    ("ordinal_cldp_", _ordinal_cldp_, _fake_ordinal_cldp_),
    ("ordinal_cldp_sample", _ordinal_cldp_sample, _fake_sample),
):
    _library.impl(_name, _implementation, "CPU")
    _library.impl(_name, _implementation, "CUDA")
    _library.impl(_name, torch.library.fallthrough_kernel, "Negative")  # the implementations resolve such views
    torch.library.register_fake(f"ldpkernels::{_name}", _fake, lib=_library)

ordinal_cldp_ = torch.ops.ldpkernels.ordinal_cldp_
ordinal_cldp_sample = torch.ops.ldpkernels.ordinal_cldp_sample

__all__ = ["ordinal_cldp_", "ordinal_cldp_sample"]
