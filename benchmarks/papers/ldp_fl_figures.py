# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's Figures 3, 4 and 5 from the cells that are there."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Cell
from benchmarks.papers.ldp_fl_plan import EPOCHS, PAPER, Setting, by_few, setting
from benchmarks.papers.ldp_fl_tables import HEADLINES, NAMES, TABLE_1, Kept, finals, kept_of

PLAIN: dict[str, Any] = {"color": "0.55", "ls": "--"}
Line = tuple[str, Sequence[tuple[float, Setting]], dict[str, Any]]  # label, a run for each x, style
Crosses = tuple[str, Sequence[tuple[float, float]], str]  # label, the paper's accuracies over x, color


@dataclass(frozen=True)
class Panel:
    """A picture of the figure: curves over x, or, in `rounds`, over the rounds of each run."""

    title: str
    xlabel: str
    ylim: tuple[float, float]
    lines: Sequence[Line] = ()
    rounds: Sequence[tuple[str, Setting, dict[str, Any]]] = ()
    crosses: Sequence[Crosses] = ()
    log: bool = False
    ticks: Sequence[float] = ()
    level: tuple[float, str] | None = None  # what the paper says for every x, in percent

    def draw(self, axis: Any, kept: Kept) -> None:
        """Draw what was run, with one deviation of the seeds, and the paper's figures."""
        for label, points, style in self.lines:
            runs = [(x, [100 * v for v in finals(kept, s)]) for x, s in sorted(points, key=lambda point: point[0])]
            means = [(x, statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else 0.0) for x, v in runs if v]
            if means:
                axis.errorbar(*zip(*means, strict=True), label=label, marker="o", ms=3.5, capsize=2, lw=1.2, **style)
        for label, s, style in self.rounds:
            draw_rounds(axis, kept.get(s, []), label, style)
        if self.level is not None:
            axis.axhline(self.level[0], color="0", lw=0.9, ls=":", label=self.level[1])
        for label, paper, color in self.crosses:
            xs, ys = [x for x, _ in paper], [100 * y for _, y in paper]
            axis.plot(xs, ys, "x", color=color, label=label, zorder=5)
        axis.set(title=self.title, xlabel=self.xlabel, ylim=self.ylim, xscale="log" if self.log else "linear")
        if self.ticks:
            axis.set_xticks(self.ticks, [f"{x:g}" for x in self.ticks])
            axis.minorticks_off()
        axis.set_ylabel("test accuracy (%)")
        axis.legend(frameon=False, fontsize=7, loc="best")


def draw_rounds(axis: Any, cells: list[Cell], label: str, style: dict[str, Any]) -> None:
    """Draw the accuracy after each round: the mean of the seeds, and their deviation as a band."""
    by_round = [[100 * a for a in accuracies] for accuracies in zip(*(c["accuracy"] for c in cells), strict=True)]
    rounds, means = range(1, len(by_round) + 1), [statistics.fmean(values) for values in by_round]
    (line,) = axis.plot(rounds, means, label=label, lw=1.3, **style) if cells else (None,)
    if len(cells) > 1:
        deviations = [statistics.stdev(values) for values in by_round]
        low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
        axis.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, lw=0)


def over(xs: Iterable[float], made: Callable[[float], Setting], label: str) -> list[Line]:
    """A curve of runs, and grey the same runs without noise."""
    runs = [(x, made(x)) for x in xs]
    return [(label, runs, {}), ("no noise", [(x, s.twin) for x, s in runs], PLAIN)]


def printed(dataset: str, kind: str, color: str = "k") -> Crosses:
    """The paper's Table 1, and its headline for the kind of ranges that has it, over eps."""
    found = [(eps, TABLE_1[dataset, eps, kind]) for eps in (5.0, 10.0)]
    found += [(eps, v) for (d, eps), v in HEADLINES.items() if d == dataset and color == "k"]
    return "paper" if color == "k" else f"paper, {kind}", found, color


def titled(figure: str, dataset: str, words: str = "") -> str:
    """A panel's title."""
    return f"{figure}: {NAMES[dataset]}{words}, E = {EPOCHS[dataset]}"


