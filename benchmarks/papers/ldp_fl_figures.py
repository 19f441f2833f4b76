# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's Figures 3, 4 and 5 from the cells that are there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.papers.ldp_fl_cells import HEADLINES, TABLE_1, Kept, finals
from benchmarks.papers.ldp_fl_setting import EPOCHS, PAPER, Setting, by_few, setting


def reach(rows: Sequence[tuple[float, Kept, Setting]]) -> list[tuple[float, float, float]]:
    """Where a curve goes: x, mean and deviation, in points."""
    found = []
    for x, kept, s in rows:
        values = [100 * v for v in finals(kept, s)]
        if values:
            found.append((x, statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0))
    return found


def curve(axis: Any, points: list[tuple[float, float, float]], label: str, **style: Any) -> None:
    """Means with their deviations."""
    if points:
        xs, means, deviations = zip(*sorted(points), strict=True)
        axis.errorbar(xs, means, deviations, label=label, marker="o", ms=3.5, capsize=2, lw=1.2, **style)


PLAIN: dict[str, Any] = {"color": "0.55", "ls": "--"}


def over(
    axis: Any, kept: Kept, values: Sequence[float], make: Callable[[float], Setting], label: str, **style: Any
) -> None:
    """A curve of runs, and grey the same runs without noise."""
    curve(axis, reach([(v, kept, make(v)) for v in values]), label, **style)
    curve(axis, reach([(v, kept, make(v).twin) for v in values]), "no noise", **PLAIN)


def rounds_panel(axis: Any, kept: Kept, shown: Sequence[tuple[Setting, str, dict[str, Any]]]) -> None:
    """Accuracy after each round: the mean of the seeds, and their deviation as a band."""
    for s, label, style in shown:
        cells = kept.get(replace(s, seed=0), [])
        if not cells:
            continue
        by_round = [[100 * a for a in accuracies] for accuracies in zip(*(c["accuracy"] for c in cells), strict=True)]
        rounds, means = range(1, len(by_round) + 1), [statistics.fmean(values) for values in by_round]
        (line,) = axis.plot(rounds, means, label=label, lw=1.3, **style)
        if len(cells) > 1:
            deviations = [statistics.stdev(values) for values in by_round]
            low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
            axis.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, lw=0)


class Panel(NamedTuple):
    """One picture of the figure: its runs, of which some must be there, and what draws them."""

    runs: Sequence[Setting]
    draw: Callable[[Any, Kept], None]
    least: int = 2


def panels() -> list[Panel]:
    """Figures 3, 4 and 5, as far as they are planned: a row for each figure, and a column for each dataset."""
    of_n, of_rounds, of_fraction, of_eps, of_radius = mnist_panels()
    fashion, cifar = fashion_panels(), cifar_panels()
    figure_3, figure_4a = (of_n, fashion[0], cifar[0]), (of_rounds, fashion[1], cifar[1])
    figure_4b, figure_5 = (of_fraction, fashion[2], cifar[4]), (of_eps, fashion[3], cifar[2])
    return [*figure_3, *figure_4a, *figure_4b, *figure_5, of_radius, cifar[3]]


