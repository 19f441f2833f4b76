# SPDX-License-Identifier: Apache-2.0
"""Ordinal CLDP beside what else would sample it, at the setting of LDP-Fed: M = 1e10, alpha = 1 / (80 * 29034).

The peers in torch and NumPy, and diffprivlib, invert the distribution function in fp64, which is not private in the
tails (docs/mechanisms/ordinal_cldp.md); OpenDP's samplers are exact. Samples are of integers in the middle of the box,
and of its end, where half of the tries are rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import ldpkernels
from benchmarks.peers_cldp import ALPHA, SAMPLERS, M, installed, numpy_unboxed, torch_inverse, torch_unboxed
from ldpkernels import _native

pytestmark = pytest.mark.filterwarnings("default")

SAMPLES = 1 << 22
GENERATORS: dict[str, Any] = {"default": None, "Philox": ldpkernels.key(0)}
Measure = Callable[[str, str, str, int, Callable[[], object]], None]


@pytest.fixture
def measure(benchmark: Any) -> Measure:
    def run(group: str, kind: str, row: str, elements: int, work: Callable[[], object]) -> None:
        benchmark.group = group
        benchmark.extra_info.update(row=row, kind=kind, elements=elements, bytes=16 * elements)
        benchmark(work)
        stats = benchmark.stats.stats if benchmark.stats else None
        if stats:
            benchmark.extra_info["M/s"] = round(elements / stats.median / 1e6, 3)

    return run


@pytest.mark.parametrize("place", ["interior", "end"])
@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("isa", ["", *_native.isas()])
def test_sample(measure: Measure, isa: str, generator: str, mechanism: Any, place: str) -> None:
    n = SAMPLES if isa != "scalar" else SAMPLES // 8
    v = torch.full((n,), M if place == "end" else 0)
    with ldpkernels.backend(isa) if isa else nullcontext():
        row = f"cldp_sample {mechanism}, {isa or 'default'} {generator}"
        work = lambda: ldpkernels.cldp_sample(v, ALPHA, M, mechanism=mechanism, generator=GENERATORS[generator])  # noqa: E731
        measure(f"cldp_sample, {place}", "ours", row, n, work)


@pytest.mark.parametrize("form", [torch_inverse, torch_unboxed], ids=lambda f: f.__name__)
def test_torch(measure: Measure, form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    v = torch.zeros(SAMPLES, dtype=torch.int64)
    measure(
        "cldp_sample, interior",
        "peer",
        f"torch eager, {form.__name__.removeprefix('torch_')}",
        SAMPLES,
        lambda: form(v),
    )


def test_numpy(measure: Measure) -> None:
    v, rng = np.zeros(SAMPLES // 4, np.int64), np.random.default_rng(0)
    measure("cldp_sample, interior", "peer", "NumPy, geometric differences", len(v), lambda: numpy_unboxed(v, rng))


@pytest.mark.parametrize("peer", SAMPLERS)
def test_other_libraries(measure: Measure, peer: str) -> None:
    sampler, n = SAMPLERS[peer]
    if not installed(peer):
        pytest.skip("not installed")
    work = sampler(n)
    measure("cldp_sample, interior", "peer", peer, n, work)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_weights(measure: Measure, dtype: torch.dtype, rounding: str) -> None:
    rho = 10 if dtype != torch.float16 else 4
    w = torch.empty(SAMPLES, dtype=dtype)
    start = torch.randn(SAMPLES).mul_(0.1).to(dtype)
    alpha = ALPHA * 10 ** (10 - rho)

    def work() -> None:
        w.copy_(start)  # again and again on its own output, weights would drift to the ends of the box
        ldpkernels.cldp_(w, alpha, 1.0, rho, rounding=rounding)

    measure("cldp_, 4 M weights", "ours", f"cldp_ {rounding}, {str(dtype).removeprefix('torch.')}", SAMPLES, work)