def mnist_panels() -> list[Panel]:
    """MNIST, where all clients train."""

    def noisy(eps: float = 1.0, upload: str = "updates", **changes: Any) -> Setting:
        return setting("mnist", eps, upload=upload, **changes)

    radii, budgets, clients = (0.02, 0.075, 0.15, 0.3, 0.6), (0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0), (20, 50, 100, 500)
    headline, long = HEADLINES["mnist", 1.0], noisy(rounds=30)
    of_eps = over(budgets, noisy, "updates, r = .075")
    of_eps.append(("weights, adaptive", [(v, setting("mnist", v, ranges="adaptive")) for v in budgets], {}))
    of_eps.append(("weights, r = .075", [(v, setting("mnist", v)) for v in budgets], {}))
    of_fraction = over((0.1, 0.3, 0.6, 1.0), lambda f: noisy(clients=500, fraction=f), "updates, eps = 1")
    updates, plain = over(radii, lambda r: noisy(radius=r), "updates")
    of_radius = [updates, ("weights", [(r, noisy(upload="weights", radius=r)) for r in radii], {}), plain]
    eps_printed = [printed("mnist", "fixed"), printed("mnist", "adaptive", "C1")]
    of_n = over(clients, lambda n: noisy(clients=int(n)), "updates, eps = 1")
    share = "fraction of 500 clients in a round"
    return [
        Panel(titled("Figure 3", "mnist"), "clients n, of 60,000 / n examples each", (80, 100), of_n,
              crosses=[("paper", [(100, headline)], "k")], log=True, ticks=clients),
        Panel(titled("Figure 4a", "mnist", ", n = 100"), "round", (60, 100),
              rounds=[("updates, eps = 1", long, {}), ("no noise", long.twin, PLAIN)],
              crosses=[("paper", [(10, headline)], "k")]),
        Panel(titled("Figure 4b", "mnist", ", T = 10"), share, (60, 100), of_fraction),
        Panel(titled("Figure 5a", "mnist", ", n = 100"), "eps of a weight", (80, 100), of_eps,
              crosses=eps_printed, log=True),
        Panel("As Figure 5d, for MNIST, eps = 1", "radius r", (0, 100), of_radius, log=True, ticks=radii),
    ]  # fmt: skip


def fashion_panels() -> list[Panel]:
    """Fashion-MNIST, where 20 clients stand for all."""
    dataset, headline = "fashion-mnist", HEADLINES["fashion-mnist", 4.0]

    def noisy(eps: float = 4.0, trained: int = 20, **changes: Any) -> Setting:
        return setting(dataset, eps, trained=trained, **{"upload": "updates", **changes})

    def adaptive(eps: float) -> Setting:
        return noisy(eps, upload="weights", ranges="adaptive")

    budgets, clients = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0), (100, 200, 500, 1000)
    readings: list[tuple[str, Setting, dict[str, Any]]] = [
        ("updates, r = .015", noisy(), {}),
        ("weights, adaptive", adaptive(4.0), {}),
        ("weights, r = .15", noisy(upload="weights", radius=0.15), {}),
        ("updates, r = .015, all 200 train", noisy(trained=0), {"ls": ":"}),
        ("updates, r = .06, all 200 train", noisy(trained=0, radius=0.06), {"ls": ":"}),
        ("no noise", noisy().twin, PLAIN),
    ]
    of_eps = [
        *over(budgets, noisy, "updates, r = .015"),
        ("weights, adaptive", [(e, adaptive(e)) for e in budgets], {}),
    ]
    of_n = over(clients, lambda n: noisy(5.0, clients=int(n)), "updates, eps = 5")
    of_fraction = over((0.04, 0.2, 1.0), lambda f: noisy(clients=500, fraction=f), "updates, eps = 4")
    eps_printed = [printed(dataset, "fixed"), printed(dataset, "adaptive", "C1")]
    share = "fraction of 500 clients in a round"
    return [
        Panel(titled("Figure 3", dataset), "clients n, of 60,000 / n examples each", (70, 90), of_n,
              crosses=[("paper", [(200, TABLE_1[dataset, 5.0, "fixed"])], "k")], log=True, ticks=clients),
        Panel(titled("Figure 4a", dataset, ", eps = 4"), "round", (60, 90), rounds=readings,
              crosses=[("paper", [(15, headline)], "k")]),
        Panel(titled("Figure 4b", dataset, ", T = 15"), share, (70, 90), of_fraction),
        Panel(titled("Figure 5b", dataset, ", n = 200"), "eps of a weight", (70, 90), of_eps, crosses=eps_printed),
    ]  # fmt: skip


