# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks/papers/ldp_fl.py, from its cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.papers import ldp_fl_others, theorem_2
from benchmarks.papers.common import Cells, left_open, markdown_table, not_run, percent, spread, write_markdown
from benchmarks.papers.ldp_fl_cells import HEADLINES, NAMES, NETWORK_NAMES, TABLE_1, Kept, finals, kept_of
from benchmarks.papers.ldp_fl_figures import draw
from benchmarks.papers.ldp_fl_plan import (
    adaptive,
    cifar,
    cifar_again,
    few,
    headlines,
    in_order,
    lifting,
    other_epochs,
    reaching,
    table_1,
)
from benchmarks.papers.ldp_fl_setting import EPOCHS, NETWORK, NOISE_FREE, PAPER, Setting, by_few, setting
from benchmarks.papers.ldp_fl_words import (
    ADAPTIVE,
    CIFAR,
    FIGURES,
    INTRODUCTION,
    METHODS,
    NETWORKS,
    REASONS,
    SHUFFLING,
    THEOREM_2,
)


def row_of(kept: Kept, s: Setting, paper: float | None) -> list[str]:
    """A line of a table: what was run, the paper's figure, ours, and the twin without noise."""
    honest = kept[s][0]["honest_eps"]
    return [
        NAMES[s.dataset],
        perturbed(s),
        "" if s.eps is None else f"{s.eps:g}",
        str(s.clients),
        str(s.trained or "all"),
        str(s.rounds),
        str(s.epochs),
        percent(paper),
        spread(finals(kept, s)),
        spread(finals(kept, s.twin)),
        "" if honest is None else f"{honest:,.0f}",
    ]


WAYS = {
    "minmax": "least to greatest",
    "capped": "the same, capped",
    "quantile": "all but the outermost hundredth",
    "noise-subtracted": "noise taken off",
}
HEADER = ["dataset", "perturbed", "eps", "n", "train", "T", "E", "paper", "ours", "ours, no noise", "honest eps"]


def perturbed(s: Setting) -> str:
    """What is perturbed, within which ranges."""
    if s.eps is None:
        return "nothing"
    piecewise = "" if s.mechanism == "two-point" else f", {s.mechanism}"
    other = f"; {', rate '.join(_network_and_rate(s))}" if s.dataset == "cifar10" and s.network else ""
    return (f"weights, {s.ranges}" if s.radius is None else s.ranges.replace(" r=", ", r = ")) + piecewise + other


def table(kept: Kept, rows: Iterable[tuple[Setting, float | None]]) -> str:
    """The rows that were run."""
    found = [row_of(kept, s, paper) for s, paper in dict.fromkeys(rows) if s in kept]
    return markdown_table(HEADER, found) if found else "Not run yet."


def headline_table(kept: Kept) -> str:
    """Its setting of each dataset. The paper's figures are of fixed ranges, but for CIFAR-10, where fixed ones fail."""
    home = [s for s in kept if (s.dataset, s.eps) in HEADLINES and s.fraction == 1]
    home = [s for s in home if (s.clients, s.rounds) == PAPER[s.dataset][:2]]
    asked = {replace(s, seed=0) for s in [*headlines(), *other_epochs(), *reaching(), *few()] if not s.network}
    of_cifar = {replace(s, seed=0) for s in (*cifar(), *cifar_again())}
    asked |= {s for s in of_cifar if (s.upload, s.radius is None) in (("updates", False), ("weights", True))}
    ordered = sorted((s for s in home if s in asked), key=lambda s: (_of(s), s.mechanism != "two-point", *_place(s)))
    printed = {s for s in ordered if s.mechanism == "two-point" and (s.radius is not None or s.dataset == "cifar10")}
    return table(kept, ((s, HEADLINES[s.dataset, s.eps or 0] if s in printed else None) for s in ordered))


def epochs_table(kept: Kept) -> str:
    """What more local epochs give, with noise and without: rows that have both, and those of the headlines."""
    body = []
    for dataset, eps in (("mnist", 1.0), ("fashion-mnist", 4.0)):
        for trained, epochs in ((t, e) for t in (0, 20) for e in (1, 2, 3, 5, 10, 15, 20)):
            plain = setting(dataset, None, epochs=epochs, trained=trained)
            noisy = setting(dataset, eps, epochs=epochs, upload="updates", trained=trained)
            if finals(kept, noisy) and (finals(kept, plain) or epochs == EPOCHS[dataset]):
                row = [
                    NAMES[dataset],
                    f"{eps:g}",
                    str(trained or "all"),
                    str(epochs),
                    spread(finals(kept, plain)),
                    spread(finals(kept, noisy)),
                ]
                body.append([*row, percent(NOISE_FREE[dataset]), percent(HEADLINES[dataset, eps])])
    heads = ["dataset", "eps", "train", "E", "no noise", "updates", "paper, no noise", "paper"]
    return markdown_table(heads, body) if body else "Not run yet."