def mnist_panels() -> list[Panel]:
    """Of MNIST: all clients train."""
    updates: dict[str, Any] = {"upload": "updates"}

    def noisy(eps: float) -> Setting:
        return setting("mnist", eps, **updates)

    def of_n(n: float) -> Setting:
        return setting("mnist", 1.0, clients=int(n), **updates)

    def of_fraction(f: float) -> Setting:
        return setting("mnist", 1.0, clients=500, fraction=f, **updates)

    def of_radius(upload: str) -> list[tuple[float, Setting]]:
        return [(r, setting("mnist", 1.0, radius=r, upload=upload)) for r in radii]

    long, epochs = setting("mnist", 1.0, rounds=30, **updates), EPOCHS["mnist"]
    radii = (0.02, 0.075, 0.15, 0.3, 0.6)
    budgets, clients, parts = (0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0), (20, 50, 100, 500), (0.1, 0.3, 0.6, 1.0)

    def draw_eps(axis: Any, kept: Kept) -> None:
        over(axis, kept, budgets, noisy, "updates, r = .075")
        curve(axis, reach([(v, kept, setting("mnist", v, ranges="adaptive")) for v in budgets]), "weights, adaptive")
        curve(axis, reach([(v, kept, setting("mnist", v)) for v in budgets]), "weights, r = .075")
        paper = [(1.0, HEADLINES["mnist", 1.0]), *((e, TABLE_1["mnist", e, "fixed"]) for e in (5.0, 10.0))]
        crosses(axis, paper)
        crosses(axis, [(e, TABLE_1["mnist", e, "adaptive"]) for e in (5.0, 10.0)], "paper, adaptive", "C1")
        axis.set(
            xscale="log", xlabel="eps of a weight", title=f"Figure 5a: MNIST, n = 100, E = {epochs}", ylim=(80, 100)
        )

    def draw_n(axis: Any, kept: Kept) -> None:
        over(axis, kept, clients, of_n, "updates, eps = 1")
        crosses(axis, [(100, HEADLINES["mnist", 1.0])])
        axis.set(
            xscale="log",
            xlabel="clients n, of 60,000 / n examples each",
            title=f"Figure 3: MNIST, E = {epochs}",
            ylim=(80, 100),
        )
        axis.set_xticks(clients, [str(n) for n in clients])
        axis.minorticks_off()

    def draw_rounds(axis: Any, kept: Kept) -> None:
        base = long if finals(kept, long) else noisy(1.0)
        rounds_panel(axis, kept, [(base, "updates, eps = 1", {}), (base.twin, "no noise", PLAIN)])
        crosses(axis, [(10, HEADLINES["mnist", 1.0])])
        axis.set(xlabel="round", title=f"Figure 4a: MNIST, n = 100, E = {epochs}", ylim=(60, 100))

    def draw_fraction(axis: Any, kept: Kept) -> None:
        over(axis, kept, parts, of_fraction, "updates, eps = 1")
        title = f"Figure 4b: MNIST, T = 10, E = {epochs}"
        axis.set(xlabel="fraction of 500 clients in a round", title=title, ylim=(60, 100))

    def draw_radius(axis: Any, kept: Kept) -> None:
        for upload in ("updates", "weights"):
            curve(axis, reach([(r, kept, s) for r, s in of_radius(upload)]), upload)
        curve(axis, reach([(r, kept, s.twin) for r, s in of_radius("updates")]), "no noise", **PLAIN)
        axis.set(xscale="log", xlabel="radius r", title="As Figure 5d, for MNIST, eps = 1", ylim=(0, 100))
        axis.set_xticks(radii, [f"{r:g}" for r in radii])
        axis.minorticks_off()

    return [
        Panel([of_n(v) for v in clients], draw_n),
        Panel([noisy(1.0), noisy(1.0).twin], draw_rounds),
        Panel([of_fraction(v) for v in parts], draw_fraction),
        Panel([noisy(v) for v in budgets], draw_eps),
        Panel([s for _, s in of_radius("updates")], draw_radius),
    ]


