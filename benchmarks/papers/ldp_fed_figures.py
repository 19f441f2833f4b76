# SPDX-License-Identifier: Apache-2.0
"""LDP-Fed's Figure 3, its Table 1 as a picture, and the sweep over alpha, from the cells that are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.papers import pictures
from benchmarks.papers.common import Cell
from benchmarks.papers.ldp_fed_runs import (
    ALONE,
    ALPHAS,
    CYCLES,
    EQUIVALENT_SIGMA,
    EXAMPLES,
    FED,
    FEWER,
    KINDS,
    NAMES,
    ROUNDS,
    SHORT,
    Run,
)
from benchmarks.papers.ldp_fed_tables import kept_of
from benchmarks.papers.pictures import Line, Panel


def draw(cells: dict[str, Cell], path: Path) -> None:
    """Draw accuracy over rounds for the methods, over cycles beside the paper's, and over alpha for the mechanisms."""
    kept = kept_of(cells)

    def by_round(run: Run, label: str) -> Line:
        found = kept.get(run, [])
        seeds = zip(*(cell["accuracy"].values() for cell in found), strict=True)
        return label, [(int(r), values) for r, values in zip(found[0]["accuracy"] if found else (), seeds, strict=True)]

    def finals(run: Run) -> list[float]:
        return [cell["final"] for cell in kept.get(run, [])]

    def over_alpha(method: str, mechanism: str) -> Line:
        runs = [replace(SHORT, method=method, alpha=alpha, mechanism=mechanism) for alpha in ALPHAS]
        return f"{NAMES[method]}, {mechanism}", [(run.alpha or 0.0, finals(run)) for run in runs]

    one = replace(FED, cycles=1)
    cldp = [by_round(Run("basic"), "basic"), by_round(Run("single-layer"), "single layer")]
    cldp += [by_round(one, "alpha-CLDP-Fed, 1 cycle"), by_round(FED, "alpha-CLDP-Fed, 5 cycles")]
    theirs = [("paper: single layer", 0.8489, "C1"), ("paper: 1 cycle", CYCLES[1], "C2")]
    theirs.append(("paper: basic, below 10%", 0.1, "C0"))
    private = [Run(method, sigma=EQUIVALENT_SIGMA) for method in ("dpsgd", "hybrid-one")]
    others = [by_round(run, f"{NAMES[run.method]}, sigma = {run.sigma:g}") for run in private]
    others = [
        by_round(Run("non-private"), "no noise"),
        by_round(ALONE if ALONE in kept else replace(ALONE, rounds=14), "alone"),
        *others,
    ]
    cycles = [
        (f"{n:,} examples a client", [(c, finals(replace(FED, cycles=c, examples=n))) for c in CYCLES])
        for n in (EXAMPLES, *FEWER)
    ]
    cycles.append(("no noise, 1,200 examples", [(FED.cycles, finals(replace(FED, alpha=None)))]))
    sweep = [over_alpha(method, noise) for method, noise in KINDS]
    panels = [
        Panel("Figure 3: alpha-CLDP, alpha = 1", "round", (75, 92), cldp,
              crosses=[(label, [(ROUNDS, accuracy)], color) for label, accuracy, color in theirs]),
        Panel("Figure 3: what it is compared with", "round", (75, 92), others),
        Panel("Table 1: alpha-CLDP-Fed, alpha = 1", "cycles", (84, 90), cycles,
              crosses=[("paper", list(CYCLES.items()), "k")]),
        Panel("Where noise matters: 20 rounds, 300 examples", "alpha", (0, 100), sweep, log=True),
    ]  # fmt: skip
    pictures.save(panels, path)
