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
from ldpkernels.common import plot
from ldpkernels.planning import TRUSTS

COLORS = {"local": "#c0392b", "shuffled": "#e08e45", "secure-aggregation": "#1f6f8b", "central": "#5d4e8c"}
MARKERS = {
    "two-point": "o",
    "piecewise": "s",
    "hybrid": "D",
    "k-of-d": "v",
    "privunitg": "^",
    "gaussian": "P",
    "distributed-gaussian": "P",
    "skellam": "X",
    "projected-code": "<",
    "central gaussian": "*",
    "adaptive discrete": "h",
    "adaptive skellam": "h",
}
WORDS = {
    "local": "no one",
    "shuffled": "a shuffler",
    "secure-aggregation": "secure sums",
    "central": "the server",
}
NAMES = {"central gaussian": "Gaussian", "gaussian": "Gaussian", "distributed-gaussian": "shares of a Gaussian"}
NAMES |= {"skellam": "shares of a Skellam", "projected-code": "a code of 2 bytes"}
NAMES |= {"adaptive discrete": "adaptive clipping", "adaptive skellam": "adaptive clipping"}
NAMES |= {"privunitg": "PrivUnitG", "k-of-d": "k of d"}
TITLES = {"digits": "Digits", "mnist": "MNIST"}
Found = Mapping[Any, float]


def write(folder: Path, task: Task, weights: int, facts: dict[str, str], found: Found) -> str:
    """The files, and the text of the table."""
    counts = sorted({cell.clients for cell in found if cell.clients})
    clean = [value for cell, value in found.items() if cell.mechanism == "no noise"]
    parts = [f"# Accuracy over a client's total epsilon: {task.dataset}, {weights:,} weights, {task.rounds} rounds\n"]
    parts.append(f"![accuracy over epsilon]({task.dataset}.png)\n")
    parts.append(f"No noise: {interval(clean)}. Mean and 95% interval of it over {len(clean)} seeds, delta = 1e-5.\n")
    for clients in counts:
        parts.append(f"## {clients:,} clients a round\n\n{table(found, clients)}\n")
    picture(folder / f"{task.dataset}.png", task, weights, found, counts)
    parts.append(results.facts_table(facts))
    text = "\n".join(parts)
    (folder / f"{task.dataset}.md").write_text(text + "\n")
    return text


def series(found: Found, clients: int) -> dict[tuple[str, str], dict[float, list[float]]]:
    """The accuracies of all seeds by trust and mechanism, then by epsilon."""
    rows: dict[tuple[str, str], dict[float, list[float]]] = {}
    for cell, value in found.items():
        if cell.clients == clients:
            rows.setdefault((cell.trust, cell.mechanism), {}).setdefault(cell.epsilon, []).append(value)
    return dict(sorted(rows.items(), key=lambda row: (TRUSTS.index(row[0][0]), row[0][1])))


def half_width(values: list[float]) -> float:
    """Half of Student's 95% interval of the mean."""
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def interval(values: list[float]) -> str:
    return f"{100 * np.mean(values):.1f} ± {100 * half_width(values):.1f}"


def table(found: Found, clients: int) -> str:
    rows = series(found, clients)
    epsilons = sorted({epsilon for row in rows.values() for epsilon in row})
    body = [
        [f"{WORDS[trust]}: {NAMES.get(name, name)}", *(interval(row[e]) if e in row else "" for e in epsilons)]
        for (trust, name), row in rows.items()
    ]
    return results.table(["trusted: mechanism", *(f"ε = {e:g}" for e in epsilons)], body)


def picture(path: Path, task: Task, weights: int, found: Found, counts: list[int]) -> None:
    """A panel for each number of clients, and one legend: colors are trusts, markers mechanisms."""
    figure, axes = plot.new_figure(1, len(counts), 4.3 * len(counts) + 2.4, 4.2)
    clean = float(np.mean([value for cell, value in found.items() if cell.mechanism == "no noise"]))
    for axis, clients in zip(axes, counts, strict=True):
        draw(axis, found, clients, clean)
        axis.set_title(f"{clients:,} clients a round", loc="left", fontsize=10)
    axes[0].set_ylabel("test accuracy, %")
    handles = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), fontsize=8, frameon=False, loc="outside right center")
    figure.suptitle(
        f"{TITLES[task.dataset]}, {weights:,} weights, {task.rounds} rounds: accuracy over what a client loses in all",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    plot.save(figure, path)


def draw(axis: Any, found: Found, clients: int, clean: float) -> None:
    axis.axhline(100 * clean, color="#777777", ls="--", lw=1, label="no noise")
    for (trust, name), row in reversed(series(found, clients).items()):
        epsilons = sorted(row)
        means = np.array([100 * float(np.mean(row[e])) for e in epsilons])
        half = np.array([100 * half_width(row[e]) for e in epsilons])
        label = f"{WORDS[trust]}: {NAMES.get(name, name)}"
        if (trust, name) == ("shuffled", "two-point"):
            label = "a shuffler, or secure sums: two-point"
        axis.plot(epsilons, means, color=COLORS[trust], marker=MARKERS.get(name, "x"), ms=4.5, lw=1.3, label=label)
        axis.fill_between(epsilons, means - half, means + half, color=COLORS[trust], alpha=0.12, lw=0)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("a client's total ε (δ = 1e-5)")
    axis.set_ylim(0, 100)
