# SPDX-License-Identifier: Apache-2.0
"""What a wrong norm costs: test accuracy on digits over the norm that updates are clipped to, for four mechanisms.

`python -m benchmarks.budget.wrong_norm --save NAME` stores NAME.jsonl and draws NAME.png. What was stored is not run
again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from benchmarks.budget import runs
from benchmarks.budget.runs import Cell
from benchmarks.budget.task import TASKS
from ldpkernels.common import plot
from ldpkernels.federated import data
from ldpkernels.planning import Trust

FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
CLIENTS = 1000
# Trust, mechanism, total epsilon: each at a total at which the right norm trains well.
SETTINGS: list[tuple[Trust, str, float]] = [
    ("central", "central gaussian", 2.0),
    ("central", "adaptive discrete", 2.0),
    ("shuffled", "two-point", 8.0),
    ("local", "privunitg", 32.0),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget.wrong_norm", description=__doc__)
    parser.add_argument("--save", type=Path, required=True, metavar="NAME", help="where results and picture are kept")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each (5)")
    options = parser.parse_args()
    store = options.save.with_suffix(".jsonl")
    found = {}
    for line in store.read_text().splitlines() if store.exists() else []:
        row = json.loads(line)
        found[row["mechanism"], row["factor"], row["seed"]] = row["accuracy"]
    dataset = data.load("digits")
    for seed in range(options.seeds):
        for trust, name, epsilon in SETTINGS:
            for factor in FACTORS:
                if (name, factor, seed) in found:
                    continue
                task = replace(
                    TASKS["digits"], norm=TASKS["digits"].norm * factor, radius=TASKS["digits"].radius * factor
                )
                candidate = runs.planned((task, dataset), None, (CLIENTS, epsilon, trust))[name]
                cell = Cell("digits", CLIENTS, epsilon, trust, name, seed)
                accuracy = runs.run((task, dataset), None, (cell, candidate))
                found[name, factor, seed] = accuracy
                row = {"mechanism": name, "factor": factor, "seed": seed, "epsilon": epsilon, "accuracy": accuracy}
                with store.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        print(f"seed {seed + 1}/{options.seeds}", flush=True)
    print(table(found))
    draw(found, options.save.with_suffix(".png"))


def values(found: dict[tuple[str, float, int], float], name: str, factor: float) -> list[float]:
    return [100 * accuracy for (n, f, _), accuracy in found.items() if (n, f) == (name, factor)]


def table(found: dict[tuple[str, float, int], float]) -> str:
    lines = ["| of the right norm | " + " | ".join(f"{n}, ε = {e:g}" for _, n, e in SETTINGS) + " |"]
    lines.append("|---:|" + "---:|" * len(SETTINGS))
    for factor in FACTORS:
        cells = [values(found, name, factor) for _, name, _ in SETTINGS]
        words = [f"{mean(one):.1f} ± {stdev(one):.1f}" if len(one) > 1 else "" for one in cells]
        lines.append(f"| {factor:g} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def draw(found: dict[tuple[str, float, int], float], path: Path) -> None:
    figure, (axes,) = plot.new_figure(1, 1, 7.5, 4.2)
    for (trust, name, epsilon), mark in zip(SETTINGS, "osD^", strict=True):
        if name.startswith("adaptive"):
            continue  # in five rounds it does not leave the line of its neighbour
        means = [mean(values(found, name, factor)) for factor in FACTORS]
        (line,) = axes.plot(FACTORS, means, marker=mark, markersize=5)
        axes.annotate(
            f"{name}, ε = {epsilon:g}\n({trust})",
            (FACTORS[-1], means[-1]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
            annotation_clip=False,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(FACTORS, [f"{f:g}" if f >= 1 else f"1/{round(1 / f)}" for f in FACTORS])
    axes.set_xlabel("norm that updates are clipped to, of the one that suits the run without noise")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("A norm that is too small costs little; one that is too large can cost everything", loc="left")
    for kind in (".png", ".svg"):
        plot.save(figure, path.with_suffix(kind))


if __name__ == "__main__":
    main()
