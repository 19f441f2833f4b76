# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's Figures 3, 4 and 5 from the cells that are there: a picture for each dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.papers import pictures
from benchmarks.papers.common import Cell
from benchmarks.papers.ldp_fl_plan import EPOCHS, PAPER, Setting, by_few, setting
from benchmarks.papers.ldp_fl_tables import HEADLINES, NAMES, TABLE_1, Kept, finals, kept_of
from benchmarks.papers.pictures import Crosses, Line, Panel

SHARE = "fraction of 500 clients in a round"


@dataclass(frozen=True)
class Curves:
    """Lines of the runs that are kept."""

    kept: Kept

    def over(self, xs: Sequence[float], made: Callable[[float], Setting], label: str) -> Line:
        """A run for each x."""
        return label, [(x, finals(self.kept, made(x))) for x in xs]

    def beside(self, xs: Sequence[float], made: Callable[[float], Setting], label: str) -> list[Line]:
        """A run for each x, and the same without noise."""
        return [self.over(xs, made, label), self.over(xs, lambda x: made(x).twin, "no noise")]

    def by_round(self, s: Setting, label: str) -> Line:
        """The accuracies after each round."""
        runs = (cell["accuracy"] for cell in self.kept.get(s, []))
        return label, [(i + 1.0, values) for i, values in enumerate(zip(*runs, strict=True))]


def printed(dataset: str, kind: str, color: str = "k") -> Crosses:
    """The paper's Table 1, and its headline for the kind of ranges that has it, over eps."""
    found = [(eps, TABLE_1[dataset, eps, kind]) for eps in (5.0, 10.0)]
    found += [(eps, v) for (d, eps), v in HEADLINES.items() if d == dataset and color == "k"]
    return "paper" if kind == "fixed" else f"paper, {kind}", found, color


def titled(figure: str, dataset: str, words: str = "") -> str:
    """A panel's title."""
    return f"{figure}: {NAMES[dataset]}{words}, E = {EPOCHS[dataset]}"


def mnist_panels(curves: Curves) -> list[Panel]:
    """MNIST, where all clients train."""

    def noisy(eps: float = 1.0, upload: str = "updates", **changes: Any) -> Setting:
        return setting("mnist", eps, upload=upload, **changes)

    radii, budgets, clients = (0.02, 0.075, 0.15, 0.3, 0.6), (0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0), (20, 50, 100, 500)
    headline, long = HEADLINES["mnist", 1.0], noisy(rounds=30)
    of_eps = curves.beside(budgets, noisy, "updates, r = .075")
    of_eps.append(curves.over(budgets, lambda v: setting("mnist", v, ranges="adaptive"), "weights, adaptive"))
    of_eps.append(curves.over(budgets, lambda v: setting("mnist", v), "weights, r = .075"))
    of_fraction = curves.beside((0.1, 0.3, 0.6, 1.0), lambda f: noisy(clients=500, fraction=f), "updates, eps = 1")
    of_radius = curves.beside(radii, lambda r: noisy(radius=r), "updates")
    of_radius.append(curves.over(radii, lambda r: noisy(upload="weights", radius=r), "weights"))
    of_n = curves.beside(clients, lambda n: noisy(clients=int(n)), "updates, eps = 1")
    return [
        Panel(titled("Figure 3", "mnist"), "clients n, of 60,000 / n examples each", (80, 100), of_n,
              crosses=[("paper", [(100, headline)], "k")], log=True, ticks=clients),
        Panel(titled("Figure 4a", "mnist", ", n = 100"), "round", (60, 100),
              [curves.by_round(long, "updates, eps = 1"), curves.by_round(long.twin, "no noise")],
              crosses=[("paper", [(10, headline)], "k")]),
        Panel(titled("Figure 4b", "mnist", ", T = 10"), SHARE, (60, 100), of_fraction),
        Panel(titled("Figure 5a", "mnist", ", n = 100"), "eps of a weight", (80, 100), of_eps,
              crosses=[printed("mnist", "fixed"), printed("mnist", "adaptive", "C2")], log=True, legend=(0.3, 0.24)),
        Panel("As Figure 5d, for MNIST, eps = 1", "radius r", (0, 100), of_radius, log=True, ticks=radii),
    ]  # fmt: skip


