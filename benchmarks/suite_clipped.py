# SPDX-License-Identifier: Apache-2.0
"""Clipped and noised sums beside eager torch, torch.compile and Opacus: time, and memory beyond the gradients.

"eager" is the sum as one writes it, which makes a scaled copy; "eager einsum" is its best form, and Opacus's. The floor
reads the gradients twice, as any sum must that clips by the norm of whole rows. Opacus's part is that of
`DPOptimizer.step` without the step.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial

import torch

import ldpkernels
from benchmarks.pairs import Pairs
from benchmarks.results import Case
from ldpkernels import _native

C, SIGMA = 1.0, 1.0
KEY = ldpkernels.key(1)
SHAPES = {"[256, 1M]": (256, 1_000_000), "[4096, 10k]": (4096, 10_000), "[1M] losses": (1_000_000,)}
Work = Callable[[torch.Tensor], object]


def eager(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(len(x), -1)
    clipped = flat * (C / flat.norm(dim=1, keepdim=True)).clamp(max=1.0)
    return clipped.sum(0) + C * SIGMA * torch.randn(flat.shape[1], dtype=x.dtype)


def einsum(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(len(x), -1)
    scale = (C / flat.norm(dim=1)).clamp(max=1.0)
    return torch.einsum("i,ij->j", scale, flat) + C * SIGMA * torch.randn(flat.shape[1], dtype=x.dtype)


def opacus(x: torch.Tensor) -> Work:
    from opacus import optimizers

    p = torch.nn.Parameter(torch.zeros(x.shape[1:], dtype=x.dtype))
    p.grad_sample = None
    optimizer = optimizers.DPOptimizer(
        torch.optim.SGD([p], lr=0.1), noise_multiplier=SIGMA, max_grad_norm=C, expected_batch_size=len(x)
    )

    def work(x: torch.Tensor) -> None:
        p.grad_sample, p.summed_grad = x.view_as(x), None  # Opacus marks a tensor that it has seen
        optimizer.clip_and_accumulate()
        optimizer.add_noise()
        optimizer.scale_grad()

    return work


def ours(**options: object) -> Work:
    return lambda x: ldpkernels.clipped_noised_sum(x, C, SIGMA, **options)


def read_twice(x: torch.Tensor) -> None:
    numbers = x.view(torch.float32)  # two 16-bit numbers are read as one: only the reading counts
    numbers.sum()
    numbers.sum()


ROWS: dict[str, tuple[str, Callable[[torch.Tensor], Work]]] = {
    "ldpkernels": ("ours", lambda x: ours()),
    "ldpkernels, Philox": ("ours", lambda x: ours(generator=KEY)),
    "ldpkernels, discrete noise": ("ours", lambda x: ours(noise="discrete")),
    **{f"ldpkernels, {isa}": ("ours", lambda x: ours()) for isa in _native.isas()[1:]},
    "eager": ("peer", lambda x: eager),
    "eager einsum": ("peer", lambda x: einsum),
    "torch.compile of eager": ("peer", lambda x: torch.compile(eager)),
    "Opacus": ("peer", opacus),
    "floor: read twice": ("floor", lambda x: read_twice),
}


def cases(elements: int) -> Iterator[Case]:
    """Everything that is measured, at shapes of its own; 16-bit rows at one of them."""
    for shape, dtype in (*((shape, torch.float32) for shape in SHAPES), ("[256, 1M]", torch.bfloat16)):
        x = torch.randn(SHAPES[shape]).to(dtype)
        group, nbytes = f"clipped sum {shape} {str(dtype).removeprefix('torch.')}", 2 * x.numel() * x.element_size()
        for row, (kind, made) in ROWS.items():
            if row == "Opacus" and not importlib.util.find_spec("opacus"):
                continue
            isa = row.partition(", ")[2]
            yield Case(
                group, row, kind, lambda made=made, x=x: partial(made(x), x), elements=x.numel(), bytes=nbytes,
                backend=isa if isa in _native.isas() else "", memory=True,
            )  # fmt: skip


def targets(pairs: Pairs, elements: int) -> None:
    """Three times eager torch at [256, 1M]."""
    x = torch.randn(SHAPES["[256, 1M]"])
    goals = {"eager": 3.0, "eager einsum": 1.0, "Opacus": 1.0, "torch.compile of eager": 1.0}
    for name, goal in goals.items():
        if name != "Opacus" or importlib.util.find_spec("opacus"):
            other = partial(ROWS[name][1](x), x)
            pairs.add(f"clipped sum, [256, 1M] fp32 : {name}", goal, partial(ours(), x), other)
