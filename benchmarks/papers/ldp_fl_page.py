# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks/papers/ldp_fl.py, from its cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.papers import ldp_fl_others
from benchmarks.papers.common import Cells, markdown_table, not_run, percent, spread, write_markdown
from benchmarks.papers.ldp_fl_cells import HEADLINES, NAMES, TABLE_1, Kept, finals, kept_of
from benchmarks.papers.ldp_fl_figures import draw
from benchmarks.papers.ldp_fl_plan import (
    EPOCHS,
    NOISE_FREE,
    PAPER,
    RangeMethod,
    Setting,
    by_few,
    cifar,
    few,
    headlines,
    in_order,
    longer,
    setting,
    table_1,
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


HEADER = ["dataset", "perturbed", "eps", "n", "train", "T", "E", "paper", "ours", "ours, no noise", "honest eps"]


def perturbed(s: Setting) -> str:
    """What is perturbed, within which ranges."""
    if s.eps is None:
        return "nothing"
    piecewise = "" if s.mechanism == "two-point" else f", {s.mechanism}"
    return (f"weights, {s.ranges}" if s.radius is None else s.ranges.replace(" r=", ", r = ")) + piecewise


def table(kept: Kept, rows: Iterable[tuple[Setting, float | None]]) -> str:
    """The rows that were run."""
    found = [row_of(kept, s, paper) for s, paper in dict.fromkeys(rows) if s in kept]
    return markdown_table(HEADER, found) if found else "Not run yet."


def headline_table(kept: Kept) -> str:
    """Its setting of each dataset; the paper has a figure for fixed ranges, and for no adaptive ones at this eps."""
    home = [s for s in kept if (s.dataset, s.eps) in HEADLINES and s.dataset != "cifar10" and s.fraction == 1]
    home = [s for s in home if s.clients == PAPER[s.dataset][0] and s.rounds == (10 if s.dataset == "mnist" else 15)]
    asked = {replace(s, seed=0) for s in [*headlines(), *longer(), *few()]}
    ordered = sorted(
        (s for s in home if s in asked),
        key=lambda s: (
            s.dataset != "mnist",
            s.mechanism != "two-point",
            s.radius is None,
            s.ranges,
            s.epochs,
            s.trained,
        ),
    )
    fixed = {s for s in ordered if s.radius is not None and s.mechanism == "two-point"}
    return table(kept, ((s, HEADLINES[s.dataset, s.eps or 0] if s in fixed else None) for s in ordered))


def epochs_table(kept: Kept) -> str:
    """Training alone: what more local epochs give with and without noise."""
    body = []
    for dataset, eps in (("mnist", 1.0), ("fashion-mnist", 4.0)):
        for trained, epochs in ((t, e) for t in (0, 20) for e in (1, 2, 3, 5, 10, 15, 20)):
            plain = setting(dataset, None, epochs=epochs, trained=trained)
            noisy = setting(dataset, eps, epochs=epochs, upload="updates", trained=trained)
            if finals(kept, plain) or finals(kept, noisy):
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
    cells += [s for s in cifar() if s.rounds == 15 and s.clients == 500 and s.eps in (5.0, 10.0)]
    cells = [s for s in cells if (s.dataset, s.eps, "adaptive" if s.radius is None else "fixed") in TABLE_1]
    paper = {s: TABLE_1[s.dataset, s.eps or 0, "adaptive" if s.radius is None else "fixed"] for s in cells}
    order = list(NAMES)
    return table(
        kept,
        sorted(paper.items(), key=lambda row: (order.index(row[0].dataset), row[0].eps, row[0].ranges, row[0].trained)),
    )


def adaptive_table(kept: Kept) -> str:
    """MNIST at eps = 1: the ways to choose ranges from the mean of the uploads."""
    ways: tuple[RangeMethod, ...] = ("minmax", "capped", "quantile", "noise-subtracted")
    rows = [(way, kept.get(setting("mnist", 1.0, ranges="adaptive", adapts=way), [])) for way in ways]
    body = []
    for way, cells in rows:
        if cells:
            highest = [max(cell["accuracy"]) for cell in cells]
            radii = [cell["radii"][-1] for cell in cells if "radii" in cell]
            last = f"{statistics.fmean(radii):.2f}" if radii else ""
            body.append([way, spread(highest), spread([cell["accuracy"][-1] for cell in cells]), last])
    heads = ["ranges", "best round", "last round", "widest radius at the end"]
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
                str(s.clients),
                f"{s.eps:g}",
                spread(finals(kept, twin)),
                spread(finals(kept, s)),
                f"{statistics.fmean(won):+.2f}",
                _verdict(won),
            ]
        )
    heads = ["dataset", "n", "eps", "two-point", "piecewise", "points won", "by seeds in pairs"]
    return markdown_table(heads, body) if body else "Not run yet."


