# SPDX-License-Identifier: Apache-2.0
"""The ratios that are promised, each measured in pairs: ours and the other in turn, so that both meet the same machine.

A turn is a slice of 100 ms or one call, and counts with its fastest call. A pair during which other processes used more
than a tenth of the cores is left out, as long as five others remain.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import ldpkernels
from benchmarks import machine, peers
from benchmarks.peers import EPS, C, R
from benchmarks.results import Target

Work = Callable[[], object]
SLICE = 0.1
ENOUGH = 12  # quiet pairs
CLIENTS = 100


def targets(elements: int, patience: float) -> list[Target]:
    """The goals were set for two cores with AVX2."""
    w = torch.randn(elements)
    compiled = torch.compile(peers.compare_, fullgraph=True)
    found = []

    def pair(text: str, goal: float, ours: Work, other: Work) -> None:
        found.append(measure(text, goal, ours, other, 2 + 10 * patience))
        print(f"{text}: {found[-1].ratio:.3g} ({found[-1].note})", flush=True)

    def perturb() -> None:
        ldpkernels.perturb_(w, C, R, EPS)

    def simulate() -> None:
        ldpkernels.perturb_(w, C, R, EPS, generator=ldpkernels.key(7))

    for isa in dict.fromkeys((ldpkernels.backends()[0], "avx2")):
        if isa in ldpkernels.backends():
            with ldpkernels.backend(isa):
                pair(f"perturb_, {isa} : torch eager, bernoulli", 60, perturb, lambda: peers.bernoulli_(w))
                pair(f"perturb_, {isa} : torch.compile", 30, perturb, lambda: compiled(w))
                pair(f"perturb_, {isa} : mul_ in place", 0.6, perturb, lambda: w.mul_(-1.0))
                pair(f"perturb_, {isa} : with Philox", 0.8 if isa != "avx2" else 0.65, perturb, simulate)
    pair("report : perturb_", 1, lambda: ldpkernels.report(w, C, R, EPS), perturb)

    layout = ldpkernels.report(torch.zeros(elements // 2), C, R, EPS).layout
    bits = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (CLIENTS, layout.nbytes), np.uint8))
    reports = [ldpkernels.Report(layout, payload) for payload in bits]
    total, read = ldpkernels.Aggregate(), bits.view(torch.int64).sum
    pair(f"aggregate, {CLIENTS} clients : reading the bytes", 0.5, lambda: ldpkernels.aggregate(reports), read)
    pair(f"Aggregate.add, {CLIENTS} clients : reading the bytes", 0.5, lambda: total.add(*reports), read)
    uploads = [one.to_bytes() for one in reports]
    pair("Aggregate.add of uploads : of reports", 0.5, lambda: total.add(*uploads), lambda: total.add(*reports))

    model = peers.small_model()
    small = lambda: ldpkernels.perturb_(model, C, R, EPS, buffers="keep")  # noqa: E731
    pair("small model : eager loop", 10, small, lambda: peers.eager_loop_(model))
    return found


def measure(text: str, goal: float, ours: Work, other: Work, limit: float) -> Target:
    """The median ratio of speeds, with its quartiles; within `limit` seconds, but at least five pairs."""
    ours(), other()
    quiet, disturbed = [], []
    start = time.monotonic()
    while len(quiet) < ENOUGH and (len(quiet) + len(disturbed) < 5 or time.monotonic() - start < limit):
        share = machine.OthersShare()
        ratio = 1 / (fastest(ours) / fastest(other))
        (disturbed if (share.percent() or 0) > 10 else quiet).append(ratio)
    ratios = quiet if len(quiet) >= 5 else quiet + disturbed
    low, middle, high = statistics.quantiles(ratios, n=4)
    note = f"{len(quiet)} quiet pairs" if ratios is quiet else f"disturbed: {len(disturbed)} of {len(ratios)} pairs"
    return Target(text, goal, middle, low, high, note)


def fastest(work: Work) -> float:
    """The least time of a call in one slice."""
    least, start = float("inf"), time.perf_counter()
    while True:
        before = time.perf_counter()
        work()
        after = time.perf_counter()
        least = min(least, after - before)
        if after - start > SLICE:
            return least
