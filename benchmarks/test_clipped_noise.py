# SPDX-License-Identifier: Apache-2.0
"""Clipped and noised sums beside eager torch, torch.compile and Opacus: time, and memory beyond the gradients.

    python -m benchmarks.report --suite clipped

"eager" is the sum as one writes it, which makes a scaled copy; "eager einsum" is its best form, and Opacus's. The floor
reads the gradients twice, as any sum must that clips by the norm of whole rows. Opacus's part is that of
`DPOptimizer.step` without the step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import ldpkernels
from benchmarks import machine, pairs
from benchmarks.results import Target
from ldpkernels import _native

pytestmark = pytest.mark.filterwarnings("default")

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
    optimizers = pytest.importorskip("opacus.optimizers")
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


def ours(noise: str = "gaussian", isa: str = "", generator: Any = None) -> Work:
    def work(x: torch.Tensor) -> None:
        with ldpkernels.backend(isa) if isa else nullcontext():
            ldpkernels.clipped_noised_sum(x, C, SIGMA, generator=generator, noise=noise)

    return work


def read_twice(x: torch.Tensor) -> None:
    numbers = x.view(torch.float32)  # two 16-bit numbers are read as one: only the reading counts
    numbers.sum()
    numbers.sum()


ROWS: dict[str, tuple[str, Callable[[torch.Tensor], Work]]] = {
    "ldpkernels": ("ours", lambda x: ours()),
    "ldpkernels, Philox": ("ours", lambda x: ours(generator=KEY)),
    "ldpkernels, discrete noise": ("ours", lambda x: ours("discrete")),
    **{f"ldpkernels, {isa}": ("ours", lambda x, isa=isa: ours(isa=isa)) for isa in _native.isas()[1:]},
    "eager": ("peer", lambda x: eager),
    "eager einsum": ("peer", lambda x: einsum),
    "torch.compile of eager": ("peer", lambda x: torch.compile(eager)),
    "Opacus": ("peer", opacus),
    "floor: read twice": ("floor", lambda x: read_twice),
}


def targets(elements: int, patience: float) -> list[Target]:
    """Three times eager torch at [256, 1M]. `elements` is not for here."""
    x, work = rows_of("[256, 1M]", "float32"), ours()
    goals = {"eager": 3.0, "eager einsum": 1.0, "Opacus": 1.0, "torch.compile of eager": 1.0}
    found = []
    for name, goal in goals.items():
        other = ROWS[name][1](x)
        text = f"clipped sum, [256, 1M] fp32 : {name}"
        found.append(pairs.measure(text, goal, lambda: work(x), lambda other=other: other(x), 20 + 10 * patience))
        print(f"{text}: {found[-1].ratio:.3g} ({found[-1].note})", flush=True)
    return found


@lru_cache(maxsize=1)
def rows_of(shape: str, dtype: str) -> torch.Tensor:
    return torch.randn(SHAPES[shape]).to(getattr(torch, dtype))


def peak_bytes(work: Work, x: torch.Tensor) -> int | None:
    """The most memory of the process during one call beyond that before it; Linux counts, after a reset."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that taking it anew counts
        Path("/proc/self/clear_refs").write_text("5")
        lines = {}
        before = Path("/proc/self/status").read_text()
        work(x)
        for when, text in (("before", before), ("after", Path("/proc/self/status").read_text())):
            lines[when] = dict(line.split(":", 1) for line in text.splitlines())
        return 1024 * max(0, int(lines["after"]["VmHWM"].split()[0]) - int(lines["before"]["VmRSS"].split()[0]))
    except (OSError, AttributeError):  # not Linux, not glibc
        return None


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_clipped_sum(benchmark: Any, request: pytest.FixtureRequest, shape: str, dtype: str, row: str) -> None:
    if dtype == "bfloat16" and shape != "[256, 1M]":
        pytest.skip("16-bit rows are measured at one shape")
    x = rows_of(shape, dtype)
    kind, make = ROWS[row]
    work = make(x)
    work(x)
    peak = peak_bytes(work, x)
    benchmark.group = f"clipped sum {shape} {dtype}"
    benchmark.extra_info.update(row=row, kind=kind, elements=x.numel(), bytes=2 * x.numel() * x.element_size())
    if peak is not None:
        benchmark.extra_info["peak"] = peak
    machine.OthersShare.wait(request.config.getoption("--patience"))
    benchmark.pedantic(work, (x,), rounds=3 if x.numel() > 1 << 27 else 10)
