# SPDX-License-Identifier: Apache-2.0
"""The ratios that are promised, each measured in pairs: ours and the other in turn, so that both meet the same machine.

A turn is a slice of 100 ms or one call, and counts with its fastest call. A pair during which other processes used more
than a tenth of the cores is left out, as long as five others remain.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import ldpkernels
from benchmarks import machine
from benchmarks.results import Target, Work

SLICE = 0.1
ENOUGH = 12  # quiet pairs


@dataclass
class Pairs:
    """The targets of a suite, each within `limit` seconds or five pairs, whichever is longer."""

    limit: float
    found: list[Target] = field(default_factory=list)

    def add(self, text: str, goal: float, ours: Work, other: Work, scale: float = 1.0) -> None:
        """Measure the median ratio of speeds, with its quartiles, in units of `scale`."""
        ours(), other()
        quiet, disturbed = [], []
        start = time.monotonic()
        while len(quiet) < ENOUGH and (len(quiet) + len(disturbed) < 5 or time.monotonic() - start < self.limit):
            share = machine.OthersShare()
            ratio = scale * fastest(other) / fastest(ours)
            (disturbed if (share.percent() or 0) > 10 else quiet).append(ratio)
        ratios = quiet if len(quiet) >= 5 else quiet + disturbed
        low, middle, high = statistics.quantiles(ratios, n=4)
        note = f"{len(quiet)} quiet pairs" if ratios is quiet else f"disturbed: {len(disturbed)} of {len(ratios)} pairs"
        self.keep(Target(text, goal, middle, low, high, note))

    def keep(self, target: Target) -> None:
        """Note a target, and show it."""
        self.found.append(target)
        print(f"{target.text}: {target.ratio:.3g} ({target.note})", flush=True)

    def backends(self) -> Iterator[str]:
        """The best backend of this machine and AVX2, each in force while it is looped over."""
        for isa in dict.fromkeys((ldpkernels.backends()[0], "avx2")):
            if isa in ldpkernels.backends():
                with ldpkernels.backend(isa):
                    yield isa


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