def fashion_panels() -> list[Panel]:
    """Of Fashion-MNIST, 20 clients standing for all."""
    updates: dict[str, Any] = {"upload": "updates", "trained": 20}
    epochs, budgets, clients = EPOCHS["fashion-mnist"], (1.0, 2.0, 3.0, 4.0, 5.0, 10.0), (100, 200, 500, 1000)
    parts = (0.04, 0.2, 1.0)
    readings = [
        (setting("fashion-mnist", 4.0, **updates), "updates, r = .015", {}),
        (setting("fashion-mnist", 4.0, ranges="adaptive", trained=20), "weights, adaptive", {}),
        (setting("fashion-mnist", 4.0, radius=0.15, trained=20), "weights, r = .15", {}),
        (setting("fashion-mnist", 4.0, upload="updates"), "updates, r = .015, all 200 train", {"ls": ":"}),
        (setting("fashion-mnist", 4.0, upload="updates", radius=0.06), "updates, r = .06, all 200 train", {"ls": ":"}),
        (setting("fashion-mnist", None, trained=20), "no noise", PLAIN),
    ]

    def of_eps(eps: float) -> Setting:
        return setting("fashion-mnist", eps, **updates)

    def of_n(n: float) -> Setting:
        return setting("fashion-mnist", 5.0, clients=int(n), **updates)

    def of_fraction(f: float) -> Setting:
        return setting("fashion-mnist", 4.0, clients=500, fraction=f, **updates)

    def draw_fraction(axis: Any, kept: Kept) -> None:
        over(axis, kept, parts, of_fraction, "updates, eps = 4")
        title = f"Figure 4b: Fashion-MNIST, T = 15, E = {epochs}"
        axis.set(xlabel="fraction of 500 clients in a round", title=title, ylim=(70, 90))

    def draw_readings(axis: Any, kept: Kept) -> None:
        rounds_panel(axis, kept, readings)
        crosses(axis, [(15, HEADLINES["fashion-mnist", 4.0])])
        axis.set(xlabel="round", title=f"Figure 4a: Fashion-MNIST, eps = 4, E = {epochs}", ylim=(60, 90))

    def draw_eps(axis: Any, kept: Kept) -> None:
        over(axis, kept, budgets, of_eps, "updates, r = .015")
        adaptive = [(v, kept, setting("fashion-mnist", v, ranges="adaptive", trained=20)) for v in budgets]
        curve(axis, reach(adaptive), "weights, adaptive")
        fixed = [(e, TABLE_1["fashion-mnist", e, "fixed"]) for e in (5.0, 10.0)]
        crosses(axis, [(4.0, HEADLINES["fashion-mnist", 4.0]), *fixed])
        widest = [(e, TABLE_1["fashion-mnist", e, "adaptive"]) for e in (5.0, 10.0)]
        crosses(axis, widest, "paper, adaptive", "C1")
        axis.set(xlabel="eps of a weight", title=f"Figure 5b: Fashion-MNIST, n = 200, E = {epochs}", ylim=(70, 90))

    def draw_n(axis: Any, kept: Kept) -> None:
        over(axis, kept, clients, of_n, "updates, eps = 5")
        crosses(axis, [(200, TABLE_1["fashion-mnist", 5.0, "fixed"])])
        axis.set(xscale="log", xlabel="clients n, of 60,000 / n examples each", ylim=(70, 90))
        axis.set(title=f"Figure 3: Fashion-MNIST, E = {epochs}")
        axis.set_xticks(clients, [str(n) for n in clients])
        axis.minorticks_off()

    return [
        Panel([of_n(v) for v in clients], draw_n, least=3),
        Panel([s for s, _, _ in readings], draw_readings),
        Panel([of_fraction(v) for v in parts], draw_fraction),
        Panel([of_eps(v) for v in budgets], draw_eps, least=3),
    ]