def table_1_of(kept: Kept) -> str:
    cells = [s for one in table_1() for s in (one, by_few(one))]
    cells += [s for s in dict.fromkeys(replace(s, seed=0) for s in other_epochs()) if s.eps in (5.0, 10.0)]
    wide = dict.fromkeys(replace(s, seed=0) for s in (*cifar(), *cifar_again()))
    cells += [s for s in wide if s.rounds == 15 and s.eps in (5.0, 10.0)]
    cells = [s for s in cells if (s.dataset, s.eps, "adaptive" if s.radius is None else "fixed") in TABLE_1]
    cells = [s for s in cells if s.dataset != "cifar10" or _is_the_papers(s)]
    paper = {s: TABLE_1[s.dataset, s.eps or 0, "adaptive" if s.radius is None else "fixed"] for s in cells}
    return table(kept, sorted(paper.items(), key=lambda row: _place(row[0])))


def _of(s: Setting) -> int:
    """The place of its dataset."""
    return list(NAMES).index(s.dataset)


def _place(s: Setting) -> tuple[float | str, ...]:
    """Where a run stands in a table: what differs in what is perturbed first, who trains last."""
    radius = math.inf if s.radius is None else s.radius
    of_network = (s.network, s.rate, s.epochs, s.clients, s.fraction, s.trained)
    return _of(s), s.eps or 0, s.upload, radius, *of_network


def _is_the_papers(s: Setting) -> bool:
    """Whether the paper has a figure of CIFAR-10 for this mechanism, upload and range, on whatever network."""
    fixed = (s.upload, s.radius) == ("weights", PAPER["cifar10"][2])
    whole = (s.clients, s.fraction) == (PAPER["cifar10"][0], 1.0)
    return whole and s.mechanism == "two-point" and (s.radius is None or fixed)


def network_table(kept: Kept) -> str:
    """Fashion-MNIST with LDP-Fed's network, which normalises, beside LDP-FL's."""
    body = []
    for s in sorted((s for s in kept if s.network == "ldp-fed-cnn"), key=lambda s: (s.eps is not None, s.eps or 0)):
        usual = replace(s, network="")
        sides = []
        for one in (usual, s):
            sides += [f"{kept[one][0]['weights']:,}" if one in kept else "", spread(finals(kept, one))]
        kind = "adaptive" if s.radius is None else "fixed"
        paper = HEADLINES.get((s.dataset, s.eps or 0), TABLE_1.get((s.dataset, s.eps or 0, kind)))
        paper = NOISE_FREE[s.dataset] if s.eps is None else paper
        body.append([perturbed(s), "" if s.eps is None else f"{s.eps:g}", str(s.epochs), percent(paper), *sides])
    heads = ["perturbed", "eps", "E", "paper", "weights", "LDP-FL's network", "weights", "LDP-Fed's network"]
    return markdown_table(heads, body) if body else "Not run yet."


def adaptive_table(kept: Kept) -> str:
    """The ways to choose ranges: where they end, and how."""
    body = []
    for s in adaptive():
        if s in kept:
            highest = spread([max(cell["accuracy"]) for cell in kept[s]])
            radii = " to ".join(f"{statistics.fmean(c['radii'][i] for c in kept[s]):.2f}" for i in (0, -1))
            body.append([WAYS[s.adapts], highest, spread(finals(kept, s)), radii])
    heads = ["ranges", "best round", "last round", "radius of the widest layer, first to last round"]
    return markdown_table(heads, body) if body else "Not run yet."


def piecewise_table(kept: Kept) -> str:
    """The piecewise mechanism beside the two-point one, all else equal; the same seeds of both."""
    body = []
    for s in sorted((s for s in kept if s.mechanism == "piecewise"), key=lambda s: (s.dataset, s.clients, s.eps or 0)):
        twin = replace(s, mechanism="two-point")
        other = {cell["seed"]: cell["accuracy"][-1] for cell in kept.get(twin, [])}
        won = [100 * (c["accuracy"][-1] - other[c["seed"]]) for c in kept[s] if c["seed"] in other]
        if not won or s.epochs != EPOCHS[s.dataset]:
            continue
        body.append(
            [
                NAMES[s.dataset],
                perturbed(twin),
                str(s.clients),
                str(s.trained or "all"),
                str(s.rounds),
                str(s.epochs),
                f"{s.eps:g}",
                spread(finals(kept, twin)),
                spread(finals(kept, s)),
                f"{statistics.fmean(won):+.2f}",
                _verdict(won),
            ]
        )
    heads = [
        "dataset",
        "perturbed",
        "n",
        "train",
        "T",
        "E",
        "eps",
        "two-point",
        "piecewise",
        "points won",
        "by seeds in pairs",
    ]
    return markdown_table(heads, body) if body else "Not run yet."


