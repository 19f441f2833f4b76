# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's tables and figures, rerun: `python -m benchmarks.papers.ldp_fl --data DIR`.

Every cell is one run of `ldpkernels.federated.ldp_fl` with one seed (the paper averages ten); --seed 1, 2, ... adds
others, and the page has their means and deviations. Finished cells are kept in the JSON file; --only REGEX runs some of
them, --dry writes the page from what is there.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Cell, Cells, markdown_table, not_run, parser_of, percent, spread, write_markdown

PAPER = {  # n and rounds of the paper's experiments, its fixed radius, its learning rate
    "mnist": (100, 10, 0.075, 0.03),
    "fashion-mnist": (200, 15, 0.015, 0.03),
    "cifar10": (500, 15, 1.0, 0.015),
}


# What two cores do of CIFAR-10 in minutes: a fifth of the images and of the clients, six rounds of four local epochs.
CIFAR: dict[str, Any] = {"examples": 10_000, "clients": 100, "rounds": 6, "epochs": 4}


@dataclass(frozen=True)
class Setting:
    """One run. `radius` None means adaptive ranges, starting from the initial weights; `eps` None means no noise."""

    dataset: str
    eps: float | None
    clients: int
    rounds: int
    radius: float | None
    upload: str = "weights"
    mechanism: str = "two-point"
    batch: int = 10
    epochs: int = 1
    examples: int | None = None  # of the training set; None for all
    seed: int = 0

    @property
    def name(self) -> str:
        ranges = "adaptive" if self.radius is None else f"{self.upload} r={self.radius:g}"
        noise = "no noise" if self.eps is None else f"{self.mechanism} eps={self.eps:g} {ranges}"
        part = "" if self.examples is None else f" of {self.examples} examples"
        local = f"B={self.batch} E={self.epochs}"
        return f"{self.dataset}{part} n={self.clients} T={self.rounds} {noise} {local} seed={self.seed}"


def setting(dataset: str, eps: float | None, *, ranges: str = "fixed", **changes: Any) -> Setting:
    """The paper's setting, with changes."""
    clients, rounds, radius, _ = PAPER[dataset]
    values = {"clients": clients, "rounds": rounds, "radius": radius if ranges == "fixed" else None}
    return Setting(dataset, eps, **{**values, **changes})


@functools.cache
def dataset_of(name: str, root: str) -> Any:
    from ldpkernels.federated import data

    return data.load(name, root)


def compute(s: Setting, root: str, workers: int | None) -> Cell:
    """Run it: accuracy after each round, and what a client of all rounds loses."""
    import torch

    import ldpkernels
    from ldpkernels.federated import data, ldp_fl, networks, runs, training
    from ldpkernels.federated.workers import available

    torch.set_num_threads(1)
    dataset = dataset_of(s.dataset, root)
    network = networks.network(networks.LDP_FL[s.dataset], s.seed)
    parts = data.deal(dataset.train_y[: s.examples], s.clients, s.seed)
    clients = training.clients_of(dataset.train_x, dataset.train_y, parts, ldpkernels.key(s.seed))
    config = ldp_fl.Config(
        eps=s.eps,
        C=None if s.radius is None else 0.0,
        R=s.radius,
        upload=s.upload,
        adaptive=s.radius is None,
        mechanism=s.mechanism,
        local=training.Local(epochs=s.epochs, batch=s.batch, rate=PAPER[s.dataset][3]),
        seed=s.seed,
    )

    with training.crew(network, clients, workers or available()) as crew:

        def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
            after, row = ldp_fl.round_(state, clients, network, config, workers=crew)
            return after, {**row, "accuracy": training.accuracy(network, after.weights, dataset.test_x, dataset.test_y)}

        _, rows = runs.run(step, ldp_fl.init(network, config), s.rounds, label=s.name)
    weights = sum(p.numel() for p in network.parameters())
    honest = None if s.eps is None else ldp_fl.honest_epsilon(config, weights, s.rounds)
    return {"accuracy": [r["accuracy"] for r in rows], "weights": weights, "honest_eps": honest, **asdict(s)}


