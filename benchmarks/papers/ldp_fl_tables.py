# SPDX-License-Identifier: Apache-2.0
"""The tables of results/ldp-fl.md, from its cells; and the paper's figures, which stand beside."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from benchmarks.papers import ldp_fl_others, theorem_2
from benchmarks.papers.common import Cell, by_run, left_open, percent, spread
from benchmarks.papers.common import table as markdown_table
from benchmarks.papers.ldp_fl_plan import NETWORK, PAPER, Setting, adaptive, plan, setting

# The paper's figures, whichever way its uploads are read: those of its text (and figure 5), and those of Table 1. For
# CIFAR-10 at eps = 10 it has both, and they differ.
HEADLINES = {("mnist", 1.0): 0.9624, ("fashion-mnist", 4.0): 0.8626, ("cifar10", 10.0): 0.6146}
TABLE_1 = {
    ("mnist", 5.0, "fixed"): 0.9634,
    ("mnist", 5.0, "adaptive"): 0.9606,
    ("mnist", 10.0, "fixed"): 0.9639,
    ("mnist", 10.0, "adaptive"): 0.9611,
    ("fashion-mnist", 5.0, "fixed"): 0.8595,
    ("fashion-mnist", 5.0, "adaptive"): 0.8754,
    ("fashion-mnist", 10.0, "fixed"): 0.8610,
    ("fashion-mnist", 10.0, "adaptive"): 0.8757,
    ("cifar10", 5.0, "fixed"): 0.1354,
    ("cifar10", 5.0, "adaptive"): 0.5889,
    ("cifar10", 10.0, "fixed"): 0.1428,
    ("cifar10", 10.0, "adaptive"): 0.6037,
}
# Its noise-free accuracy: its headline and what it says that the noise costs.
NOISE_FREE = {"mnist": 0.9721, "fashion-mnist": 0.8758, "cifar10": 0.6255}
NETWORK_NAMES = {
    "small-vgg-normalised": "small VGG",
    "small-vgg-normalised batch": "small VGG, batch normalisation",
    "small-vgg-normalised cropped": "small VGG, images cropped and mirrored",
    "small-vgg-normalised plain": "small VGG, no normalisation, PyTorch's initial weights",
    "tutorial": "PyTorch's tutorial's",
    "wide-cnn": "wide, images as they are",
    "wide-cnn-mirrored": "wide, mirrored images",
}
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
OTHER_NAMES = {"geyer": "Geyer et al.", "bhowmick": "Bhowmick et al."}
WAYS = {
    "minmax": "least to greatest",
    "capped": "the same, capped",
    "quantile": "all but the outermost hundredth",
    "noise-subtracted": "noise taken off",
}
OWN = "weights, each client's own ranges"
HEADER = ["dataset", "perturbed", "eps", "n", "train", "T", "E", "paper", "ours", "ours, no noise", "honest eps"]
Kept = dict[Setting, list[Cell]]  # of a setting with seed 0, one cell for each seed that was run


def kept_of(cells: dict[str, Cell]) -> Kept:
    """The cells by what they ran, in the order of their seeds."""
    return by_run(cells, plan())


def finals(kept: Kept, s: Setting) -> list[float]:
    """The accuracy after the last round, of each seed."""
    return [cell["accuracy"][-1] for cell in kept.get(s, [])]


def tables(cells: dict[str, Cell]) -> dict[str, str]:
    """Every table of the page, by its mark."""
    kept = kept_of(cells)
    return {
        "headlines": headline_table(kept),
        "table-1": table_1(kept),
        "adaptive": adaptive_table(kept),
        "epochs": epochs_table(kept),
        "network": network_table(kept),
        "piecewise": piecewise_table(kept),
        "other-methods": other_methods(cells),
        "theorem-2": theorem_2.table(),
        "cifar": cifar_table(kept),
    }


def perturbed(s: Setting) -> str:
    """What is perturbed, within which ranges."""
    if s.eps is None:
        return "nothing"
    piecewise = "" if s.mechanism == "two-point" else f", {s.mechanism}"
    other = f"; {', rate '.join(network_and_rate(s))}" if s.dataset == "cifar10" and s.network else ""
    other += "; 29,034 weights" if s.dataset == "fashion-mnist" and s.network else ""
    fixed = s.ranges.replace(" r=", ", r = ").replace(" norms=", ", normalisation r = ")
    ranges = OWN if s.adapts == "own" else f"weights, {s.ranges}" if s.radius is None else fixed
    return ranges + piecewise + other


def network_and_rate(s: Setting) -> list[str]:
    """The columns that tell runs of CIFAR-10 apart."""
    return [NETWORK_NAMES[s.network or NETWORK[s.dataset]], f"{s.rate or PAPER[s.dataset][3]:g}"]


def eps_of(s: Setting) -> str:
    """The epsilon of one weight of one upload; nothing without noise."""
    return "" if s.eps is None else f"{s.eps:g}"


def honest(kept: Kept, s: Setting) -> str:
    """What a client of all rounds loses."""
    found = kept[s][0]["honest_eps"]
    return "" if found is None else f"{found:,.0f}"


def place(s: Setting) -> tuple[float | str, ...]:
    """Where a run stands in a table: what differs in what is perturbed first, who trains last."""
    radius = math.inf if s.radius is None else s.radius
    of_network = (s.network, s.norms, s.adapts, s.rate, s.epochs, s.clients, s.fraction, s.trained)
    return list(NAMES).index(s.dataset), s.eps or 0, s.upload, radius, *of_network


def at_home(s: Setting) -> bool:
    """Whether a run has the paper's number of clients and rounds."""
    return (s.clients, s.rounds, s.fraction) == (*PAPER[s.dataset][:2], 1.0)