def _verdict(won: Sequence[float]) -> str:
    """Whether the mean difference is beyond what so many pairs of seeds leave open (Student's t, 95%)."""
    if len(won) < 3:
        return "one seed tells nothing" if len(won) == 1 else "two seeds tell nothing"
    error = statistics.stdev(won) / math.sqrt(len(won))
    limit = {3: 4.30, 4: 3.18, 5: 2.78}.get(len(won), 2.6) * error
    return f"± {limit:.2f} at 95%: " + ("a difference" if abs(statistics.fmean(won)) > limit else "none to be seen")


INTRODUCTION = """\
Accuracies on the test set after the last round; ± is the standard deviation of one run among so many seeds. The
paper averages ten runs. **eps is that of one weight of one upload**, as in the paper; the honest eps is what a client
of all T rounds loses to whoever sees its uploads, exactly composed, at delta = 1e-5.

**"train: 20"**: all n clients report, but 20 train in a round, drawn anew each time, and stand for n / 20 each: the
mean has the noise of n reports and the spread of 20 models. It costs a tenth; the rows for Fashion-MNIST with E = 10
have both."""

FIGURES = """\
Coloured: with noise. Grey: the same run without. Crosses: the figures that the paper prints (its curves are given as
pictures alone). Bars and bands are one standard deviation, where there are several seeds."""

THEOREM_2 = """\
The error of the mean of n reports of one weight (two-point, at the center of its range), in units of the radius, that
is passed with probability 5%: by the theorem, with the constants of its proof (`mean_error_bound`), and measured over
21,840 weights with fixed keys. The order in eps and n is right. With many clients the inequality is loose by
sqrt(2 log(2 / 5%)) / 1.96 = 1.39, as it knows no normal law; with few its linear term adds to that."""

ADAPTIVE = """\
"Update C and R from W_l" is read as the least and the greatest weight of a layer. At eps = 1 with 100 clients these
ranges run away: the radius of the widest layer was .25, .33, .42, .52, .62, .68, .77, .82, 1.02 and 1.13 after ten
rounds, and accuracy fell from 85% (round 5) to 37% (by 20 clients, seed 0). The extremes of a noisy mean are noise, and
the noise stays in the weights that the next round starts from, so that it adds up. Taking the known noise of the last
round off the spread does not help, as the noise of earlier rounds is in the weights by then. **Capped** ranges, which
may shrink and never grow (`ranges(..., growth=1.0)`), hold. The paper has no adaptive figure at this eps; at eps = 5
and 10 (Table 1) the noise is less than half, and plain ranges hold."""

REASONS = """\
- **What the paper leaves open.** Local epochs E and batch size are not in it: E is in the tables, B is 10. The network
  is read as PyTorch's basic example (21,840 weights). "No noise" decides how much training is missing: the paper's own
  noise-free runs are at 97.21% (MNIST) and 87.58% (Fashion-MNIST), by its headlines and its "accuracy loss".
- **MNIST** needs E = 2: above the paper's figure, with and without noise.
- **Fashion-MNIST is held back by training, not by noise.** Without noise this network ends below the paper's 87.58% at
  E = 10, and E = 15 adds nothing to that; noise takes less than half a point of it. So no range setting can come to the
  paper's adaptive 87.54% here: what is missing is in its network or its training, which it does not give.
- **What is perturbed.** "weights" is Algorithm 1 to the letter: weights are clipped to [-r, r] and perturbed. "updates"
  perturbs their change since the cloud's weights within the same range. With r = .015 (Fashion-MNIST) the first gives a
  dead network. Updates within .015, weights with adaptive ranges, and weights within .15, if .015 is a slipped decimal,
  all come within two points of the paper's figure; which it was, the figures do not tell.
- **Accuracy over n falls here and rises in the paper's Figure 3.** More clients take the noise of the mean away, and
  leave each client fewer examples: 60,000 / n, and so fewer local steps in a round. The gap to the twin without noise
  closes with n, as the paper says, from 2.5 points at 20 clients to none at 500; the twin itself falls by 11 points
  meanwhile, for want of training at one local epoch. The paper's twins are pictures: how they fall is not printed.
- **The fraction of clients** matters through the noise alone: without it a tenth of 500 clients does as well as all.
- **Piecewise** has less variance above eps = .61 and more below. Where the average over clients has already taken the
  noise away, little is left to win; with 20 clients it is ahead by .5 to .8 points, which so few seeds do not prove.
- **CIFAR-10.** The four cells of Table 1 need 500 clients in 15 rounds of ten epochs: two hours of a core each in full,
  five minutes by 20 clients. The initialisation decides: torch's own, without normalisation, was at 12.73% after six
  rounds of 240 local steps without noise, which shows nothing and was taken out; these runs have He's initialisation
  and group normalisation. The paper's network, "a small VGG", is not given, and nor are its local epochs."""

