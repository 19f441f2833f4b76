# SPDX-License-Identifier: Apache-2.0
"""The runs of LDP-FL's tables and figures, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from benchmarks.papers.ldp_fl_setting import PAPER, SEEDS, RangeMethod, Setting, by_few, seeds, setting


def headlines() -> list[Setting]:
    """The paper's own figures and their twins without noise, in the readings of what is perturbed; piecewise beside."""
    mnist = [
        setting("mnist", 1.0, upload="updates"),
        setting("mnist", 1.0, upload="updates", radius=0.02),
        setting("mnist", None),
        setting("mnist", 1.0, upload="updates", mechanism="piecewise"),
        setting("mnist", 1.0),
        setting("mnist", 1.0, ranges="adaptive"),
    ]
    return [*fashion(10), *(s for one in mnist for s in seeds(one))]


def fashion(epochs: int) -> list[Setting]:
    """The headline of Fashion-MNIST with so many local epochs, in three readings; all the clients train."""
    return [
        setting("fashion-mnist", 4.0, upload="updates", epochs=epochs),
        setting("fashion-mnist", None, epochs=epochs),
        setting("fashion-mnist", 4.0, ranges="adaptive", epochs=epochs),
        setting("fashion-mnist", 4.0, radius=0.15, epochs=epochs),
    ]


def adaptive() -> list[Setting]:
    """Ways to choose ranges from the mean of the uploads, where its noise is large."""
    ways: tuple[RangeMethod, ...] = ("minmax", "capped", "quantile", "noise-subtracted")
    return [by_few(setting("mnist", 1.0, ranges="adaptive", adapts=way)) for way in ways]


def reaching() -> list[Setting]:
    """The headline of Fashion-MNIST with a radius that cuts fewer updates off; all the clients train."""
    return seeds(setting("fashion-mnist", 4.0, upload="updates", radius=0.06))


def other_epochs() -> list[Setting]:
    """Fewer local epochs for MNIST, in Table 1 too; more for Fashion-MNIST, all the clients."""
    mnist = [
        setting("mnist", 1.0, upload="updates"),
        setting("mnist", 1.0, upload="updates", radius=0.02),
        setting("mnist", None),
        *(s for s in table_1() if s.dataset == "mnist"),
    ]
    return [s for one in (*(replace(m, epochs=1) for m in mnist), *fashion(15)[:2]) for s in seeds(one)]


def few() -> list[Setting]:
    """Fashion-MNIST by a tenth of its clients and less: what a core does in a minute where all take an hour's sixth."""
    over_epochs = [s for epochs in (10, 15, 5, 20) for s in fashion(epochs)[:2]]
    readings = [*fashion(10)[2:], fashion(5)[3], *fashion(15)[2:3]]
    other: dict[str, Any] = {"network": "ldp-fed-cnn"}
    by_other = [setting("fashion-mnist", 4.0, upload="updates", **other)]
    by_other += [setting("fashion-mnist", eps, ranges="adaptive", **other) for eps in (5.0, 10.0)]
    table = [s for s in table_1() if s.dataset == "fashion-mnist"]
    over_eps = [setting("fashion-mnist", eps, upload="updates") for eps in (1.0, 2.0, 3.0)]
    over_n = [setting("fashion-mnist", 5.0, clients=n, upload="updates") for n in (100, 500, 1000)]
    parts = [setting("fashion-mnist", 4.0, clients=500, fraction=f, upload="updates") for f in (0.04, 0.2, 1.0)]
    over_r = [setting("fashion-mnist", 4.0, upload="updates", radius=r) for r in (0.03, 0.06)]
    noisy = [*over_epochs, *readings, *table, *over_eps, *over_n, *parts, *by_other, *over_r]
    return list(dict.fromkeys(s for one in noisy for s in (by_few(one), by_few(one).twin)))


def table_1() -> list[Setting]:
    """Fixed and adaptive ranges. Fixed ones are of updates for Fashion-MNIST, whose radius leaves weights dead."""
    mnist = [
        setting("mnist", eps, **kind)
        for eps in (5.0, 10.0)
        for kind in ({"upload": "updates"}, {"ranges": "adaptive"}, {})
    ]
    fashion = [
        setting("fashion-mnist", eps, **kind)
        for eps in (5.0, 10.0)
        for kind in ({"upload": "updates"}, {"ranges": "adaptive"})
    ]
    return [*mnist, *fashion]


def figures() -> list[Setting]:
    """Figures 3, 4 and 5 for MNIST, where a run takes minutes: over n, rounds, fraction, eps and r, with twins."""
    updates: dict[str, Any] = {"upload": "updates"}
    over_n = [setting("mnist", 1.0, clients=n, **updates) for n in (20, 50, 500)]
    over_rounds = [setting("mnist", 1.0, rounds=30, **updates)]
    over_fraction = [setting("mnist", 1.0, clients=500, fraction=f, **updates) for f in (0.1, 0.3, 0.6)]
    over_eps = [setting("mnist", eps, **updates) for eps in (0.1, 0.3, 0.5, 2.0)]
    over_r = [setting("mnist", 1.0, upload=u, radius=r) for u in ("updates", "weights") for r in (0.02, 0.15, 0.3, 0.6)]
    noisy = [*over_eps, *over_n, *over_rounds, *over_fraction, *over_r]
    return [*noisy, *dict.fromkeys(s.twin for s in noisy)]


