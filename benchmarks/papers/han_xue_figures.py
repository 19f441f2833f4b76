# SPDX-License-Identifier: Apache-2.0
"""Han and Xue's Figures 6 and 8, from the cells that are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.papers import pictures
from benchmarks.papers.common import Cell
from benchmarks.papers.han_xue_plan import OURS, PAPER, Setting
from benchmarks.papers.han_xue_tables import NAMES, Kept, accuracies, kept_of, of_five
from benchmarks.papers.pictures import Line, Panel

PARTIES = (5, 10, 20)


def draw(cells: dict[str, Cell], path: Path) -> None:
    """Figures 6 and 8, a column for each dataset, and the sound variant apart, as its accuracies are elsewhere."""
    kept = kept_of(cells)
    pictures.save([make(dataset, kept) for make in (of_sigma, of_parties) for dataset in NAMES], path)
    pictures.save([sound(dataset, kept) for dataset in NAMES], path.with_name(f"{path.stem}-sound.png"))


def of_sigma(dataset: str, kept: Kept) -> Panel:
    """Figure 6: five parties. The runs are of sigma = 1 and stand for all, as no sigma changes a bit."""
    first, *others = of_five(kept, dataset)
    base, alone, best = accuracies(kept[first])
    lines = [("global", best), ("standalone", alone), ("baseline: all examples", base)]
    lines += [("global, DCGANs, networks twice as wide", accuracies(kept[s])[2]) for s in others if s.wide]
    theirs = list(PAPER[dataset].table_2.items())
    every = [100 * a for _, accuracies in lines for a in accuracies] + [100 * a for _, a in theirs]
    return Panel(
        f"Figure 6: {NAMES[dataset]}, run at sigma = 1", "sigma", (min(every) - 1, max(every) + 1),
        [(label, [(1.0, accuracies)]) for label, accuracies in lines],
        crosses=[("paper, global", theirs, "k")], flat=True,
    )  # fmt: skip


def of_parties(dataset: str, kept: Kept) -> Panel:
    """Figure 8 has 10 and 20 parties over sigma, in a plot alone; here over the parties."""
    first = of_five(kept, dataset)[0]
    runs = [(n, accuracies(kept[s])) for n in PARTIES if (s := replace(first, parties=n)) in kept]
    lines: list[Line] = [("global", [(n, best) for n, (_, _, best) in runs])]
    lines.append(("standalone", [(n, alone) for n, (_, alone, _) in runs]))
    every = [100 * a for _, points in lines for _, found in points for a in found]
    return Panel(
        f"Figure 8: {NAMES[dataset]}, sigma = 1", "parties", (min(every) - 1, max(every) + 1), lines, ticks=PARTIES
    )


def sound(dataset: str, kept: Kept) -> Panel:
    """The sound variant, by exact votes: of images with fewer steps, but for one run."""
    runs = [s for s in kept if (s.dataset, s.sound) == (dataset, True)]

    def line(label: str, chosen: list[Setting]) -> Line:
        return label, [(s.sigma, [cell["global"] for cell in kept[s]]) for s in chosen]

    lines = [line(f"{n} parties", [s for s in runs if s.parties == n and s.steps == OURS[dataset][1]]) for n in PARTIES]
    lines.append(line(f"5 parties, T = {PAPER[dataset].steps:,}", [s for s in runs if s.full]))
    title = f"{NAMES[dataset]}, sound: T = {OURS[dataset][1]:,}, exact votes"
    return Panel(title, "sigma", (70, 88) if dataset == "adult" else (0, 100), lines)
