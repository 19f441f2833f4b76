# SPDX-License-Identifier: Apache-2.0
"""Han and Xue's Figures 6 and 8, from the cells that are there."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.papers.han_xue_page import NAMES, PAPER, SIGMAS, Cell, mean, recipe, recipes

COLORS = {"C0": 5, "C1": 10, "C2": 20}  # of so many parties


def draw(found: list[Cell], path: Path) -> None:
    """Figures 6 and 8, a column for each dataset: the paper's variant above, the sound one below, as its accuracies are
    elsewhere. The paper prints the figures of five parties alone."""
    from ldpkernels.plot import new_figure, save

    shown = [dataset for dataset in NAMES if any(c["dataset"] == dataset for c in found)]
    if not shown:
        return
    figure, axes = new_figure(2, len(shown), width=4.6 * len(shown), height=8.2)
    for i, dataset in enumerate(shown):
        cells = [c for c in found if c["dataset"] == dataset]
        draw_paper(axes[i], dataset, [c for c in cells if not c["sound"]])
        draw_sound(axes[len(shown) + i], dataset, [c for c in cells if c["sound"]])
    for axis in axes:
        axis.set(xlabel="sigma", ylabel="test accuracy", xlim=(0.8, max(SIGMAS) + 0.2))
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    save(figure, str(path))


def draw_paper(axis: Any, dataset: str, cells: list[Cell]) -> None:
    """Its variant: no sigma changes a bit, and so the runs at sigma = 1, which have the marks, stand for all."""
    theirs = PAPER[dataset]["table 2"]
    axis.plot(list(theirs), list(theirs.values()), "kx", label="global, paper, 5 parties", zorder=5)
    points(axis, [c for c in cells if c.get("wide")], "global, 5 parties, DCGANs, networks twice as wide", "C3", "D")
    cells = [c for c in cells if recipe(c) == recipes(cells)[0] and c["sigma"] == 1]
    for color, parties in COLORS.items():
        runs = [c for c in cells if c["parties"] == parties]
        if runs:
            points(axis, runs, f"global, {parties} parties", color, "o")
            axis.axhline(mean([c["global"] for c in runs]), color=color, lw=1.2)
            alone = mean([mean(c["standalone"]) for c in runs])
            axis.axhline(alone, color=color, lw=0.9, ls=":", label=f"standalone, {parties} parties")
    bases = [c["baseline_accuracy"] for c in cells if c["baseline_accuracy"] is not None]
    if bases:
        axis.axhline(mean(bases), color="0.4", lw=0.9, ls="-.", label="baseline: all examples")
    axis.set(title=f"{NAMES[dataset]}: {recipes(cells)[0]}")
    axis.title.set_fontsize(9)


def draw_sound(axis: Any, dataset: str, cells: list[Cell]) -> None:
    """The sound variant, by exact votes: of images with fewer steps, but for one run."""
    steps = PAPER[dataset]["schedule"][0]
    for color, parties in COLORS.items():
        runs = [c for c in cells if c["parties"] == parties and not c.get("full")]
        points(axis, runs, f"sound, {parties} parties", color, "^")
    points(axis, [c for c in cells if c.get("full")], f"sound, 5 parties, T = {steps:,}", "C0", "s")
    short = sorted({c["steps"] for c in cells if not c.get("full")})
    axis.set(title=f"{NAMES[dataset]}, sound: T = {', '.join(f'{t:,}' for t in short)}, exact votes")
    axis.title.set_fontsize(9)


def points(axis: Any, cells: list[Cell], label: str, color: str, marker: str) -> None:
    """Accuracies of what was run over sigma, and the deviation of the seeds."""
    by_sigma: dict[float, list[float]] = {}
    for c in cells:
        by_sigma.setdefault(c["sigma"], []).append(c["global"])
    if by_sigma:
        rows = [(sigma, mean(v), statistics.stdev(v) if len(v) > 1 else 0.0) for sigma, v in sorted(by_sigma.items())]
        axis.errorbar(*zip(*rows, strict=True), color=color, marker=marker, ms=4, capsize=2, lw=1.2, label=label)