def cifar_panels() -> list[Panel]:
    """CIFAR-10, where 20 clients stand for all: the small VGG, and the wide network on images half of them mirrored."""
    dataset, eps, rate, ylim = "cifar10", 10.0, PAPER["cifar10"][3], (0, 70)
    budgets, radii, clients = (1.0, 3.0, 5.0, 10.0), (0.1, 0.3, 1.0), (100, 200, 500)
    all_train = setting(dataset, eps, ranges="adaptive")
    (adaptive,) = by_few([all_train])
    wide = replace(adaptive, network="wide-cnn-mirrored")
    moved = replace(wide, upload="updates", radius=0.05, rate=0.05)
    dotted, dashed = {**PLAIN, "ls": ":"}, {**PLAIN, "ls": "-."}
    readings: list[tuple[str, Setting, dict[str, Any]]] = [
        ("small VGG, weights, adaptive, all 500 train", all_train, {}),
        ("small VGG, no noise, all 500 train", all_train.twin, PLAIN),
        (f"wide, weights, adaptive, rate {rate:g}", wide, {}),
        (f"wide, no noise, rate {rate:g}", wide.twin, dotted),
        (f"wide, updates, r = .05, rate {moved.rate:g}", moved, {}),
        (f"wide, no noise, rate {moved.rate:g}", moved.twin, dashed),
    ]
    of_eps: list[Line] = []
    for s, name, style in ((adaptive, "small VGG", PLAIN), (wide, f"wide, rate {rate:g}", dotted)):
        runs = [(v, replace(s, eps=v)) for v in budgets]
        of_eps += [
            (f"{name}, weights, adaptive", runs, {}),
            (f"{name}, no noise", [(v, s.twin) for v in budgets], style),
        ]
    words = "small VGG, weights, adaptive"
    of_n = over(clients, lambda n: replace(adaptive, clients=int(n)), words)
    of_fraction = over((0.04, 0.2, 1.0), lambda f: replace(adaptive, fraction=f), words)
    of_radius: list[Line] = [("small VGG, weights", [(r, replace(adaptive, radius=r)) for r in radii], {})]
    of_radius.append(("the same, adaptive", [(r, adaptive) for r in radii], {"color": "C1"}))
    of_radius.append(("no noise", [(r, adaptive.twin) for r in radii], PLAIN))
    both, after = (HEADLINES[dataset, eps], TABLE_1[dataset, eps, "adaptive"]), ", eps = 10"
    return [
        Panel(titled("Figure 3", dataset, after), "clients n, of 50,000 / n examples each", ylim, of_n,
              crosses=[("paper", [(500, v) for v in both], "k")], log=True, ticks=clients),
        Panel(titled("Figure 4a", dataset, after), "round", ylim, rounds=readings,
              crosses=[("paper", [(15, v) for v in both], "k")]),
        Panel(titled("Figure 4b", dataset, after), "fraction of 500 clients in a round", ylim, of_fraction),
        Panel(titled("Figure 5c", dataset, ", n = 500"), "eps of a weight", ylim, of_eps,
              crosses=[printed(dataset, "adaptive")]),
        Panel(titled("Figure 5d", dataset, after), "radius r", ylim, of_radius, log=True, ticks=radii,
              crosses=[("paper", [(1.0, TABLE_1[dataset, eps, "fixed"])], "k")],
              level=(20, 'paper: "around 20%" at any r')),
    ]  # fmt: skip


def draw(cells: dict[str, Cell], path: Path) -> None:
    """Draw Figures 3, 4 and 5: a row for each, and a column for each dataset. Figure 5 has two rows."""
    from ldpkernels.plot import new_figure, save

    kept = kept_of(cells)
    *mnist, as_5d = mnist_panels()
    *cifar, of_radius = cifar_panels()
    rows = list(zip(mnist, fashion_panels(), cifar, strict=True))
    figure, axes = new_figure(5, 3, width=13.5, height=19.0)
    shown = [panel for row in rows for panel in row] + [as_5d, of_radius]
    for axis, panel in zip(axes, shown, strict=False):
        panel.draw(axis, kept)
    for axis in axes[len(shown) :]:
        axis.remove()
    save(figure, str(path))