def in_table_1(s: Setting) -> float | None:
    """The paper's Table 1 for this eps and kind of ranges."""
    return TABLE_1.get((s.dataset, s.eps or 0.0, "adaptive" if s.radius is None else "fixed"))


def is_the_papers(s: Setting) -> bool:
    """Whether the paper has a figure of CIFAR-10 for this mechanism, upload and range, on whatever network."""
    whole = (s.clients, s.fraction, s.mechanism) == (PAPER["cifar10"][0], 1.0, "two-point")
    return whole and (s.radius is None or (s.upload, s.radius) == ("weights", PAPER["cifar10"][2]))


def rows_of(kept: Kept, rows: Iterable[tuple[Setting, float | None]]) -> str:
    """The runs beside the paper's figures and the twins without noise."""
    body = [
        [
            NAMES[s.dataset],
            perturbed(s),
            eps_of(s),
            str(s.clients),
            str(s.trained or "all"),
            str(s.rounds),
            str(s.epochs),
            percent(paper),
            spread(finals(kept, s)),
            spread(finals(kept, s.twin)),
            honest(kept, s),
        ]
        for s, paper in rows
    ]
    return markdown_table(HEADER, body)


def headline_table(kept: Kept) -> str:
    """The paper's setting of each dataset. Its figures are of fixed ranges; on CIFAR-10, where those fail, of any."""
    chosen: dict[str, Callable[[Setting], bool]] = {
        "mnist": lambda s: not s.trained and ((s.upload, s.radius) == ("updates", 0.02) or s.radius in (None, 0.075)),
        "fashion-mnist": lambda s: not s.network or s.norms > 0,
        "cifar10": lambda s: (s.upload == "updates") == (s.radius is not None),
    }
    home = [s for s in kept if (s.dataset, s.eps) in HEADLINES and at_home(s) and chosen[s.dataset](s)]
    home.sort(key=lambda s: (list(NAMES).index(s.dataset), s.mechanism != "two-point", *place(s)))
    printed = {s for s in home if s.mechanism == "two-point" and (s.radius is not None or s.dataset == "cifar10")}
    return rows_of(kept, ((s, HEADLINES[s.dataset, s.eps or 0] if s in printed else None) for s in home))


def table_1(kept: Kept) -> str:
    """Fixed and adaptive ranges, beside the paper's Table 1."""
    found = [s for s in kept if in_table_1(s) and at_home(s) and (s.dataset != "cifar10" or is_the_papers(s))]
    found = [s for s in found if s.dataset == "cifar10" or not s.network or s.norms]
    return rows_of(kept, ((s, None if s.adapts == "own" else in_table_1(s)) for s in sorted(found, key=place)))


def epochs_table(kept: Kept) -> str:
    """What more local epochs give, with noise and without."""
    body = []
    for dataset, eps in (("mnist", 1.0), ("fashion-mnist", 4.0)):
        for trained, epochs in ((t, e) for t in (0, 20) for e in (1, 2, 3, 5, 10, 15, 20)):
            noisy = setting(dataset, eps, epochs=epochs, upload="updates", trained=trained)
            if noisy in kept:
                accuracies = [spread(finals(kept, s)) for s in (noisy.twin, noisy)]
                theirs = [percent(NOISE_FREE[dataset]), percent(HEADLINES[dataset, eps])]
                body.append([NAMES[dataset], eps_of(noisy), str(trained or "all"), str(epochs), *accuracies, *theirs])
    heads = ["dataset", "eps", "train", "E", "no noise", "updates", "paper, no noise", "paper"]
    return markdown_table(heads, body)