def _verdict(won: Sequence[float]) -> str:
    """Whether the mean difference is beyond what so many pairs of seeds leave open (Student's t, 95%)."""
    if len(won) < 3:
        return "one seed tells nothing" if len(won) == 1 else "two seeds tell nothing"
    limit = left_open(won)
    return f"± {limit:.2f} at 95%: " + ("a difference" if abs(statistics.fmean(won)) > limit else "none to be seen")


def write(cells: Cells, folder: Path, name: str) -> None:
    """The page and the picture."""
    kept = kept_of(cells.all())
    sections = [
        INTRODUCTION,
        f"## The paper's headlines\n\n{headline_table(kept)}",
        f"## Figures 3, 4 and 5\n\n![LDP-FL's figures, rerun]({name}.png)\n\n{FIGURES}",
        f"## Table 1: fixed and adaptive ranges\n\n{table_1_of(kept)}",
        f"## Adaptive ranges at a small eps\n\n{ADAPTIVE}\n\n{adaptive_table(kept)}",
        f"## Local epochs\n\n{epochs_table(kept)}",
        f"## Another network\n\n{NETWORKS}\n\n{network_table(kept)}",
        f"## The piecewise mechanism at the same eps\n\n{piecewise_table(kept)}",
        f"## The methods of Geyer et al. and of Bhowmick et al.\n\n{METHODS}\n\n{ldp_fl_others.table(cells)}",
        f"## Algorithm 3: parameter shuffling\n\n{SHUFFLING}",
        f"## Theorem 2\n\n{THEOREM_2}\n\n{theorem_2.table()}",
        f"## CIFAR-10\n\n{CIFAR}\n\n{cifar_table(kept)}\n\n{lifting_table(kept)}",
        f"## Why figures differ from the paper's\n\n{REASONS}",
        f"## What was not run\n\n{waiting(cells)}",
    ]
    write_markdown(folder / f"{name}.md", "LDP-FL, rerun", sections, cells.facts())
    draw(kept, folder / f"{name}.png")


def waiting(cells: Cells) -> str:
    """What is planned and was not run."""
    plan = [*in_order(), *ldp_fl_others.in_order()]
    return not_run([(s.name, s.minutes) for s in plan if s.name not in cells.all()])


def cifar_table(kept: Kept) -> str:
    """CIFAR-10: what was run, on which network and at which rate; the three rounds of the ablation stand apart."""
    chosen = sorted(
        (s for s in kept if s.dataset == "cifar10" and s.rounds > 3),
        key=lambda s: (s.eps is not None, s.network, s.rate, s.upload, s.radius or math.inf, *_place(s), s.rounds),
    )
    body = []
    for s in chosen:
        paper = None if s.eps is None else TABLE_1.get((s.dataset, s.eps, "adaptive" if s.radius is None else "fixed"))
        paper = NOISE_FREE[s.dataset] if s.eps is None else paper
        network, rate = _network_and_rate(s)
        first = [
            perturbed(replace(s, network="")),
            "" if s.eps is None else f"{s.eps:g}",
            str(s.clients) if s.fraction == 1 else f"{s.fraction:.0%} of {s.clients}",
            str(s.trained or "all"),
            str(s.rounds),
        ]
        on = [
            network,
            f"{kept[s][0]['weights']:,}",
            rate,
            percent(paper if _is_the_papers(s) else None),
            spread(finals(kept, s)),
        ]
        body.append([*first, *on, row_of(kept, s, None)[-1]])
    heads = ["perturbed", "eps", "n", "train", "T", "network", "weights", "rate", "paper", "ours", "honest eps"]
    return markdown_table(heads, body) if body else "Not run yet."


def _network_and_rate(s: Setting) -> list[str]:
    return [NETWORK_NAMES[s.network or NETWORK[s.dataset]], f"{s.rate or PAPER[s.dataset][3]:g}"]


def lifting_table(kept: Kept) -> str:
    """What lifts CIFAR-10 without noise, one change after another: accuracy after three rounds, and after the last."""
    twin = by_few(setting("cifar10", None))
    mirrored = replace(twin, network="wide-cnn-mirrored")
    steps = [twin, *map(by_few, lifting()), mirrored, replace(mirrored, rate=0.05)]
    body = []
    for s in (s for s in steps if s in kept):
        by_round = list(zip(*(cell["accuracy"] for cell in kept[s]), strict=True))
        early = [spread(list(values)) for values in by_round[:3]]
        body.append([*_network_and_rate(s), *early, spread(finals(kept, s)) if s.rounds > 3 else ""])
    return markdown_table(["network", "rate", "round 1", "round 2", "round 3", "round 15"], body)
