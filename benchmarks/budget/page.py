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
MARKERS = {"local": "o", "shuffled": "^", "secure-aggregation": "s", "central": "*"}
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
    """A panel for each number of clients, and in it the best mechanism of each trust; the tables have all of them."""
    figure, axes = plot.new_figure(len(counts), 1, 6.2, 3.7 * len(counts))
    clean = 100 * float(np.mean([value for cell, value in found.items() if cell.mechanism == "no noise"]))
    for axis, clients in zip(axes, counts, strict=True):
        draw(axis, found, clients, clean)
        axis.set_title(f"{TITLES[task.dataset]}, {clients:,} clients a round, {task.rounds} rounds", loc="left")
    axes[-1].set_xlabel("ε that a client spends in all (δ = 1e-5)", fontsize=13)
    for suffix in (".png", ".svg"):
        plot.save(figure, path.with_suffix(suffix))


def best(found: Found, clients: int, trust: str) -> dict[float, list[float]]:
    """The accuracies of all seeds by epsilon, each of the mechanism whose mean is highest there."""
    rows = [row for (one, _), row in series(found, clients).items() if one == trust]
    epsilons = sorted({epsilon for row in rows for epsilon in row})
    return {e: max((row[e] for row in rows if e in row), key=np.mean) for e in epsilons}


def draw(axis: Any, found: Found, clients: int, clean: float) -> None:
    """Lines with their labels at the right end, apart from one another: those of equal height would hide each other."""
    axis.axhline(clean, color="#777777", ls="--", lw=1)
    ends = [("no noise", clean, "#777777")]
    for trust in (one for one in TRUSTS if best(found, clients, one)):
        row = best(found, clients, trust)
        means = np.array([100 * float(np.mean(values)) for values in row.values()])
        half = np.array([100 * half_width(values) for values in row.values()])
        axis.plot([*row], means, color=COLORS[trust], marker=MARKERS[trust], ms=6, lw=1.8)
        axis.fill_between([*row], means - half, means + half, color=COLORS[trust], alpha=0.12, lw=0)
        ends.append((f"trust in {WORDS[trust]}", means[0], COLORS[trust]))
    heights = spread_out([height for _, height, _ in ends], 8.0, 100.0)
    for (label, _, color), height in zip(ends, heights, strict=True):
        axis.annotate(
            label, (0, height), (-8, 0), xycoords=("axes fraction", "data"), textcoords="offset points", color=color,
            fontsize=12, ha="right", va="center",
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_ylim(0, 100)
    axis.yaxis.tick_right()
    axis.tick_params(labelsize=12)
    axis.yaxis.set_major_formatter("{x:.0f}%")


def spread_out(heights: list[float], gap: float, most: float) -> list[float]:
    """The heights in their order, at least a gap apart and below the most."""
    order = sorted(range(len(heights)), key=lambda i: -heights[i])
    placed, last = dict.fromkeys(order, 0.0), most + gap
    for i in order:
        last = min(heights[i], last - gap)
        placed[i] = last
    return [placed[i] for i in range(len(heights))]