def runs_of(seed: int = 0) -> list[Setting]:
    """All cells of a seed in the order of their worth: an interrupted rerun has the paper's own figures first."""
    updates = {"upload": "updates"}
    ordered = [
        setting("mnist", 1.0),
        setting("mnist", 1.0, **updates),
        setting("mnist", None),
        setting("mnist", 1.0, mechanism="piecewise", **updates),
        *(setting("mnist", 5.0, ranges=ranges) for ranges in ("fixed", "adaptive")),
        setting("fashion-mnist", 4.0, epochs=3, **updates),
        setting("mnist", 0.3, **updates),
        setting("mnist", 0.3, mechanism="piecewise", **updates),
        *(setting("mnist", 10.0, ranges=ranges) for ranges in ("fixed", "adaptive")),
        setting("fashion-mnist", 5.0, **updates),
        setting("fashion-mnist", 5.0, ranges="adaptive"),
        setting("fashion-mnist", 1.0, **updates),
        setting("fashion-mnist", 1.0, mechanism="piecewise", **updates),
        setting("fashion-mnist", None),
        setting("fashion-mnist", 4.0, rounds=5),
        setting("mnist", 1.0, clients=500, **updates),
        *(
            setting("mnist", eps, clients=20, mechanism=mechanism, **updates)
            for eps in (1.0, 2.0, 4.0)
            for mechanism in ("two-point", "piecewise")
        ),
        setting("cifar10", 10.0, ranges="adaptive", **CIFAR),
        setting("cifar10", None, **CIFAR),
        setting("fashion-mnist", None, epochs=3),
        setting("mnist", 0.1, **updates),
        setting("mnist", 0.5, **updates),
        setting("fashion-mnist", 10.0, **updates),
        setting("fashion-mnist", 10.0, ranges="adaptive"),
        setting("mnist", 1.0, clients=50, **updates),
        setting("fashion-mnist", 2.0, **updates),
        setting("fashion-mnist", 5.0, clients=50, **updates),
        setting("fashion-mnist", 5.0, clients=500, **updates),
        # More local training, in all readings of what is perturbed.
        setting("fashion-mnist", 4.0, epochs=5, radius=0.15),
        setting("fashion-mnist", 4.0, epochs=10, ranges="adaptive"),
        setting("fashion-mnist", 4.0, epochs=5, **updates),
        setting("fashion-mnist", 4.0, epochs=10, **updates),
        setting("fashion-mnist", None, epochs=5),
        setting("fashion-mnist", None, epochs=10),
        *(setting("cifar10", eps, ranges=ranges) for eps in (5.0, 10.0) for ranges in ("adaptive", "fixed")),
    ]
    return [replace(s, seed=seed) for s in ordered]


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
HEADER = ["dataset", "ranges", "mechanism", "eps", "n", "T", "E", "paper", "ours", "honest eps"]
Kept = dict[Setting, list[Cell]]  # of a setting with seed 0, one cell for each seed that was run

REASONS = """\
- **One seed** for each figure, unless several are named; the paper averages ten. **Local epochs and batch size are not
  in the paper**: E is in the tables, B is 10. The network is read as PyTorch's basic example (21,840 weights).
- **weights** in the column of ranges is Algorithm 1 to the letter: weights are clipped to [-r, r] and perturbed.
  **updates** perturbs their change since the cloud's weights within the same range. With r = .015 (Fashion-MNIST) the
  first reading gives a dead network. Updates are one way to the paper's figures; weights with r = .15, if .015 is a
  slipped decimal, and adaptive ranges are others. Tried on the side at eps = 4, and **no cells of these tables**: 10 to
  25 of the 200 clients train, each upload randomised so that the noise is that of 200. Weights with r = .15 end at
  81.86% with E = 5, adaptive ranges at 85.07% with E = 10, updates at 83.05% with E = 5 and 85.30% with E = 10, and
  E = 10 without noise at 85.73%. Cells for all of these are planned (below). For MNIST updates are the better reading.
- **Fashion-MNIST ends lower for want of training, not by noise**: a client of 300 examples makes 30 steps an epoch, and
  the run without noise ends as low ("What the noise costs"). More local epochs close the gap, at so many times the
  computation.
- **Piecewise** has less variance above eps = .61 and more below, which is what is seen. Where the average over clients
  has already taken the noise away, nothing is left to win.
- **CIFAR-10 is a stated subset that shows nothing**: 10,000 images on 100 clients, six rounds of four epochs, 240 steps
  of rate .015 for each client. Even without noise the network hardly leaves chance. That is its initialisation, by what
  was tried on the side: with He's, and group normalisation, 20 of 500 clients a round reach 44% after eight rounds of
  ten epochs without noise, and rise still. Whether that reaches the paper's 61.46% is not known. Table 1 has 60.37% for
  the same eps and n.
- **The honest eps** is what a client of all T rounds loses to whoever sees its uploads, exactly composed, at
  delta = 1e-5. The paper's eps is that of one weight of one upload."""


