# SPDX-License-Identifier: Apache-2.0
"""The piecewise and hybrid mechanisms beside the two-point one, and beside the published piecewise mechanism as others
would write it: in eager torch and in NumPy, with fp32 arithmetic for fp32 weights.

Ours take the same path for every weight, so they run again and again on their own output; the peers draw from fresh
copies of no tensor either, for the same reason.
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

C, R, EPS = 0.0, 1.0, 1.0
ELEMENTS = 1 << 24
MECHANISMS = ("two-point", "piecewise", "hybrid")
ISAS = ["", *[name for name in ldpkernels.backends() if name in _native.isas()]]
ROOT = math.exp(EPS / 2)
REACH = (ROOT + 1) / (ROOT - 1)
IN_BAND = ROOT / (ROOT + 1)

pytestmark = pytest.mark.filterwarnings("default")
Measure = Callable[[str, str, Callable[[], object]], None]


@pytest.fixture
def measure(benchmark: Any) -> Measure:
    def run(group: str, row: str, work: Callable[[], object]) -> None:
        benchmark.group = group
        kind = "ours" if row.split(",")[0] in MECHANISMS else "peer"
        benchmark.extra_info.update(row=row, kind=kind, elements=ELEMENTS, bytes=8.0 * ELEMENTS)
        benchmark(work)

    return run


@pytest.fixture(scope="module")
def weights() -> torch.Tensor:
    return torch.randn(ELEMENTS)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_perturb(measure: Measure, weights: torch.Tensor, mechanism: str, isa: str) -> None:
    with ldpkernels.backend(isa) if isa else nullcontext():
        work = lambda: ldpkernels.perturb_(weights, C, R, EPS, mechanism=mechanism)  # noqa: E731
        measure("perturb_, 16 M fp32", f"{mechanism}, {isa}" if isa else mechanism, work)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_report(measure: Measure, weights: torch.Tensor, mechanism: str, isa: str) -> None:
    with ldpkernels.backend(isa) if isa else nullcontext():
        work = lambda: ldpkernels.report(weights, C, R, EPS, mechanism=mechanism)  # noqa: E731
        measure("report, 16 M fp32", f"{mechanism}, {isa}" if isa else mechanism, work)


def test_torch_eager(measure: Measure, weights: torch.Tensor) -> None:
    """Uniform in [l, l + REACH - 1] in the band, else uniform in what is left of [-REACH, REACH]."""

    def work() -> None:
        low = weights.clamp(-R, R).mul_((REACH + 1) / 2).sub_((REACH - 1) / 2)
        inside = torch.rand_like(weights).mul_(REACH - 1).add_(low)
        outside = torch.rand_like(weights).mul_(REACH + 1).sub_(REACH)
        outside += (outside >= low) * (REACH - 1)
        torch.where(torch.rand_like(weights) < IN_BAND, inside, outside, out=weights)

    measure("perturb_, 16 M fp32", "torch eager", work)


def test_numpy(measure: Measure, weights: torch.Tensor) -> None:
    rng, w = np.random.default_rng(), weights.numpy()
    one = np.float32

    def work() -> None:
        low = np.clip(w, -one(R), one(R))
        low *= one((REACH + 1) / 2)
        low -= one((REACH - 1) / 2)
        inside = rng.random(w.size, dtype=one) * one(REACH - 1)
        inside += low
        outside = rng.random(w.size, dtype=one) * one(REACH + 1)
        outside -= one(REACH)
        outside += (outside >= low) * one(REACH - 1)
        w[:] = np.where(rng.random(w.size, dtype=one) < one(IN_BAND), inside, outside)

    measure("perturb_, 16 M fp32", "NumPy", work)


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise"])
def test_aggregate(benchmark: Any, mechanism: str) -> None:
    clients = [ldpkernels.report(torch.zeros(1 << 20), C, R, EPS, mechanism=mechanism) for _ in range(30)]
    benchmark.group = "aggregate, 30 clients of 1 M weights"
    benchmark.extra_info.update(row=mechanism, kind="ours", elements=30 << 20, bytes=30.0 * clients[0].nbytes)
    benchmark(lambda: ldpkernels.Aggregate().add(*clients))


@pytest.mark.parametrize("mechanism", ["privunitg", "k-of-d"])
def test_vector(benchmark: Any, mechanism: str) -> None:
    x = np.full(1 << 20, 1e-3, np.float32)
    benchmark.group = "perturb_vector, 1 M weights"
    benchmark.extra_info.update(row=mechanism, kind="ours", elements=x.size, bytes=8.0 * x.size)
    benchmark(lambda: ldpkernels.perturb_vector(x, 8.0, mechanism=mechanism, norm=1.0))
