# SPDX-License-Identifier: Apache-2.0
"""The tables and the picture of the kept runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.budget import page as budget
from benchmarks.budget.page import COLORS, NAMES, half_width, interval
from benchmarks.papers.common import facts, left_open
from benchmarks.results import facts_table, filled, table

TRUSTS = ("secure-aggregation", "central", "shuffled", "local")
EPSILONS = (8.0, 2.0, 1.0)
SEEDS = 3
WORDS = {**budget.WORDS, "shuffled": "secure sums of reports"}  # which serve in a shuffler's stead
MECHANISMS = {  # the best of each plan that has an app
    "secure-aggregation": "distributed-gaussian",
    "central": "central gaussian",
    "shuffled": "two-point",
    "local": "gaussian",
}
Found = Mapping[str, dict[str, Any]]


def name_of(kind: str, trust: str, epsilon: float, seed: int) -> str:
    """The name under which a run is kept."""
    return f"{kind} trust={trust or 'no noise'} epsilon={epsilon:g} seed={seed}"


def of_seeds(found: Found, kind: str, trust: str, epsilon: float) -> dict[int, dict[str, Any]]:
    """The kept runs by seed."""
    names = {seed: name_of(kind, trust, epsilon, seed) for seed in range(SEEDS)}
    return {seed: found[name] for seed, name in names.items() if name in found}


def write(path: Path, found: dict[str, dict[str, Any]], page: Path | None) -> str:
    """The tables, the picture beside the kept runs, and where one is named a page with the tables in it."""
    made = tables(found)
    for suffix in (".svg", ".png"):
        picture(path.with_suffix(suffix), found)
    if page is not None:
        page.write_text(filled(page.read_text(), made))
    return "\n\n".join(made.values())


def tables(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """By the marks of a page."""
    made = {"deployed": accuracies(found), "cost": costs(found)}
    return made | {"where-and-when": facts_table(facts(found))}


def accuracies(found: Found) -> str:
    """Apps beside simulations: the difference is seed by seed, with Student's interval. What was not run is empty."""
    rows = []
    for trust in TRUSTS:
        for epsilon in sorted(EPSILONS):
            apps, ours = (of_seeds(found, kind, trust, epsilon) for kind in ("app", "simulation"))
            both = [100 * (apps[seed]["accuracy"] - ours[seed]["accuracy"]) for seed in apps if seed in ours]
            difference = f"{fmean(both):+.1f}" if both else ""
            rows.append(
                [
                    f"{WORDS[trust]}: {NAMES.get(MECHANISMS[trust], MECHANISMS[trust])}",
                    f"{epsilon:g}",
                    shown([run["accuracy"] for run in apps.values()]),
                    shown([run["accuracy"] for run in ours.values()]),
                    difference + (f" ± {left_open(both):.1f}" if len(both) > 1 else ""),
                    largest(apps, "planned"),
                    largest(apps, "spent"),
                    f"{len(apps)} and {len(ours)}",
                ]
            )
    header = ["trusted: mechanism", "ε", "app, %", "simulation, %", "difference", "planned", "ledgers", "seeds run"]
    return table(header, rows)


def largest(runs: Mapping[int, dict[str, Any]], name: str) -> str:
    """The largest epsilon of some runs; nothing of none."""
    return f"{max(run[name] for run in runs.values()):.5f}" if runs else ""


def costs(found: Found) -> str:
    """What a round takes."""
    rows = []
    for trust in TRUSTS:
        for epsilon in sorted(EPSILONS):
            apps = list(of_seeds(found, "app", trust, epsilon).values())
            if apps:
                seconds = median([second for run in apps for second in run["round_seconds"]])
                rows.append(
                    [
                        WORDS[trust],
                        f"{epsilon:g}",
                        f"{seconds:.1f}",
                        f"{median([run['up'] for run in apps]):,.0f}",
                        f"{median([run['down'] for run in apps]):,.0f}",
                        f"{min(count for run in apps for count in run['reports'])}",
                        f"{apps[0]['ledgers']}",
                    ]
                )
    header = ["trusted", "ε", "seconds a round", "bytes up", "bytes down", "fewest reports", "ledgers"]
    return table(header, rows)


def shown(values: list[float]) -> str:
    """Percent, with Student's interval where there are several seeds."""
    if len(values) > 1:
        return interval(values)
    return f"{100 * values[0]:.1f}" if values else ""


def picture(path: Path, found: Found) -> None:
    """Accuracy over the total, and over the rounds at the largest of them."""
    from ldpkernels.common import plot

    figure, (left, right) = plot.new_figure(1, 2, 10.5, 4.0)
    clean = [run["accuracy"] for run in of_seeds(found, "simulation", "", 0.0).values()]
    for axis in (left, right):
        if clean:
            axis.axhline(100 * fmean(clean), color="#777777", ls="--", lw=1, label="no noise")
        axis.set_ylim(0, 100)
    for shift, trust in enumerate(TRUSTS):
        for kind, look in (
            ("simulation", {"ls": "-", "marker": "s", "mfc": "none"}),
            ("app", {"ls": "", "marker": "o"}),
        ):
            runs = {e: list(of_seeds(found, kind, trust, e).values()) for e in sorted(EPSILONS)}
            at = [e for e, kept in runs.items() if kept]
            values = [[run["accuracy"] for run in runs[e]] for e in at]
            half = [100 * half_width(v) if len(v) > 1 else 0.0 for v in values]
            label = WORDS[trust] if kind == "app" and at else None
            places = [e * (1 + 0.02 * (shift - 1.5)) for e in at]
            means = [100 * fmean(v) for v in values]
            left.errorbar(places, means, half, color=COLORS[trust], label=label, capsize=2, ms=5, lw=1.2, **look)
        for run in of_seeds(found, "app", trust, max(EPSILONS)).values():
            right.plot([100 * value for value in run["accuracies"]], color=COLORS[trust], lw=1.2)
    left.set_xscale("log", base=2)
    left.set_xlim(min(EPSILONS) / 1.25, max(EPSILONS) * 1.25)
    left.set_xticks(sorted(EPSILONS), [f"{e:g}" for e in sorted(EPSILONS)])
    left.set_xlabel("a client's total ε (δ = 1e-5)")
    left.set_ylabel("test accuracy, %")
    left.set_title("Points: the apps. Squares: simulated", loc="left", fontsize=10)
    right.set_title(f"The apps at ε = {max(EPSILONS):g}, a line a seed", loc="left", fontsize=10)
    right.set_xlabel("rounds")
    right.set_xticks(range(0, 21, 5))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, title="trusted", fontsize=8.5, frameon=False, loc="outside right center")
    figure.suptitle("MNIST, 100 clients of 300 images, 21,840 weights, 20 rounds", fontsize=11, x=0.01, ha="left")
    plot.save(figure, path)
