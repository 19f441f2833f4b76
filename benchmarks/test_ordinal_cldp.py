# SPDX-License-Identifier: Apache-2.0
"""Ordinal CLDP beside what else would sample it, at the setting of LDP-Fed: M = 1e10, alpha = 1 / (80 * 29034).

The peers in torch and NumPy invert the distribution function in fp64, which is not private in the tails
(docs/mechanisms/ordinal_cldp.md); OpenDP's samplers are exact. Samples are of integers in the middle of the box, and of
its end, where half of the tries are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import _native

pytestmark = pytest.mark.filterwarnings("default")

M, ALPHA = 10**10, 4.3e-7
S = ALPHA / 2
SAMPLES = 1 << 22
GENERATORS: dict[str, Any] = {"Philox": None, "ChaCha20": "secure"}
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


def torch_inverse(v: torch.Tensor) -> torch.Tensor:
    """The inverse distribution function of the boxed law: what a careful user writes in eager torch, in fp64."""
    below, above = (v + M).double(), (M - v).double()
    left = torch.expm1(below.add_(1).mul_(-S)).neg_()
    right = torch.expm1(above.mul_(-S)).neg_().mul_(math.exp(-S))
    u = torch.rand_like(left).mul_(right.add_(left))
    down = u < left
    w = torch.where(down, u, (u - left).mul_(math.exp(S)))
    steps = torch.log1p(w.neg_()).div_(-S).floor_().long()
    return torch.where(down, v - steps, v + 1 + steps).clamp_(-M, M)


def torch_unboxed(v: torch.Tensor) -> torch.Tensor:
    """The same without the box, clamped to it instead: the least that a user could write."""
    steps = torch.log1p(torch.rand(v.shape, dtype=torch.float64).neg_()).div_(-S).floor_().long()
    return (v + (torch.randint(0, 2, v.shape).mul_(2).sub_(1)).mul_(steps)).clamp_(-M, M)


def numpy_unboxed(v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A difference of two geometric variables, from NumPy's sampler."""
    p = -math.expm1(-S)
    return np.clip(v + rng.geometric(p, v.shape) - rng.geometric(p, v.shape), -M, M)


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
        measure(f"integers, {place}", "ours", row, n, work)


@pytest.mark.parametrize("form", [torch_inverse, torch_unboxed], ids=lambda f: f.__name__)
def test_torch(measure: Measure, form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    v = torch.zeros(SAMPLES, dtype=torch.int64)
    measure(
        "integers, interior", "peer", f"torch eager, {form.__name__.removeprefix('torch_')}", SAMPLES, lambda: form(v)
    )


def test_numpy(measure: Measure) -> None:
    v, rng = np.zeros(SAMPLES // 4, np.int64), np.random.default_rng(0)
    measure("integers, interior", "peer", "NumPy, geometric differences", len(v), lambda: numpy_unboxed(v, rng))


@pytest.mark.parametrize("bounded", [False, True], ids=["laplace", "bounded geometric"])
def test_opendp(measure: Measure, bounded: bool) -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    if bounded:  # a constant-time sampler: its work grows with the width, so that only a narrow box can be measured
        sampler, values = dp.m.make_geometric(*space, scale=2 / 0.1, bounds=(-10_000, 10_000)), [0] * 20
    else:
        sampler, values = dp.m.make_laplace(*space, scale=2 / ALPHA), [0] * 20_000
    row = "OpenDP, bounded geometric at M = 1e4" if bounded else "OpenDP, discrete Laplace"
    measure("integers, interior", "peer", row, len(values), lambda: sampler(values))


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

    measure("weights", "ours", f"cldp_ {rounding}, {str(dtype).removeprefix('torch.')}", SAMPLES, work)
