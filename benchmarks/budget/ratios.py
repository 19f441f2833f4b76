# SPDX-License-Identifier: Apache-2.0
"""What accuracy a model reached at which noise, of all runs that `python -m benchmarks.budget` has measured.

    python -m benchmarks.budget.ratios

writes ldpkernels/planning/measured.json, which `ldpkernels.plan` quotes, and a picture. The noise of a run is what the
plan says of it: the error of a round's mean over the norm of an update, over the root of the rounds.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import ldpkernels
from benchmarks.budget.page import COLORS, TITLES, WORDS
from benchmarks.budget.task import TASKS
from ldpkernels.common import plot

ROOT = Path(__file__).parents[2]
RESULTS = {name: ROOT / f"benchmarks/results/2026-11-22-budget-{name}.jsonl" for name in ("digits", "mnist")}
WEIGHTS = {"digits": 650, "mnist": 7850}  # of a softmax regression
TABLE, PICTURE = ROOT / "ldpkernels/planning/measured.json", ROOT / "docs/assets/noise-to-signal.png"
A_DOUBLING = 2  # points
LEAST, MOST = 0.05, 32.0  # ratios: below, noise changes nothing, and above, nothing is learnt
Key = tuple[int, float, str, str]  # clients, total, trust, mechanism
Points = list[tuple[float, float, str]]  # the ratio, the accuracy of all seeds, the trust


def accuracies(name: str) -> tuple[float, dict[Key, float]]:
    """The accuracy without noise, and that of every number of clients, total, trust and mechanism."""
    found: dict[Key, list[float]] = defaultdict(list)
    for line in RESULTS[name].read_text().splitlines():
        row = json.loads(line)
        found[tuple(row["cell"][1:5])].append(row["accuracy"])
    means = {key: _mean(seeds) for key, seeds in found.items()}
    return means.pop((0, math.inf, "", "no noise")), means


def measured(name: str) -> tuple[float, Points]:
    """The accuracy without noise, and all others at their ratios."""
    clean, found = accuracies(name)
    ratios = {key: ratio for cell in {key[:3] for key in found} for key, ratio in planned(name, *cell).items()}
    return clean, sorted((ratios[key], accuracy, key[2]) for key, accuracy in found.items() if key in ratios)


def planned(name: str, clients: int, epsilon: float, trust: str) -> dict[Key, float]:
    """The noise to signal of all rounds, of each candidate."""
    task = TASKS[name]
    found = ldpkernels.plan(
        epsilon, rounds=task.rounds, clients=clients, weights=WEIGHTS[name], trust=trust,
        radius=task.radius, norm=task.norm,
    )  # fmt: skip
    return {(clients, epsilon, trust, one.name): one.noise_to_signal_of_run for one in found}


def table(points: Points) -> list[list[float]]:
    """For each part of a doubling: its ratio, the mean accuracy, and the least and the largest."""
    cells: dict[int, Points] = defaultdict(list)
    for point in points:
        if LEAST <= point[0] <= MOST:
            cells[math.floor(A_DOUBLING * math.log2(point[0]))].append(point)
    rows = []
    for _, cell in sorted(cells.items()):
        ratio = math.exp(_mean([math.log(one[0]) for one in cell]))
        accuracies = [one[1] for one in cell]
        rows.append(
            [float(f"{ratio:.3g}"), *(round(f, 3) for f in (_mean(accuracies), min(accuracies), max(accuracies)))]
        )
    return rows


def described(name: str) -> str:
    return f"{TITLES[name]} (softmax regression, {WEIGHTS[name]:,} weights, {TASKS[name].rounds} rounds)"


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def main() -> None:
    tasks = []
    figure, axes = plot.new_figure(len(RESULTS), 1, 4.8, 6.4)
    for axis, name in zip(axes, RESULTS, strict=True):
        clean, points = measured(name)
        rows = table(points)
        source = RESULTS[name].relative_to(ROOT).as_posix()
        tasks.append({"task": TITLES[name], "source": source, "clean": round(clean, 3), "points": rows})
        for (trust, color), mark in zip(COLORS.items(), "os^D", strict=False):
            own = [(ratio, 100 * accuracy) for ratio, accuracy, of in points if of == trust]
            axis.scatter(
                *zip(*own, strict=True), s=12, marker=mark, color=color, label=f"trusted: {WORDS[trust]}", alpha=0.7
            )
        axis.plot([row[0] for row in rows], [100 * row[1] for row in rows], color="#333333", lw=1.2)
        axis.axhline(100 * clean, color="#777777", ls="--", lw=1)
        axis.set_xscale("log")
        axis.set_ylim(0, 100)
        axis.set_title(described(name), loc="left", fontsize=9)
        axis.set_ylabel("test accuracy, %")
    axes[-1].set_xlabel("noise to signal of all rounds together")
    axes[0].legend(fontsize=9, frameon=False)
    TABLE.write_text('{"tasks": [\n' + ",\n".join(json.dumps(one) for one in tasks) + "\n]}\n")
    for suffix in (".png", ".svg"):
        plot.save(figure, PICTURE.with_suffix(suffix))


if __name__ == "__main__":
    main()