def network_table(kept: Kept) -> str:
    """Fashion-MNIST on the two readings of "two-layer CNN"."""
    body = []
    found = [s for s in kept if s.network == "ldp-fed-cnn"]
    found.sort(key=lambda s: (s.eps is not None, s.upload, s.radius or math.inf, s.norms, s.eps or 0, place(s)))
    for s in found:
        usual = finals(kept, replace(s, network="", norms=0.0))
        paper = HEADLINES.get((s.dataset, s.eps or 0), in_table_1(s)) if s.eps else NOISE_FREE[s.dataset]
        paper = None if s.eps == 4 and s.radius is None else paper  # its headline is of fixed ranges
        of_training = spread([cell["train accuracy"] for cell in kept[s] if "train accuracy" in cell])
        ran = [str(s.trained or "all"), str(s.epochs)]
        first = [perturbed(replace(s, network="")), eps_of(s), *ran, percent(paper)]
        body.append([*first, spread(usual), spread(finals(kept, s)), of_training])
    networks = ["21,840 weights", "29,034 weights", "the same, of training examples"]
    heads = ["perturbed", "eps", "train", "E", "paper", *networks]
    return markdown_table(heads, body)


def adaptive_table(kept: Kept) -> str:
    """The ways to choose ranges: where they end, and how."""
    body = []
    for s in (s for s in adaptive() if s in kept):
        highest = spread([max(cell["accuracy"]) for cell in kept[s]])
        radii = " to ".join(f"{statistics.fmean(c['radii'][i] for c in kept[s]):.2f}" for i in (0, -1))
        body.append([WAYS[s.adapts], highest, spread(finals(kept, s)), radii])
    heads = ["ranges", "best round", "last round", "radius of the widest layer, first to last round"]
    return markdown_table(heads, body)


def piecewise_table(kept: Kept) -> str:
    """The piecewise mechanism beside the two-point one, all else equal, and the same seeds of both."""
    body = []
    for s in sorted((s for s in kept if s.mechanism == "piecewise"), key=lambda s: (s.dataset, s.clients, s.eps or 0)):
        twin = replace(s, mechanism="two-point")
        other = {cell["seed"]: cell["accuracy"][-1] for cell in kept[twin]}
        won = [100 * (c["accuracy"][-1] - other[c["seed"]]) for c in kept[s] if c["seed"] in other]
        ran = [str(s.clients), str(s.trained or "all"), str(s.rounds), str(s.epochs), eps_of(s)]
        sides = [spread(finals(kept, one)) for one in (twin, s)]
        body.append([NAMES[s.dataset], perturbed(twin), *ran, *sides, f"{statistics.fmean(won):+.2f}", verdict(won)])
    heads = ["dataset", "perturbed", "n", "train", "T", "E", "eps", "two-point", "piecewise", "points won"]
    return markdown_table([*heads, "by seeds in pairs"], body)


def verdict(won: Sequence[float]) -> str:
    """Whether the mean difference is beyond what so many pairs of seeds leave open (Student's t, 95%)."""
    if len(won) < 3:
        return "one seed tells nothing" if len(won) == 1 else "two seeds tell nothing"
    limit = left_open(won)
    return f"± {limit:.2f} at 95%: " + ("a difference" if abs(statistics.fmean(won)) > limit else "none to be seen")


def cifar_table(kept: Kept) -> str:
    """CIFAR-10: what was run, on which network and at which rate."""
    chosen = sorted(
        (s for s in kept if s.dataset == "cifar10"),
        key=lambda s: (s.eps is not None, s.network, s.rate, s.upload, s.radius or math.inf, *place(s), s.rounds),
    )
    body = []
    for s in chosen:
        paper = NOISE_FREE[s.dataset] if s.eps is None else in_table_1(s)
        clients = str(s.clients) if s.fraction == 1 else f"{s.fraction:.0%} of {s.clients}"
        ran = [str(s.trained or "all"), str(s.rounds), str(s.epochs)]
        first = [perturbed(replace(s, network="")), eps_of(s), clients, *ran]
        network, rate = network_and_rate(s)
        on = [network, f"{kept[s][0]['weights']:,}", rate, percent(paper if is_the_papers(s) else None)]
        body.append([*first, *on, spread(finals(kept, s)), honest(kept, s)])
    heads = ["perturbed", "eps", "n", "train", "T", "E", "network", "weights", "rate", "paper", "ours", "honest eps"]
    return markdown_table(heads, body)


def other_methods(cells: dict[str, Cell]) -> str:
    """The runs of Geyer et al. and of Bhowmick et al. beside the paper's figures."""
    body = []
    for run in ldp_fl_others.RUNS:
        ours, twins = (
            [cells[one.name] for seed in range(ldp_fl_others.SEEDS) if (one := replace(kind, seed=seed)).name in cells]
            for kind in (run, run.twin)
        )
        if not ours:
            continue
        central = run.method == "geyer"
        server = ["trusted" if central else "not trusted", f"{run.clients:,}", str(run.rounds)]
        loses = [
            f"{ours[0]['spent']:,.2f}",
            f"{run.delta:g}",
            percent(ldp_fl_others.GEYER[run.rounds] if central else None),
        ]
        accuracies = (spread([cell["accuracy"][-1] for cell in found]) for found in (ours, twins))
        body.append([OTHER_NAMES[run.method], *server, *loses, *accuracies])
    heads = ["method", "server", "n", "T", "honest eps", "delta", "paper", "ours", "ours, no noise"]
    return markdown_table(heads, body)
