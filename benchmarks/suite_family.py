# SPDX-License-Identifier: Apache-2.0
"""Piecewise, hybrid, ordinal CLDP and vectors' mechanisms, beside the two-point one and what others would write.

The published piecewise mechanism is written in eager torch and in NumPy, with fp32 arithmetic for fp32 weights. Ordinal
CLDP is at the setting of LDP-Fed: M = 1e10, alpha = 1 / (80 * 29034). Its peers in torch and NumPy, and diffprivlib,
invert the distribution function in fp64, which is not private in the tails (docs/mechanisms/ordinal_cldp.md); OpenDP's
samplers are exact. Samples are of integers in the middle of the box, and of its end, where half of the tries are
rejected. Ours take the same path for every weight, so they run again and again on their own output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

import ldpkernels
from benchmarks import peers_cldp
from benchmarks.pairs import Pairs, fastest
from benchmarks.peers import EPS, C, R
from benchmarks.peers_cldp import ALPHA, SAMPLERS, M, installed
from benchmarks.results import Case, Target, Work
from benchmarks.suite_two_point import GENERATORS, ISAS, WITH_DEFAULT, named

ELEMENTS, SAMPLES = 1 << 24, 1 << 22
MECHANISMS = ("two-point", "piecewise", "hybrid")
ROOT = math.exp(EPS / 2)
REACH = (ROOT + 1) / (ROOT - 1)
IN_BAND = ROOT / (ROOT + 1)


def torch_piecewise(weights: torch.Tensor) -> None:
    """Uniform in [l, l + REACH - 1] in the band, else uniform in what is left of [-REACH, REACH]."""
    low = weights.clamp(-R, R).mul_((REACH + 1) / 2).sub_((REACH - 1) / 2)
    inside = torch.rand_like(weights).mul_(REACH - 1).add_(low)
    outside = torch.rand_like(weights).mul_(REACH + 1).sub_(REACH)
    outside += (outside >= low) * (REACH - 1)
    torch.where(torch.rand_like(weights) < IN_BAND, inside, outside, out=weights)


def numpy_piecewise(w: np.ndarray, rng: np.random.Generator) -> None:
    """The law of torch_piecewise in NumPy."""
    one = np.float32
    low = np.clip(w, -one(R), one(R))
    low *= one((REACH + 1) / 2)
    low -= one((REACH - 1) / 2)
    inside = rng.random(w.size, dtype=one) * one(REACH - 1)
    inside += low
    outside = rng.random(w.size, dtype=one) * one(REACH + 1)
    outside -= one(REACH)
    outside += (outside >= low) * one(REACH - 1)
    w[:] = np.where(rng.random(w.size, dtype=one) < one(IN_BAND), inside, outside)


def cases(elements: int) -> Iterator[Case]:
    """Everything that is measured, at sizes of its own."""
    yield from cells()
    yield from samples()


def cells() -> Iterator[Case]:
    """Mechanisms of a weight, and of vectors of a million."""
    weights = torch.randn(ELEMENTS)
    in_place = partial(Case, "perturb_, 16 M fp32", elements=ELEMENTS, bytes=8.0 * ELEMENTS)
    reported = partial(Case, "report, 16 M fp32", elements=ELEMENTS, bytes=8.0 * ELEMENTS)
    for mechanism, isa in product(MECHANISMS, ("", *ISAS)):
        row = f"{mechanism}, {isa}" if isa else mechanism
        for case, call in ((in_place, ldpkernels.perturb_), (reported, ldpkernels.report)):
            work: Work = partial(call, weights, C, R, EPS, mechanism=mechanism)
            yield case(row, "ours", lambda work=work: work, backend=isa)
    yield in_place("torch eager", "peer", lambda: partial(torch_piecewise, weights))
    yield in_place("NumPy", "peer", lambda: partial(numpy_piecewise, weights.numpy(), np.random.default_rng()))
    for mechanism in ("two-point", "piecewise"):
        clients = [ldpkernels.report(torch.zeros(1 << 20), C, R, EPS, mechanism=mechanism) for _ in range(30)]
        work = lambda clients=clients: ldpkernels.Aggregate().add(*clients)  # noqa: E731
        group, nbytes = "aggregate, 30 clients of 1 M weights", 30.0 * clients[0].nbytes
        yield Case(group, mechanism, "ours", lambda work=work: work, elements=30 << 20, bytes=nbytes)
    x = np.full(1 << 20, 1e-3, np.float32)
    for mechanism in ("privunitg", "k-of-d"):
        work = partial(ldpkernels.perturb_vector, x, 8.0, mechanism=mechanism, norm=1.0)
        group = "perturb_vector, 1 M weights"
        yield Case(group, mechanism, "ours", lambda work=work: work, elements=x.size, bytes=8.0 * x.size)


def samples() -> Iterator[Case]:
    """Ordinal CLDP, of integers and of weights."""

    def of(group: str, kind: str, row: str, n: int, make: Callable[[], Work], isa: str = "") -> Case:
        return Case(group, row, kind, make, elements=n, bytes=16 * n, backend=isa)

    interior = "cldp_sample, interior"
    for (isa, generator), mechanism, place in product(WITH_DEFAULT, ("exponential", "laplace"), ("interior", "end")):
        n = SAMPLES if isa != "scalar" else SAMPLES // 8
        options: dict[str, Any] = {"mechanism": mechanism, "generator": GENERATORS.get(generator)}
        v = torch.full((n,), M if place == "end" else 0)
        row = named(f"cldp_sample {mechanism}", isa, generator)
        work = partial(ldpkernels.cldp_sample, v, ALPHA, M, **options)
        yield of(f"cldp_sample, {place}", "ours", row, n, lambda work=work: work, isa)
    for form in (peers_cldp.torch_inverse, peers_cldp.torch_unboxed):
        v = torch.zeros(SAMPLES, dtype=torch.int64)
        row = f"torch eager, {form.__name__.removeprefix('torch_')}"
        yield of(interior, "peer", row, SAMPLES, lambda form=form, v=v: partial(form, v))
    fewer = np.zeros(SAMPLES // 4, np.int64)
    by_numpy = partial(peers_cldp.numpy_unboxed, fewer, np.random.default_rng(0))
    yield of(interior, "peer", "NumPy, geometric differences", len(fewer), lambda: by_numpy)
    for peer, (sampler, n) in SAMPLERS.items():
        if installed(peer):
            yield of(interior, "peer", peer, n, partial(sampler, n))
    for dtype, rounding in product(
        (torch.float32, torch.float64, torch.bfloat16, torch.float16), ("nearest", "stochastic")
    ):
        row = f"cldp_ {rounding}, {str(dtype).removeprefix('torch.')}"
        yield of("cldp_, 4 M weights", "ours", row, SAMPLES, partial(rounded, dtype, rounding))


def rounded(dtype: torch.dtype, rounding: Any) -> Work:
    """Ordinal CLDP of weights: again and again on its own output they would drift to the ends of the box."""
    rho = 10 if dtype != torch.float16 else 4
    w, start = torch.empty(SAMPLES, dtype=dtype), torch.randn(SAMPLES).mul_(0.1).to(dtype)
    return lambda: ldpkernels.cldp_(w.copy_(start), ALPHA * 10 ** (10 - rho), 1.0, rho, rounding=rounding)


def targets(pairs: Pairs, elements: int) -> None:
    """Half of the two-point mechanism's speed; 40 M samples/s, 25 times torch eager, 400 times OpenDP."""
    w, v = torch.randn(elements), torch.zeros(1 << 20, dtype=torch.int64)
    for isa in pairs.backends():
        for mechanism, goal in (("piecewise", 0.5), ("hybrid", 0.4)):
            for call in (ldpkernels.perturb_, ldpkernels.report):
                ours, other = (partial(call, w, C, R, EPS, mechanism=one) for one in (mechanism, "two-point"))
                pairs.add(f"{mechanism} {call.__name__}, {isa} : two-point", goal, ours, other)
        sample = partial(ldpkernels.cldp_sample, v, ALPHA, M)
        rates = sorted(len(v) / fastest(sample) / 1e6 for _ in range(12))
        text, note = f"cldp_sample, {isa} : M samples/s", "the best of 12 slices; varied: all"
        pairs.keep(Target(text, 40, rates[-1], rates[0], rates[-1], note))
        inverse = partial(peers_cldp.torch_inverse, v)
        pairs.add(f"cldp_sample, {isa} : torch eager, inverse", 25, sample, inverse)
        for peer, (sampler, n) in SAMPLERS.items():
            if "1e4" not in peer and installed(peer):
                pairs.add(f"cldp_sample, {isa} : {peer}", 400, sample, sampler(n), len(v) / n)