def cifar_panels() -> list[Panel]:
    """Of CIFAR-10, 20 clients standing for all: the small VGG, and the wide network on images half of them mirrored."""
    eps, rate = 10.0, PAPER["cifar10"][3]
    clients, budgets, radii = (100, 200, 500), (1.0, 3.0, 5.0, 10.0), (0.1, 0.3, 1.0)
    parts = (0.04, 0.2, 1.0)
    adaptive = by_few(setting("cifar10", eps, ranges="adaptive"))
    wide = replace(adaptive, network="wide-cnn-mirrored", rate=0.05)
    moved = replace(wide, upload="updates", radius=0.05)
    slow = replace(wide, rate=0.0)
    dotted, dashed = {**PLAIN, "ls": ":"}, {**PLAIN, "ls": "-."}
    readings = [
        (replace(adaptive, trained=0), "small VGG, weights, adaptive, all 500 train", {}),
        (replace(adaptive, trained=0).twin, "small VGG, no noise, all 500 train", PLAIN),
        (slow, f"wide, weights, adaptive, rate {rate:g}", {}),
        (slow.twin, f"wide, no noise, rate {rate:g}", dotted),
        (moved, f"wide, updates, r = .05, rate {moved.rate:g}", {}),
        (moved.twin, f"wide, no noise, rate {moved.rate:g}", dashed),
    ]

    def of_n(n: float) -> Setting:
        return replace(adaptive, clients=int(n))

    def of_eps(s: Setting) -> list[tuple[float, Setting]]:
        return [(v, replace(s, eps=v)) for v in budgets]

    def draw_n(axis: Any, kept: Kept) -> None:
        over(axis, kept, clients, of_n, "small VGG, weights, adaptive")
        crosses(axis, [(500, HEADLINES["cifar10", eps]), (500, TABLE_1["cifar10", eps, "adaptive"])])
        axis.set(xscale="log", xlabel="clients n, of 50,000 / n examples each", ylim=(0, 70))
        axis.set(title="Figure 3: CIFAR-10, eps = 10, E = 10")
        axis.set_xticks(clients, [str(n) for n in clients])
        axis.minorticks_off()

    def draw_readings(axis: Any, kept: Kept) -> None:
        rounds_panel(axis, kept, readings)
        crosses(axis, [(15, HEADLINES["cifar10", eps]), (15, TABLE_1["cifar10", eps, "adaptive"])])
        axis.set(xlabel="round", title="Figure 4a: CIFAR-10, eps = 10, E = 10", ylim=(0, 70))

    def draw_eps(axis: Any, kept: Kept) -> None:
        for s, label, style in ((adaptive, "small VGG", PLAIN), (slow, f"wide, rate {rate:g}", dotted)):
            curve(axis, reach([(v, kept, one) for v, one in of_eps(s)]), f"{label}, weights, adaptive")
            curve(axis, reach([(v, kept, one.twin) for v, one in of_eps(s)]), f"{label}, no noise", **style)
        paper = [(e, TABLE_1["cifar10", e, "adaptive"]) for e in (5.0, 10.0)]
        crosses(axis, [*paper, (eps, HEADLINES["cifar10", eps])])
        axis.set(xlabel="eps of a weight", title="Figure 5c: CIFAR-10, n = 500, E = 10", ylim=(0, 70))

    def draw_fraction(axis: Any, kept: Kept) -> None:
        over(axis, kept, parts, lambda f: replace(adaptive, fraction=f), "small VGG, weights, adaptive")
        title = "Figure 4b: CIFAR-10, eps = 10, E = 10"
        axis.set(xlabel="fraction of 500 clients in a round", title=title, ylim=(0, 70))

    def draw_radius(axis: Any, kept: Kept) -> None:
        rows = [(r, kept, by_few(setting("cifar10", eps, radius=r))) for r in radii]
        curve(axis, reach(rows), "small VGG, weights")
        for s, label, style in ((adaptive, "the same, adaptive", {"color": "C1"}), (adaptive.twin, "no noise", PLAIN)):
            curve(axis, reach([(r, kept, s) for r in radii]), label, **style)
        axis.axhline(20, color="0", lw=0.9, ls=":", label='paper: "around 20%" at any r')
        crosses(axis, [(1.0, TABLE_1["cifar10", eps, "fixed"])])
        axis.set(xscale="log", xlabel="radius r", title="Figure 5d: CIFAR-10, eps = 10, E = 10", ylim=(0, 70))
        axis.set_xticks(radii, [f"{r:g}" for r in radii])
        axis.minorticks_off()

    return [
        Panel([of_n(v) for v in clients], draw_n),
        Panel([s for s, _, _ in readings], draw_readings),
        Panel([s for _, s in of_eps(adaptive)], draw_eps),
        Panel([by_few(setting("cifar10", eps, radius=r)) for r in radii], draw_radius),
        Panel([replace(adaptive, fraction=f) for f in parts], draw_fraction),
    ]


def crosses(axis: Any, paper: Sequence[tuple[float, float]], label: str = "paper", color: str = "k") -> None:
    """The numbers that the paper prints."""
    axis.plot([x for x, _ in paper], [100 * y for _, y in paper], "x", color=color, label=label, zorder=5)


def draw(kept: Kept, path: Path) -> None:
    """The panels that have enough runs."""
    from ldpkernels.plot import new_figure, save

    shown = [panel for panel in panels() if sum(bool(finals(kept, s)) for s in panel.runs) >= panel.least]
    if not shown:
        return
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure, axes = new_figure(rows, columns, width=4.5 * columns, height=3.8 * rows)
    for axis, panel in zip(axes, shown, strict=False):
        panel.draw(axis, kept)
        axis.set_ylabel("test accuracy (%)")
        axis.legend(frameon=False, fontsize=7, loc="best")
    for axis in axes[len(shown) :]:
        axis.remove()
    save(figure, str(path))
