# SPDX-License-Identifier: Apache-2.0
"""LDP-Fed's Figure 3, its Table 1 as a picture, and the sweep over alpha, from the cells that are there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
from benchmarks.papers.ldp_fed_tables import kept_of

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


def draw(cells: dict[str, Cell], path: Path) -> None:
    """Draw accuracy over rounds for the methods, over cycles beside the paper's, and over alpha for the mechanisms."""
    from ldpkernels.plot import new_figure, save

    kept = kept_of(cells)
    finals = {run: [cell["final"] for cell in found] for run, found in kept.items()}
    figure, (left, middle, right) = new_figure(1, 3, width=14, height=4.2)
    for run, style in LINES.items():
        found = kept.get(run, [])
        by_round = list(zip(*(cell["accuracy"].values() for cell in found), strict=True))
        cycles = f", {run.cycles} cycle{'s' * (run.cycles > 1)}" if run.method == "alpha-cldp-fed" else ""
        rounds = [int(r) for r in found[0]["accuracy"]] if found else []
        bars(left, list(zip(rounds, by_round, strict=True)), NAMES[run.method] + cycles, ms=3, **style)
    left.plot([ROUNDS], [84.89], "x", color="C1", label="paper: single layer", zorder=5)
    left.plot([ROUNDS], [100 * CYCLES[1]], "x", color="C2", label="paper: 1 cycle", zorder=5)
    left.set(xlabel="round", ylabel="test accuracy (%)", ylim=(57, 92), title="Figure 3: methods, alpha = 1")
    left.legend(frameon=False, fontsize=7, loc="lower right")
    for examples in (EXAMPLES, *FEWER):
        over_cycles = [(c, finals.get(replace(FED, cycles=c, examples=examples), [])) for c in CYCLES]
        bars(middle, over_cycles, f"ours, {examples:,} examples a client", ms=3.5)
    middle.plot(list(CYCLES), [100 * a for a in CYCLES.values()], "kx", label="paper")
    if plain := finals.get(replace(FED, alpha=None)):
        middle.plot([FED.cycles], [100 * statistics.fmean(plain)], "o", color="0.55", label="no noise, 5 cycles")
    middle.set(xlabel="cycles", title="Table 1: alpha-CLDP-Fed, alpha = 1", ylim=(84, 89), ylabel="test accuracy (%)")
    middle.legend(frameon=False, fontsize=7, loc="lower right")
    for i, method in enumerate(("basic", "alpha-cldp-fed")):
        for mechanism, line in (("exponential", "--"), ("laplace", "-")):
            runs = [replace(SHORT, method=method, alpha=alpha, mechanism=mechanism) for alpha in ALPHAS]
            over_alpha = [(run.alpha or 0.0, finals.get(run, [])) for run in runs]
            bars(right, over_alpha, f"{NAMES[method]}, {mechanism}", linestyle=line, color=f"C{i}", ms=3)
        if plain := finals.get(replace(SHORT, method=method, alpha=None)):
            clean = 100 * statistics.fmean(plain)
            right.axhline(clean, color=f"C{i}", lw=0.8, ls=":", label=f"{NAMES[method]}, no noise")
    seeds = max((len(kept[run]) for run in kept if run.examples == SHORT.examples), default=0)
    title = f"Where noise matters: 20 rounds, {seeds} seed{'s' * (seeds > 1)}"
    right.set(xscale="log", xlabel="alpha", ylim=(0, 100), title=title)
    if right.lines:
        right.legend(frameon=False, fontsize=7, handlelength=4, loc="lower right")
    save(figure, str(path))


def bars(axis: Any, points: Sequence[tuple[float, Sequence[float]]], label: str, **style: Any) -> None:
    """Draw the means of the seeds over x, in percent, with their deviations; nothing where no run is."""
    found = [(x, [100 * v for v in values]) for x, values in points if values]
    rows = [(x, statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else 0.0) for x, v in found]
    if rows:
        axis.errorbar(*zip(*rows, strict=True), marker="o", capsize=2, label=label, **style)
