# SPDX-License-Identifier: Apache-2.0
"""Han and Xue's Figures 6 and 8, from the cells that are there."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Cell
from benchmarks.papers.han_xue_plan import OURS, PAPER, SIGMAS, Setting
from benchmarks.papers.han_xue_tables import NAMES, Kept, accuracies, kept_of, of_five, recipe

COLORS = {"C0": 5, "C1": 10, "C2": 20}  # of so many parties


def draw(cells: dict[str, Cell], path: Path) -> None:
    """Figures 6 and 8, a column for each dataset: the paper's variant above, the sound one below, as its accuracies are
    elsewhere. The paper prints the figures of five parties alone."""
    from ldpkernels.plot import new_figure, save

    kept = kept_of(cells)
    figure, axes = new_figure(2, len(NAMES), width=4.6 * len(NAMES), height=8.2)
    for i, dataset in enumerate(NAMES):
        draw_paper(axes[i], dataset, kept)
        draw_sound(axes[len(NAMES) + i], dataset, kept)
    for axis in axes:
        axis.set(xlabel="sigma", ylabel="test accuracy", xlim=(0.8, max(SIGMAS) + 0.2))
        axis.title.set_fontsize(9)
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    save(figure, str(path))


def draw_paper(axis: Any, dataset: str, kept: Kept) -> None:
    """Its variant: no sigma changes a bit, and so the runs at sigma = 1, which have the marks, stand for all."""
    theirs = PAPER[dataset].table_2
    axis.plot(list(theirs), list(theirs.values()), "kx", label="global, paper, 5 parties", zorder=5)
    first, *others = of_five(kept, dataset)
    wide = [s for s in others if s.wide]
    points(axis, kept, wide, "global, 5 parties, DCGANs, networks twice as wide", "C3", "D")
    bases: list[float] = []
    for color, parties in COLORS.items():
        s = replace(first, parties=parties)
        if s in kept:
            points(axis, kept, [s], f"global, {parties} parties", color, "o")
            base, alone, best = accuracies(kept[s])
            bases += base
            axis.axhline(statistics.fmean(best), color=color, lw=1.2)
            words = f"standalone, {parties} parties"
            axis.axhline(statistics.fmean(alone), color=color, lw=0.9, ls=":", label=words)
    if bases:
        axis.axhline(statistics.fmean(bases), color="0.4", lw=0.9, ls="-.", label="baseline: all examples")
    axis.set(title=f"{NAMES[dataset]}: {recipe(first)}")


def draw_sound(axis: Any, dataset: str, kept: Kept) -> None:
    """The sound variant, by exact votes: of images with fewer steps, but for one run."""
    sound = [s for s in kept if (s.dataset, s.sound) == (dataset, True)]
    for color, parties in COLORS.items():
        runs = [s for s in sound if s.parties == parties and not s.full]
        points(axis, kept, runs, f"sound, {parties} parties", color, "^")
    points(axis, kept, [s for s in sound if s.full], f"sound, 5 parties, T = {PAPER[dataset].steps:,}", "C0", "s")
    axis.set(title=f"{NAMES[dataset]}, sound: T = {OURS[dataset][1]:,}, exact votes")


def points(axis: Any, kept: Kept, runs: list[Setting], label: str, color: str, marker: str) -> None:
    """Accuracies of what was run over sigma, and the deviation of the seeds."""
    found = [(s.sigma, [c["global"] for c in kept[s]]) for s in sorted(runs, key=lambda s: s.sigma)]
    rows = [(sigma, statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else 0.0) for sigma, v in found]
    if rows:
        axis.errorbar(*zip(*rows, strict=True), color=color, marker=marker, ms=4, capsize=2, lw=1.2, label=label)