def fashion_panels(curves: Curves) -> list[Panel]:
    """Fashion-MNIST, where 20 clients stand for all, but for those of Figure 4b."""
    dataset, headline = "fashion-mnist", HEADLINES["fashion-mnist", 4.0]

    def noisy(eps: float = 4.0, trained: int = 20, **changes: Any) -> Setting:
        return setting(dataset, eps, trained=trained, **{"upload": "updates", **changes})

    def weights(eps: float = 4.0, **changes: Any) -> Setting:
        return noisy(eps, upload="weights", **changes)

    def other(eps: float, **changes: Any) -> Setting:
        return noisy(eps, network="ldp-fed-cnn", **changes)

    budgets, few, clients = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0), (1.0, 2.0, 4.0, 5.0, 10.0), (100, 200, 500, 1000)
    readings = [
        curves.by_round(noisy(), "updates, r = .015"),
        curves.by_round(noisy().twin, "no noise"),
        curves.by_round(weights(ranges="adaptive"), "weights, adaptive"),
        curves.by_round(weights(radius=0.15), "weights, r = .15"),
    ]
    of_eps = curves.beside(budgets, noisy, "updates, r = .015")
    of_eps.append(curves.over(budgets, lambda e: weights(e, ranges="adaptive"), "weights, adaptive"))
    of_eps.append(curves.over(budgets, weights, "weights, r = .015"))
    wider = curves.beside(few, other, "updates, r = .015")
    wider.append(curves.over(few, lambda e: other(e, upload="weights", ranges="adaptive"), "weights, adaptive"))
    words = "weights, r = .015, normalisation r = 1"
    wider.append(curves.over(few, lambda e: other(e, upload="weights", norms=1.0), words))
    of_n = curves.beside(clients, lambda n: noisy(5.0, clients=int(n)), "updates, eps = 5")
    shares = (0.04, 0.2, 1.0)
    of_fraction = curves.beside(shares, lambda f: noisy(trained=0, clients=500, fraction=f), "updates, eps = 4")
    both = [printed(dataset, "fixed"), printed(dataset, "adaptive", "C2")]
    return [
        Panel(titled("Figure 3", dataset), "clients n, of 60,000 / n examples each", (70, 90), of_n,
              crosses=[("paper", [(200, TABLE_1[dataset, 5.0, "fixed"])], "k")], log=True, ticks=clients),
        Panel(titled("Figure 4a", dataset, ", eps = 4"), "round", (50, 90), readings,
              crosses=[("paper", [(15, headline)], "k")]),
        Panel(titled("Figure 4b", dataset, ", all selected train"), SHARE, (70, 90), of_fraction),
        Panel(titled("Figure 5b", dataset, ", 21,840 weights"), "eps of a weight", (50, 90), of_eps, crosses=both),
        Panel(titled("Figure 5b", dataset, ", 29,034 weights"), "eps of a weight", (80, 90), wider, crosses=both),
    ]  # fmt: skip


def cifar_panels(curves: Curves) -> list[Panel]:
    """CIFAR-10, where 20 clients stand for all: the small VGG, and the wide network on images half of them mirrored."""
    dataset, eps, rate, ylim = "cifar10", 10.0, PAPER["cifar10"][3], (0, 70)
    budgets, radii, clients = (1.0, 3.0, 5.0, 10.0), (0.1, 0.3, 1.0), (100, 200, 500)
    all_train = setting(dataset, eps, ranges="adaptive")
    (adaptive,) = by_few([all_train])
    wide = replace(adaptive, network="wide-cnn-mirrored")
    readings = [
        curves.by_round(all_train, "small VGG, adaptive, all 500 train"),
        curves.by_round(all_train.twin, "no noise, small VGG, all 500 train"),
        curves.by_round(wide, "wide, adaptive, 20 train"),
        curves.by_round(wide.twin, "no noise, wide, 20 train"),
    ]
    of_eps = [
        curves.over(budgets, lambda v: replace(adaptive, eps=v), "small VGG, adaptive"),
        curves.over(budgets, lambda v: adaptive.twin, "no noise, small VGG"),
        curves.over(budgets, lambda v: replace(wide, eps=v), f"wide, adaptive, rate {rate:g}"),
        curves.over(budgets, lambda v: wide.twin, f"no noise, wide, rate {rate:g}"),
    ]
    words = "small VGG, adaptive"
    of_n = curves.beside(clients, lambda n: replace(adaptive, clients=int(n)), words)
    of_fraction = curves.beside((0.04, 0.2, 1.0), lambda f: replace(adaptive, fraction=f), words)
    of_radius = curves.beside(radii, lambda r: replace(adaptive, radius=r), "small VGG, weights")
    of_radius.append(curves.over(radii, lambda r: adaptive, words))
    both, after = (HEADLINES[dataset, eps], TABLE_1[dataset, eps, "adaptive"]), ", eps = 10"
    return [
        Panel(titled("Figure 3", dataset, after), "clients n, of 50,000 / n examples each", ylim, of_n,
              crosses=[("paper, adaptive", [(500, v) for v in both], "k")], log=True, ticks=clients),
        Panel(titled("Figure 4a", dataset, after), "round", ylim, readings,
              crosses=[("paper, adaptive", [(15, v) for v in both], "k")]),
        Panel(titled("Figure 4b", dataset, ", 20 train"), SHARE, ylim, of_fraction),
        Panel(titled("Figure 5c", dataset, ", n = 500"), "eps of a weight", ylim, of_eps,
              crosses=[printed(dataset, "adaptive")]),
        Panel(titled("Figure 5d", dataset, after), "radius r", ylim, of_radius, log=True, ticks=radii,
              crosses=[("paper", [(1.0, TABLE_1[dataset, eps, "fixed"])], "k")],
              level=(20, 'paper: "around 20%" at any r')),
    ]  # fmt: skip


def draw(cells: dict[str, Cell], path: Path) -> None:
    """Draw Figures 3, 4 and 5 of each dataset."""
    curves = Curves(kept_of(cells))
    for dataset, panels in zip(NAMES, (mnist_panels, fashion_panels, cifar_panels), strict=True):
        pictures.save(panels(curves), path.with_name(f"{path.stem}-{dataset}.png"))
