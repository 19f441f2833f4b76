# SPDX-License-Identifier: Apache-2.0
"""Goals of piecewise, hybrid and ordinal CLDP, measured in pairs like those of the two-point mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

import ldpkernels
from benchmarks import peers_cldp
from benchmarks.pairs import Work, fastest, measure
from benchmarks.peers import EPS, C, R
from benchmarks.peers_cldp import ALPHA, SAMPLERS, M, installed
from benchmarks.results import Target

SAMPLES = 1 << 20


def targets(elements: int, patience: float) -> list[Target]:
    """Half of the two-point mechanism's speed; 40 M samples/s, 25 times torch eager, 400 times OpenDP."""
    found = []

    def pair(text: str, goal: float, ours: Work, other: Work, scale: float = 1) -> None:
        one = measure(text, goal, ours, other, 2 + 10 * patience)
        found.append(replace(one, ratio=one.ratio * scale, low=one.low * scale, high=one.high * scale))
        print(f"{text}: {found[-1].ratio:.3g} ({found[-1].note})", flush=True)

    w, v = torch.randn(elements), torch.zeros(SAMPLES, dtype=torch.int64)
    for isa in dict.fromkeys((ldpkernels.backends()[0], "avx2")):
        if isa not in ldpkernels.backends():
            continue
        with ldpkernels.backend(isa):
            for mechanism, goal in (("piecewise", 0.5), ("hybrid", 0.4)):
                for name, kind in (("perturb_", ldpkernels.perturb_), ("report", ldpkernels.report)):
                    text = f"{mechanism} {name}, {isa} : two-point"
                    pair(text, goal, of(kind, w, mechanism), of(kind, w, "two-point"))
            sample = lambda: ldpkernels.cldp_sample(v, ALPHA, M)  # noqa: E731
            rates = sorted(SAMPLES / fastest(sample) / 1e6 for _ in range(12))
            text = f"cldp_sample, {isa} : M samples/s"
            found.append(Target(text, 40, rates[-1], rates[0], rates[-1], "the best of 12 slices; varied: all"))
            pair(f"cldp_sample, {isa} : torch eager, inverse", 25, sample, lambda: peers_cldp.torch_inverse(v))
            for peer, (sampler, n) in SAMPLERS.items():
                if "1e4" not in peer and installed(peer):
                    pair(f"cldp_sample, {isa} : {peer}", 400, sample, sampler(n), SAMPLES / n)
    return found


def of(kind: Callable[..., object], w: torch.Tensor, mechanism: str) -> Work:
    return lambda: kind(w, C, R, EPS, mechanism=mechanism)
