# SPDX-License-Identifier: Apache-2.0
"""LDP-Fed's Figure 3, its Table 1 as a picture, and the sweep over alpha, from the cells that are there."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Cell
from benchmarks.papers.ldp_fed_runs import (
    ALPHAS,
    CYCLES,
    EQUIVALENT_SIGMA,
    EXAMPLES,
    FED,
    FEWER,
    NAMES,
    ROUNDS,
    SHORT,
    Run,
)

Kept = dict[Run, list[Cell]]  # of a run with seed 0, one cell for each seed that was run

# Three methods end in one place: a wide line, dashes and dots lie on each other.
LINES: dict[Run, dict[str, Any]] = {
    Run("basic"): {"color": "C0", "lw": 4, "alpha": 0.4},
    Run("smc"): {"color": "C4", "ls": ":"},
    Run("non-private"): {"color": "0.35", "ls": "--", "lw": 1},
    FED: {"color": "0"},
    Run("single-layer"): {"color": "C1"},
    replace(FED, cycles=1): {"color": "C2"},
    Run("local", rounds=14, clients=5): {"color": "C3"},
    Run("hybrid-one", sigma=EQUIVALENT_SIGMA): {"color": "C6"},
    Run("dpsgd", sigma=EQUIVALENT_SIGMA): {"color": "C5"},
}


def draw(kept: Kept, path: Path) -> None:
    """Accuracy over rounds for the methods, over cycles beside the paper's, and over alpha for the mechanisms."""
    from ldpkernels.plot import new_figure, save

    figure, (left, middle, right) = new_figure(1, 3, width=14, height=4.2)
    for run, style in LINES.items():
        if run in kept:
            tested = [[100 * a for a in cell["accuracy"].values()] for cell in kept[run]]
            rounds = [int(r) for r in kept[run][0]["accuracy"]]
            by_round = list(zip(*tested, strict=True))
            bars = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in by_round]
            cycles = f", {run.cycles} cycle{'s' * (run.cycles > 1)}" if run.method == "alpha-cldp-fed" else ""
            means = [statistics.fmean(values) for values in by_round]
            left.errorbar(rounds, means, bars, marker="o", ms=3, capsize=2, label=NAMES[run.method] + cycles, **style)
    left.plot([ROUNDS], [84.89], "x", color="C1", label="paper: single layer", zorder=5)
    left.plot([ROUNDS], [100 * CYCLES[1]], "x", color="C2", label="paper: 1 cycle", zorder=5)
    left.set(xlabel="round", ylabel="test accuracy (%)", ylim=(57, 92), title="Figure 3: methods, alpha = 1")
    left.legend(frameon=False, fontsize=7, loc="lower right")
    for examples in (EXAMPLES, *FEWER):
        runs = [replace(FED, cycles=cycles, examples=examples) for cycles in CYCLES]
        values = [(run.cycles, [100 * cell["final"] for cell in kept[run]]) for run in runs if run in kept]
        if values:
            bars = [statistics.stdev(v) if len(v) > 1 else 0.0 for _, v in values]
            label = f"ours, {examples:,} examples a client"
            x, y = [c for c, _ in values], [statistics.fmean(v) for _, v in values]
            middle.errorbar(x, y, bars, marker="o", ms=3.5, capsize=2, label=label)
    middle.plot(list(CYCLES), [100 * a for a in CYCLES.values()], "kx", label="paper")
    plain = replace(FED, alpha=None)
    if plain in kept:
        clean = statistics.fmean(100 * cell["final"] for cell in kept[plain])
        middle.plot([plain.cycles], [clean], "o", color="0.55", label=f"no noise, {plain.cycles} cycles")
    middle.set(xlabel="cycles", title="Table 1: alpha-CLDP-Fed, alpha = 1", ylim=(84, 89), ylabel="test accuracy (%)")
    middle.legend(frameon=False, fontsize=7, loc="lower right")
    for i, method in enumerate(("basic", "alpha-cldp-fed")):
        for mechanism, style in (("exponential", "--"), ("laplace", "-")):
            runs_ = [replace(SHORT, method=method, alpha=alpha, mechanism=mechanism) for alpha in ALPHAS]
            found = [(r.alpha, *mean_and_deviation(kept[r])) for r in runs_ if r in kept]
            if found:
                label = f"{NAMES[method]}, {mechanism}"
                x, y, bars = (list(values) for values in zip(*found, strict=True))
                right.errorbar(x, y, bars, linestyle=style, color=f"C{i}", marker="o", ms=3, capsize=2, label=label)
        twin = replace(SHORT, method=method, alpha=None)
        if twin in kept:
            clean, _ = mean_and_deviation(kept[twin])
            right.axhline(clean, color=f"C{i}", lw=0.8, ls=":", label=f"{NAMES[method]}, no noise")
    seeds = max((len(kept[run]) for run in kept if run.examples == SHORT.examples), default=0)
    title = f"Where noise matters: 20 rounds, {seeds} seed{'s' * (seeds > 1)}"
    right.set(xscale="log", xlabel="alpha", ylim=(0, 100), title=title)
    if right.lines:
        right.legend(frameon=False, fontsize=7, handlelength=4, loc="lower right")
    save(figure, str(path))


def mean_and_deviation(cells: list[Cell]) -> tuple[float, float]:
    """Of the seeds' last accuracies, in percent."""
    values = [100 * cell["final"] for cell in cells]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
