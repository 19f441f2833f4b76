# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels.clipped_noised_sum`: schema, implementation, fake kernel and gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ldpkernels import capabilities
from ldpkernels.inputs.checks import torch_dtype
from ldpkernels.inputs.containers import rows_of
from ldpkernels.laws import clipped_noise as _clipped
from ldpkernels.ops.two_point import _key, _library, _spans, refuse_apart

# C is one bound, or with clipping="per-layer" one for each tensor; divisor 0 stands for the number of rows. `norms` is
# [B, 1], or with "per-layer" [B, tensors], in fp64, and has no gradient.
_library.define(
    "clipped_noised_sum(Tensor[] x, Tensor key, float[] C, float sigma, float divisor, str noise, str clipping)"
    " -> (Tensor[] sums, Tensor norms)"
)

Sums = tuple[list[torch.Tensor], torch.Tensor]


def _clipped_noised_sum(
    x: list[torch.Tensor], key: torch.Tensor, C: list[float], sigma: float, divisor: float, noise: str, clipping: str
) -> Sums:
    if not x:
        raise ValueError("no tensors: there is nothing to add")
    names = [str(i) if len(x) > 1 else "" for i in range(len(x))]
    dtypes = [torch_dtype(name, t, overlapping=True) for name, t in zip(names, x, strict=True)]
    device = x[0].device
    for name, t in zip(names, x, strict=True):
        if t.device != device:
            raise ValueError(f"tensor {name!r} is on {t.device} and the first on {device}: move them to one device")
    rows = rows_of(names, [t.shape for t in x])
    _clipped.check(C, sigma, noise, clipping, len(x))
    divisor = _clipped.divisor_of(divisor, rows)
    key = _key(key, device)
    backend = capabilities.chosen(device.type)
    flat = [t.detach().contiguous().resolve_neg() for t in x]
    sums = [torch.empty(t.shape[1:], dtype=_wide(t.dtype), device=device) for t in x]
    how = (noise, clipping)
    if backend == "triton":
        from ldpkernels.triton.clipped_noise import clipped_sums

        norms = clipped_sums(flat, sums, rows, C, sigma, divisor, how, key)
    else:
        spans = _spans(sums, [s.data_ptr() for s in sums], dtypes)
        spans["data"] = [t.data_ptr() for t in flat]
        if backend == "cuda":
            norms = _run_on_cuda(spans, rows, C, sigma, divisor, how, key)
        else:
            norms = torch.from_numpy(_clipped.run(spans, rows, C, sigma, divisor, how, key))
    return [s.to(t.dtype) for s, t in zip(sums, x, strict=True)], norms


def _run_on_cuda(
    spans: Any, rows: int, C: list[float], sigma: float, divisor: float, how: tuple[str, str], key: torch.Tensor
) -> torch.Tensor:
    """Both passes by the CUDA C++ kernels; the norms. Nothing waits for the device or is copied to it."""
    from ldpkernels import _cuda

    law, limits = _clipped.noise_of(C, sigma, how[0], rows), _clipped.bounds(C, how[1], len(spans))
    norms = torch.empty((rows, len(limits)), dtype=torch.float64, device=key.device)
    size = _cuda.clipped_workspace(spans, rows, len(limits))
    workspace = torch.empty(size, dtype=torch.float64, device=key.device)
    _cuda.clipped_sums(
        spans, np.array(limits, np.float64), rows, law.stddev, divisor, law.unit, law.grid_std,
        key.data_ptr(), 2 * key.numel(), norms.data_ptr(), workspace.data_ptr(),
        key.device.index, torch.cuda.current_stream(key.device).cuda_stream,
    )  # fmt: skip
    return norms


def _fake(
    x: list[torch.Tensor], key: torch.Tensor, C: list[float], sigma: float, divisor: float, noise: str, clipping: str
) -> Sums:
    for tensor in x:
        refuse_apart(key, tensor.device)
    layers = len(x) if clipping == "per-layer" else 1
    norms = torch.empty((x[0].shape[0], layers), dtype=torch.float64, device=x[0].device)
    return [torch.empty(t.shape[1:], dtype=t.dtype, device=t.device) for t in x], norms


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, C, _, divisor, _, clipping = inputs
    _, norms = output
    ctx.mark_non_differentiable(norms)
    ctx.save_for_backward(*x, norms)
    ctx.limits, ctx.divisor = _clipped.bounds(C, clipping, len(x)), divisor


def _backward(ctx: Any, grad_sums: list[torch.Tensor], _: Any) -> Any:
    *x, norms = ctx.saved_tensors
    if torch.is_grad_enabled():
        raise NotImplementedError("clipped sums can be differentiated once: call backward without create_graph=True")
    with torch.no_grad():
        grads = _gradients(x, norms, grad_sums, ctx.limits, ctx.divisor or float(norms.shape[0]))
    return grads, None, None, None, None, None, None


def _gradients(x: Any, norms: Any, grad_sums: Any, limits: list[float], divisor: float) -> list[torch.Tensor]:
    """s g for a row within its bound; s (g - u <u, g>), with u the row over its norm, for a clipped one."""
    scales = _clipped.scales(norms, limits, torch.where)
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


_library.impl("clipped_noised_sum", _clipped_noised_sum, "CPU")
_library.impl("clipped_noised_sum", _clipped_noised_sum, "CUDA")
_library.impl("clipped_noised_sum", torch.library.fallthrough_kernel, "Negative")
torch.library.register_fake("ldpkernels::clipped_noised_sum", _fake, lib=_library)
torch.library.register_autograd("ldpkernels::clipped_noised_sum", _backward, setup_context=_setup, lib=_library)

clipped_noised_sum = torch.ops.ldpkernels.clipped_noised_sum

__all__ = ["clipped_noised_sum"]
