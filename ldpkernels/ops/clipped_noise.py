# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels.clipped_noised_sum`, with its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ldpkernels import launch
from ldpkernels.common.dtypes import Dtype
from ldpkernels.inputs.checks import check_key, torch_dtype
from ldpkernels.inputs.containers import rows_of
from ldpkernels.inputs.memory import contiguous
from ldpkernels.laws import clipped_noise as law
from ldpkernels.ops.define import define, library, refuse_apart

Sums = tuple[list[torch.Tensor], torch.Tensor]


def _clipped_noised_sum(
    x: list[torch.Tensor], key: torch.Tensor, C: list[float], sigma: float, divisor: float, noise: str, clipping: str
) -> Sums:
    if not x:
        raise ValueError("no tensors: there is nothing to add")
    device = x[0].device
    dtypes = checked_rows(x, [str(i) if len(x) > 1 else "" for i in range(len(x))])
    law.check(C, sigma, noise, clipping, dtypes)
    divisor = law.divisor_of(divisor, len(x[0]))
    check_key(key, device)
    sums = [torch.empty(t.shape[1:], dtype=_wide(t.dtype), device=device) for t in x]
    limits, added = law.bounds(C, clipping, len(x)), law.noise_of(C, sigma, noise, len(x[0]))
    norms = launch.clipped_sums(contiguous(x), sums, dtypes, limits, added, divisor, key, device.type)
    if not isinstance(norms, torch.Tensor):
        norms = torch.from_numpy(norms)
    return [s.to(t.dtype) for s, t in zip(sums, x, strict=True)], norms


def checked_rows(x: Sequence[torch.Tensor], names: Sequence[str]) -> list[Dtype]:
    """The formats of matrices of as many rows, on one device."""
    dtypes = [torch_dtype(name, t, overlapping=True) for name, t in zip(names, x, strict=True)]
    for name, t in zip(names, x, strict=True):
        if t.device != x[0].device:
            raise ValueError(
                f"tensor {name!r} is on {t.device} and the first on {x[0].device}: move them to one device"
            )
    rows_of(names, [t.shape for t in x])
    return dtypes


def _fake(
    x: list[torch.Tensor], key: torch.Tensor, C: list[float], sigma: float, divisor: float, noise: str, clipping: str
) -> Sums:
    for tensor in x:
        refuse_apart(key, tensor.device)
    layers = len(x) if clipping == "per-layer" else 1
    norms = torch.empty((x[0].shape[0], layers), dtype=torch.float64, device=x[0].device)
    return [torch.empty(t.shape[1:], dtype=t.dtype, device=t.device) for t in x], norms


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Sums) -> None:
    x, _, C, _, divisor, _, clipping = inputs
    _, norms = output
    ctx.mark_non_differentiable(norms)
    ctx.save_for_backward(*x, norms)
    ctx.limits, ctx.divisor = law.bounds(C, clipping, len(x)), divisor


def _backward(ctx: Any, grad_sums: list[torch.Tensor], _: object) -> tuple[Any, ...]:
    *x, norms = ctx.saved_tensors
    if torch.is_grad_enabled():
        raise NotImplementedError("clipped sums can be differentiated once: call backward without create_graph=True")
    with torch.no_grad():
        grads = _gradients(x, norms, grad_sums, ctx.limits, ctx.divisor or float(norms.shape[0]))
    return grads, None, None, None, None, None, None


def _gradients(
    x: Sequence[torch.Tensor],
    norms: torch.Tensor,
    grad_sums: Sequence[torch.Tensor],
    limits: list[float],
    divisor: float,
) -> list[torch.Tensor]:
    """s g for a row within its bound; s (g - u <u, g>), with u the row over its norm, for a clipped one."""
    if law.is_single([math.prod(t.shape[1:]) for t in x]):
        within = norms[:, 0] < limits[0]  # neither clamped nor poisoned
        return [torch.where(within, grad_sums[0] / divisor, 0.0).to(x[0].dtype).reshape(x[0].shape)]
    scales = law.scales(norms, limits, torch.where)
    flat = [t.reshape(t.shape[0], -1).to(_wide(t.dtype)) for t in x]
    g = [grad.reshape(-1).to(t.dtype) for grad, t in zip(grad_sums, flat, strict=True)]
    dots = [(t @ v).to(torch.float64) for t, v in zip(flat, g, strict=True)]
    if len(limits) == 1:
        dots = [sum(dots[1:], dots[0])] * len(x)
    grads = []
    for i, t in enumerate(flat):
        layer = i if len(limits) > 1 else 0
        s, norm = scales[layer], norms[:, layer]
        clipped = (s < 1) & (s > 0)
        numbers = t.shape[1] if len(limits) > 1 else sum(f.shape[1] for f in flat)
        if numbers == 1:  # a clipped number is +-C whatever it was: exactly zero
            grad = torch.where(clipped, 0.0, s)[:, None] * g[i]
        else:
            along = torch.where(clipped, s * dots[i] / torch.where(clipped, norm * norm, 1.0), 0.0)
            grad = s.to(t.dtype)[:, None] * g[i] - along.to(t.dtype)[:, None] * t
        grad = torch.where((s > 0)[:, None], grad / divisor, 0.0)  # poisoned rows, whose products are NaN
        grads.append(grad.to(x[i].dtype).reshape(x[i].shape))
    return grads


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


# C is one bound, or with clipping="per-layer" one for each tensor; divisor 0 stands for the number of rows. `norms` is
# [B, 1], or with "per-layer" [B, tensors], in fp64, and has no gradient.
clipped_noised_sum = define(
    "clipped_noised_sum(Tensor[] x, Tensor key, float[] C, float sigma, float divisor, str noise, str clipping)"
    " -> (Tensor[] sums, Tensor norms)",
    _clipped_noised_sum,
    _fake,
)
torch.library.register_autograd("ldpkernels::clipped_noised_sum", _backward, setup_context=_setup, lib=library)