def paper_figure(s: Setting, headline: bool) -> float | None:
    """What the paper has at its own n and T for the two-point mechanism."""
    if s.eps is None or s.mechanism != "two-point" or (s.clients, s.rounds) != PAPER[s.dataset][:2]:
        return None
    text = HEADLINES.get((s.dataset, s.eps))
    table = TABLE_1.get((s.dataset, s.eps, "adaptive" if s.radius is None else "fixed"))
    return text or table if headline else table or text


def row_of(s: Setting, cells: list[Cell], headline: bool) -> list[str]:
    """A line of a table."""
    honest = cells[0]["honest_eps"]
    return [
        s.dataset,
        "" if s.eps is None else "adaptive" if s.radius is None else f"{s.upload}, r={s.radius:g}",
        "no noise" if s.eps is None else s.mechanism,
        "" if s.eps is None else f"{s.eps:g}",
        str(s.clients),
        str(s.rounds),
        str(s.epochs),
        percent(paper_figure(s, headline)),
        spread(finals(cells)),
        "" if honest is None else f"{honest:,.0f}",
    ]


def finals(cells: list[Cell]) -> list[float]:
    """The accuracy after the last round, of each seed."""
    return [cell["accuracy"][-1] for cell in cells]


def section(
    title: str, kept: Kept, accepts: Callable[[Setting], bool], order: Any = None, *, headline: bool = False
) -> str:
    """A table of the runs that belong to it."""
    chosen = sorted((s for s in kept if accepts(s)), key=order or (lambda s: 0))
    if not chosen:
        return f"## {title}\n\nNot run yet."
    return f"## {title}\n\n{markdown_table(HEADER, [row_of(s, kept[s], headline) for s in chosen])}"


def gains(kept: Kept) -> str:
    """The piecewise mechanism beside the two-point one, all else equal."""
    lines = []
    for s, cells in kept.items():
        twin = next((t for t in kept if t == replace(s, mechanism="two-point")), None)
        if s.mechanism == "two-point" or twin is None:
            continue
        ours, theirs = statistics.fmean(finals(cells)), statistics.fmean(finals(kept[twin]))
        others = [t for t in kept if t == replace(twin, eps=t.eps) and t.eps]
        cheaper = [t.eps for t in others if t.eps and statistics.fmean(finals(kept[t])) >= ours]
        lines.append(
            [
                s.dataset,
                str(s.clients),
                f"{s.eps:g}",
                str(s.epochs),
                spread(finals(kept[twin])),
                spread(finals(cells)),
                f"{100 * (ours - theirs):+.2f}",
                f"{min(cheaper):g}" if cheaper else "none of those run",
            ]
        )
    header = ["dataset", "n", "eps", "E", "two-point", "piecewise", "points won", "eps at which two-point does as well"]
    return "## The piecewise mechanism at the same eps\n\n" + (
        markdown_table(header, lines) if lines else "Not run yet."
    )


PAPER_COST = {"mnist": (1.0, 0.97), "fashion-mnist": (4.0, 1.32), "cifar10": (10.0, 1.09)}  # eps, points (abstract)


