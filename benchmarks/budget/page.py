# SPDX-License-Identifier: Apache-2.0
"""The table and the picture of what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import results
from benchmarks.budget.task import Task
from ldpkernels import plot
from ldpkernels.planning import TRUSTS, Candidate

COLORS = {"local": "#c0392b", "shuffled": "#e08e45", "secure-aggregation": "#1f6f8b", "central": "#5d4e8c"}
MARKERS = {
    "two-point": "o",
    "piecewise": "s",
    "hybrid": "D",
    "k-of-d": "v",
    "privunitg": "^",
    "gaussian": "P",
    "central gaussian": "*",
}
WORDS = {
    "local": "no one is trusted",
    "shuffled": "a shuffler",
    "secure-aggregation": "secure aggregation",
    "central": "the server",
}
Found = Mapping[Any, float]
Plans = Mapping[tuple[int, float, str], Mapping[str, Candidate]]


def write(folder: Path, task: Task, weights: int, facts: dict[str, str], found: Found, plans: Plans) -> str:
    """The files, and the text of the table."""
    counts = sorted({cell.clients for cell in found if cell.clients})
    clean = [value for cell, value in found.items() if cell.mechanism == "no noise"]
    parts = [f"# Accuracy over a client's total epsilon: {task.dataset}, {weights:,} weights, {task.rounds} rounds\n"]
    parts.append(f"![accuracy over epsilon]({task.dataset}.png)\n")
    parts.append(f"No noise: {interval(clean)}. Mean and 95% interval of it over {len(clean)} seeds, delta = 1e-5.\n")
    figure, axes = plot.new_figure(1, len(counts), 6.2 * len(counts), 4.6)
    for axis, clients in zip(axes, counts, strict=True):
        parts.append(f"## {clients:,} clients a round\n\n{table(found, clients)}\n")
        draw(axis, found, clients, float(np.mean(clean)))
        axis.set_title(f"{task.dataset}, {clients:,} clients a round", loc="left", fontsize=10)
    plot.save(figure, folder / f"{task.dataset}.png")
    parts.append(results.facts_table(facts))
    text = "\n".join(parts)
    (folder / f"{task.dataset}.md").write_text(text + "\n")
    return text


def series(found: Found, clients: int) -> dict[tuple[str, str], dict[float, list[float]]]:
    """By trust and mechanism, then by epsilon: the accuracies of all seeds."""
    rows: dict[tuple[str, str], dict[float, list[float]]] = {}
    for cell, value in found.items():
        if cell.clients == clients:
            rows.setdefault((cell.trust, cell.mechanism), {}).setdefault(cell.epsilon, []).append(value)
    return dict(sorted(rows.items(), key=lambda row: (TRUSTS.index(row[0][0]), row[0][1])))


def half_width(values: list[float]) -> float:
    """Of Student's 95% interval of the mean."""
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def interval(values: list[float]) -> str:
    return f"{100 * np.mean(values):.1f} ± {100 * half_width(values):.1f}"


def table(found: Found, clients: int) -> str:
    rows = series(found, clients)
    epsilons = sorted({epsilon for row in rows.values() for epsilon in row})
    body = [
        [f"{WORDS[trust]}: {name}", *(interval(row[e]) if e in row else "" for e in epsilons)]
        for (trust, name), row in rows.items()
    ]
    return results.table(["trusted: mechanism", *(f"ε = {e:g}" for e in epsilons)], body)


def draw(axis: Any, found: Found, clients: int, clean: float) -> None:
    for (trust, name), row in series(found, clients).items():
        epsilons = sorted(row)
        means = [100 * float(np.mean(row[e])) for e in epsilons]
        errors = [100 * half_width(row[e]) for e in epsilons]
        label = f"{WORDS[trust]}: {name.removeprefix('central ')}"
        if (trust, name) == ("shuffled", "two-point"):
            label = "a shuffler or secure aggregation: two-point"
        axis.errorbar(
            epsilons,
            means,
            errors,
            color=COLORS[trust],
            marker=MARKERS.get(name, "x"),
            ms=4.5,
            lw=1.4,
            elinewidth=0.8,
            label=label,
        )
    axis.axhline(100 * clean, color="#777777", ls="--", lw=1, label="no noise")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("a client's total ε over all rounds (δ = 1e-5)")
    axis.set_ylabel("test accuracy, %")
    axis.set_ylim(0, 100)
    axis.legend(fontsize=7, frameon=False, loc="best")