def piecewise() -> list[Setting]:
    """The piecewise mechanism beside the two-point one where the average over clients has not taken the noise away."""
    kinds = ("two-point", "piecewise")
    few = [setting("mnist", eps, clients=20, upload="updates", mechanism=m) for eps in (1.0, 2.0, 4.0) for m in kinds]
    low = [setting("mnist", 0.3, upload="updates", mechanism="piecewise")]
    return [*few, *low]


def cifar() -> list[Setting]:
    """CIFAR-10: the paper's four cells and their twin, by 20 of 500 clients and by all, an hour of a core each."""
    twin, *home = cifar_home()
    lifted = [replace(s, network="wide-cnn-mirrored", rate=0.05) for s in (twin, *home)]
    moved: dict[str, Any] = {"upload": "updates", "radius": 0.015}
    lifted += [replace(lifted[1], mechanism="piecewise"), replace(lifted[1], **moved)]
    lifted += [replace(s, network="wide-cnn-mirrored") for s in (twin, home[0])]
    lifted += [replace(lifted[1], upload="updates", radius=0.05, mechanism=m) for m in ("piecewise", "two-point")]
    few = (twin, *lifted, *lifting(), *home, replace(twin, rounds=40), *cifar_figures())
    return [*map(by_few, few), twin, *home]


def cifar_home() -> list[Setting]:
    """CIFAR-10 as the paper has it: without noise, and the four cells of its Table 1."""
    home = [setting("cifar10", eps, ranges=ranges) for eps in (10.0, 5.0) for ranges in ("adaptive", "fixed")]
    return [setting("cifar10", None), *home]


def cifar_figures() -> list[Setting]:
    """Its Figures 5c, 5d, 3 and 4b, by the small VGG."""
    over_eps = [setting("cifar10", eps, ranges="adaptive") for eps in (1.0, 3.0)]
    over_r = [setting("cifar10", 10.0, radius=r) for r in (0.1, 0.3)]
    over_n = [setting("cifar10", 10.0, clients=n, ranges="adaptive") for n in (100, 200)]
    over_fraction = [setting("cifar10", 10.0, fraction=f, ranges="adaptive") for f in (0.04, 0.2)]
    return [*over_eps, *over_r, *over_n, *(s.twin for s in over_n), *over_fraction]


def cifar_again() -> list[Setting]:
    """What is quoted of CIFAR-10, most quoted first: more seeds, 20 standing for all, and the paper's cells by all."""
    slow = replace(setting("cifar10", 10.0, ranges="adaptive"), network="wide-cnn-mirrored")
    fast = replace(slow, rate=0.05)
    moved = [replace(fast, upload="updates", radius=0.05, mechanism=m) for m in ("two-point", "piecewise")]
    chosen = [slow, slow.twin, moved[0], fast.twin, moved[1], fast, replace(fast, mechanism="piecewise")]
    radius = PAPER["cifar10"][2]
    cells = ((5.0, None), (10.0, radius), (5.0, radius))
    chosen += [replace(s, eps=eps, radius=r) for s in (slow, fast) for eps, r in cells]  # Table 1
    chosen.append(replace(moved[0], radius=0.015))
    chosen += [*cifar_home(), *cifar_figures(), replace(slow, eps=1.0), replace(slow, eps=3.0)]  # and Figure 5c
    by_20 = [replace(by_few(s), seed=seed) for seed in range(SEEDS) for s in chosen]
    return [*by_20, *(replace(s, seed=seed) for seed in range(1, SEEDS) for s in cifar_home())]


def lifting() -> list[Setting]:
    """Three rounds of CIFAR-10 without noise, one change after another: the rate, the network, both."""
    short = replace(setting("cifar10", None), rounds=3)
    return [
        replace(short, rate=0.05),
        replace(short, network="wide-cnn"),
        replace(short, network="wide-cnn", rate=0.05),
    ]


def in_order(seed: int = 0) -> list[Setting]:
    """All runs, those of most worth first; the seed is added to each run's own."""
    several = [
        s
        for one in [*table_1()[:6], *piecewise(), *figures(), *(t.twin for t in piecewise()[:1])]
        for s in seeds(one)[1:]
    ]
    in_full = [s for one in fashion(10) for s in seeds(one)[1:]]
    by_few_again = [replace(s, seed=seed) for seed in range(1, SEEDS) for s in few()]
    whole_table = [s for one in table_1()[6:] for s in seeds(one)[1:]]
    ordered: Iterable[Setting] = [
        *headlines(),
        *other_epochs(),
        *reaching(),
        *table_1(),
        *few(),
        *(replace(s, seed=seed) for seed in range(3) for s in adaptive()),
        *figures(),
        *piecewise(),
        *cifar(),
        *in_full,
        *by_few_again,
        *cifar_again(),
        *whole_table,
        *several,
    ]
    return [replace(s, seed=s.seed + seed) for s in dict.fromkeys(ordered)]