def costs(kept: Kept) -> str:
    """Each run beside the one without noise, all else equal."""
    lines = []
    for s, cells in kept.items():
        plain = setting(s.dataset, None, rounds=s.rounds, clients=s.clients, epochs=s.epochs, examples=s.examples)
        if s.eps is None or plain not in kept:
            continue
        lost = statistics.fmean(finals(kept[plain])) - statistics.fmean(finals(cells))
        eps, points = PAPER_COST[s.dataset]
        row = row_of(s, cells, False)
        paper = f"{points:.2f}" if s.eps == eps and s.mechanism == "two-point" else ""
        lines.append([*row[:4], row[6], spread(finals(kept[plain])), row[8], f"{100 * lost:.2f}", paper])
    header = ["dataset", "ranges", "mechanism", "eps", "E", "no noise", "ours", "points lost", "points lost, paper"]
    return "## What the noise costs\n\n" + (markdown_table(header, lines) if lines else "Not run yet.")


def write(cells: Cells, folder: Path, name: str) -> None:
    """The page and the picture."""
    seeds = sorted({cell["seed"] for cell in cells.all().values()})
    kept: Kept = {}
    for s in (s for seed in seeds for s in runs_of(seed)):
        if cell := cells.all().get(s.name):
            kept.setdefault(replace(s, seed=0), []).append(cell)
    home = {s: (s.clients, s.rounds) == PAPER[s.dataset][:2] for s in kept}
    headline = {("mnist", 1.0), ("fashion-mnist", 4.0), ("cifar10", 10.0)}
    two_point = [s for s in kept if s.mechanism == "two-point"]
    sections = [
        section(
            "The paper's headlines",
            kept,
            lambda s: s in two_point and (s.dataset, s.eps) in headline and (home[s] or s.dataset == "cifar10"),
            headline=True,
        ),
        section("Without noise", kept, lambda s: s.eps is None),
        section("Table 1: fixed and adaptive ranges", kept, lambda s: s.eps in (5.0, 10.0) and home[s]),
        section(
            "Accuracy over eps",
            kept,
            lambda s: s.eps is not None and home[s] and s.upload == "updates",
            lambda s: (s.dataset, s.mechanism, s.eps),
        ),
        section(
            "Accuracy over n",
            kept,
            lambda s: (
                s in two_point
                and s.upload == "updates"
                and s.epochs == 1
                and (s.dataset, s.eps) in {("mnist", 1.0), ("fashion-mnist", 5.0)}
            ),
            lambda s: (s.dataset, s.clients),
        ),
        costs(kept),
        gains(kept),
        f"## Why figures differ from the paper's\n\n{REASONS}",
        "## What was not run\n\n" + not_run([s.name for s in runs_of() if s not in kept]),
    ]
    write_markdown(folder / f"{name}.md", "LDP-FL, rerun", sections, cells.facts())
    draw(kept, folder / f"{name}.png")


def draw(kept: Kept, path: Path) -> None:
    """Accuracy over rounds at the paper's settings, a panel for each dataset; of several seeds the first."""
    from ldpkernels.plot import new_figure, save

    names = [n for n in PAPER if any(s.dataset == n for s in kept)]
    figure, _ = new_figure(1, len(names), width=5.2 * len(names), height=4)
    for axis, dataset in zip(figure.axes, names, strict=True):
        for s, (cell, *_) in kept.items():
            shown = s.eps in (None, PAPER_COST[dataset][0]) or (s.eps == 5 and s.radius is None)
            if s.dataset != dataset or not shown or (s.clients != PAPER[dataset][0] and dataset != "cifar10"):
                continue
            plain = {"color": "0.6", "ls": "--"} if s.eps is None else {}
            row = row_of(s, [cell], False)
            label = " ".join([row[2], *([f"eps={s.eps:g}", row[1]] if s.eps else []), f"E={s.epochs}"])
            axis.plot(
                range(1, len(cell["accuracy"]) + 1), [100 * a for a in cell["accuracy"]], label=label, lw=1.3, **plain
            )
        axis.set(title=dataset, xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
        axis.legend(frameon=False, fontsize=6, loc="lower right")
    save(figure, str(path))


def main() -> None:
    args = parser_of(__doc__ or "", "ldp-fl").parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cells = Cells(args.out / f"{args.name}.json", args.only, args.dry)
    plan = ((s.name, functools.partial(compute, s, args.data, args.workers)) for s in runs_of(args.seed))
    cells.fill(plan, lambda: write(cells, args.out, args.name))


if __name__ == "__main__":
    main()