OTHERS_TEXT = """\
With which the paper compares itself, on MNIST, by the figures that those papers print; here both methods are run with
the network, data and learning rate of LDP-FL's runs. **Geyer et al.** trust the server, which adds Gaussian noise to
the sum of clipped updates. The paper says that they had 100 clients: they had 100, 1,000 and 10,000. Their bound is the
median of the clients' norms, which their epsilon leaves out; here it is fixed and public. **Bhowmick et al.** trust
nobody: a client sends its whole update by PrivUnit (here PrivUnitG), under one eps for all weights. The paper calls
their eps = 500 impractical, and its own eps = 1 practical: the one is of a whole update, the other of one weight out of
21,840. All totals here are of a client over all rounds, exactly composed; LDP-FL's own is 102,690 at eps = 1. Norms are
2 (100 clients), .5 and .2, near what clients send; five local epochs, one for Bhowmick et al. with 100 clients."""


def write(cells: Cells, folder: Path, name: str) -> None:
    """The page and the picture."""
    kept = kept_of(cells.all())
    color = sorted((s for s in kept if s.dataset == "cifar10"), key=lambda s: (s.eps is not None, s.rounds, s.ranges))
    sections = [
        INTRODUCTION,
        f"## The paper's headlines\n\n{headline_table(kept)}",
        f"## Figures 3, 4 and 5\n\n![LDP-FL's figures, rerun]({name}.png)\n\n{FIGURES}",
        f"## Table 1: fixed and adaptive ranges\n\n{table_1_of(kept)}",
        f"## Adaptive ranges at a small eps\n\n{ADAPTIVE}\n\n{adaptive_table(kept)}",
        f"## Local epochs\n\n{epochs_table(kept)}",
        f"## The piecewise mechanism at the same eps\n\n{piecewise_table(kept)}",
        f"## The methods of Geyer et al. and of Bhowmick et al.\n\n{OTHERS_TEXT}\n\n{ldp_fl_others.table(cells)}",
        f"## Theorem 2\n\n{THEOREM_2}\n\n{theorem_2()}",
        *([f"## CIFAR-10, 20 clients training in each round\n\n{fraction_table(kept, color)}"] if color else []),
        f"## Why figures differ from the paper's\n\n{REASONS}",
        f"## What was not run\n\n{waiting(cells)}",
    ]
    write_markdown(folder / f"{name}.md", "LDP-FL, rerun", sections, cells.facts())
    draw(kept, folder / f"{name}.png")


def waiting(cells: Cells) -> str:
    """What is planned and was not run: runs that differ in their seeds alone on one line."""
    seeds: dict[Setting, list[int]] = {}
    for s in in_order():
        if s.name not in cells.all():
            seeds.setdefault(replace(s, seed=0), []).append(s.seed)
    lines = []
    for s, missing in seeds.items():
        name = s.name.replace("seed=0", "seed " + ", ".join(map(str, missing)))
        lines.append(f"{name}: {s.minutes * len(missing):.1f} minutes of a core")
    others: dict[ldp_fl_others.Other, list[int]] = {}
    for other in ldp_fl_others.in_order():
        if other.name not in cells.all():
            others.setdefault(replace(other, seed=0), []).append(other.seed)
    for other, missing in others.items():
        name = other.name.replace("seed=0", "seed " + ", ".join(map(str, missing)))
        lines.append(f"{name}: {other.minutes * len(missing):.1f} minutes of a core")
    return not_run(lines)


def theorem_2() -> str:
    """The bound of the mean's error beside what is measured, in units of the radius; fixed keys."""
    import torch

    import ldpkernels
    from ldpkernels.federated.mean_error import mean_error_bound

    beta, weights, body = 0.05, torch.zeros(21_840), []
    for eps in (0.3, 1.0, 4.0):
        for clients in (20, 100, 500):
            reports = ldpkernels.Aggregate()
            for i in range(clients):
                reports.add(ldpkernels.report({"w": weights}, 0.0, 1.0, eps, generator=ldpkernels.key(i)))
            off = reports.mean()["w"].abs().sort().values
            measured = float(off[int((1 - beta) * len(off))])
            bound, worst = (mean_error_bound(eps, 1.0, clients, b) for b in (beta, beta / len(off)))
            body.append(
                [
                    f"{eps:g}",
                    str(clients),
                    f"{bound:.3f}",
                    f"{measured:.3f}",
                    f"{bound / measured:.2f}",
                    f"{worst:.3f}",
                    f"{float(off[-1]):.3f}",
                ]
            )
    heads = ["eps", "n", "bound of one weight", "measured", "ratio", "bound of all 21,840", "measured, the worst"]
    return markdown_table(heads, body)


def fraction_table(kept: Kept, chosen: Sequence[Setting]) -> str:
    """Runs in which some clients stand for all."""
    heads = ["perturbed", "eps", "n", "train", "T", "E", "paper", "ours", "honest eps"]
    body = []
    for s in chosen:
        paper = None if s.eps is None else TABLE_1.get((s.dataset, s.eps, "adaptive" if s.radius is None else "fixed"))
        paper = NOISE_FREE[s.dataset] if s.eps is None else paper
        first = [perturbed(s), "" if s.eps is None else f"{s.eps:g}", str(s.clients), str(s.trained or "all")]
        rest = [str(s.rounds), str(s.epochs), percent(paper if s.clients == 500 else None), spread(finals(kept, s))]
        body.append([*first, *rest, row_of(kept, s, None)[-1]])
    return markdown_table(heads, body)
