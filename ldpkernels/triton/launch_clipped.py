# SPDX-License-Identifier: Apache-2.0
"""Clipped sums on a device: both passes and what lies between, without a synchronization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl

from ldpkernels.inputs.spans import first_elements
from ldpkernels.laws import clipped_noise as _clipped
from ldpkernels.triton.clipped_noise import add_stretches_kernel, root_kernel, squares_kernel, sums_kernel
from ldpkernels.triton.launch import _is_chacha, _launching

BLOCKS = 128  # cipher blocks a program
SAMPLERS = 128  # columns of a program that draws discrete noise: one a thread
STRETCH = 1 << 16
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


def run(
    x: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
    rows: int,
    C: Sequence[float],
    sigma: float,
    divisor: float,
    how: tuple[str, str],
    key: torch.Tensor,
) -> torch.Tensor:
    """Write the noised sums of contiguous tensors to `outs`; the norms, [rows, 1] or [rows, tensors]."""
    noise, clipping = how
    law = _clipped.noise_of(C, sigma, noise, rows)
    limits = _clipped.bounds(C, clipping, len(x))
    with _launching(key.device):
        norms = torch.stack(_norms(x, outs, rows, len(limits)), 1)
        scales = torch.stack(_clipped.scales(norms, limits, torch.where), 1)
        noise_size, inverse = float(law.grid_std) if law.unit else law.stddev, 1 / law.unit if law.unit else 0.0
        host = torch.tensor([noise_size, divisor, law.unit, inverse], dtype=torch.float64)
        numbers = host.to(key.device, non_blocking=True)
        firsts = first_elements([out.numel() for out in outs])
        for i, (t, out, first) in enumerate(zip(x, outs, firsts, strict=True)):
            if out.numel():
                columns = scales[:, i if len(limits) > 1 else 0 :]
                _sum(t, columns, out, key, numbers, first, law.unit > 0, noise_size > 0)
    return norms


def _norms(x: Any, outs: Any, rows: int, layers: int) -> list[torch.Tensor]:
    totals = [torch.zeros(rows, dtype=torch.float64, device=x[0].device) for _ in range(layers)]
    for i, (t, out) in enumerate(zip(x, outs, strict=True)):
        stretches = -(-out.numel() // STRETCH)
        if rows and stretches:
            parts = torch.empty(rows, stretches, dtype=torch.float64, device=t.device)
            squares_kernel[(rows, stretches)](t, parts, out.numel(), stretches, _wide(out), **OPTIONS)
            add_stretches_kernel[(rows,)](parts, totals[i if layers > 1 else 0], stretches, **OPTIONS)
    for total in totals if rows else []:
        root_kernel[(rows,)](total, **OPTIONS)
    return totals


def _sum(t: Any, scales: Any, out: Any, key: Any, numbers: Any, first: int, grid: bool, noisy: bool) -> None:
    chacha = _is_chacha(key)
    per_block = 8 if chacha else 2
    blocks = SAMPLERS // per_block if grid else BLOCKS
    tile = blocks * per_block
    sums_kernel[(-(-out.numel() // tile),)](
        t, scales, scales.stride(0), out, key, numbers, t.shape[0], out.numel(), first,
        _wide(out), grid, noisy, chacha, blocks, **OPTIONS,
    )  # fmt: skip


def _wide(out: torch.Tensor) -> Any:
    return tl.float64 if out.dtype == torch.float64 else tl.float32
