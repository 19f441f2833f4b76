# SPDX-License-Identifier: Apache-2.0
"""The tables of results/han-xue.md and its Figures 6 and 8, from the cells that are there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.papers import han_xue_dssgd as dssgd
from benchmarks.papers import han_xue_runs, han_xue_tries, pictures
from benchmarks.papers.common import Cell, by_run, table
from benchmarks.papers.han_xue_plan import FULL_EPOCHS, OURS, PAPER, SIGMAS, Setting, plan
from benchmarks.papers.pictures import Line, Panel

MIXED = "gan+dcgan"  # as the paper has images
PARTIES = (5, 10, 20)
NAMES = {"adult": "Adult", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
Kept = dict[Setting, list[Cell]]  # of a setting with seed 0 and no baseline, one cell for each seed that was run


def kept_of(cells: dict[str, Cell]) -> Kept:
    """The runs by setting, in the order of their seeds, with the baselines that belong to them."""
    return by_run(han_xue_runs.joined(cells), plan(), baseline=False)


def tables(cells: dict[str, Cell]) -> dict[str, str]:
    """Every table of the page, by its mark."""
    kept = kept_of(cells)
    found = {"table-1": glance(kept)}
    for dataset in PAPER:
        found[f"{dataset}-table-1"] = table_1(kept, dataset)
        found[f"{dataset}-gain"] = gain(kept, dataset)
        found[f"{dataset}-table-2"] = table_2(kept, dataset)
        found[f"{dataset}-sound"] = table_sound(kept, dataset)
    swapped = [cell for name, cell in cells.items() if name.startswith(han_xue_tries.SWAPPED)]
    found |= {"samples-or-labels": samples_or_labels(swapped), "tries": han_xue_tries.tries(cells)}
    return {**found, "dp-dssgd": dssgd.shown(cells)}


def recipe(s: Setting) -> str:
    """How generators were trained and how much was made, in words: runs of one recipe may be compared."""
    full = f", all samples, {FULL_EPOCHS} epochs" if s.full else ""
    wide = ", networks twice as wide" if s.wide else ""
    return f"T = {s.steps:,}{', ' + kinds(s) if s.generators else ''}{full}{wide}"


def kinds(s: Setting) -> str:
    """The kinds of the parties' generators."""
    both = "GAN, VAE" if s.dataset == "adult" else "GAN, DCGAN"
    return s.generators.upper().replace("+", ", ") if s.generators else both


def of_five(kept: Kept, dataset: str) -> list[Setting]:
    """The paper's variant with five parties and sigma 1, the run nearest to the paper's first, then that of most."""
    found = [s for s in kept if (s.dataset, s.sound, s.parties, s.sigma) == (dataset, False, 5, 1)]
    return sorted(found, key=lambda s: (not s.full, -s.steps, -len(kept[s])))


def accuracies(cells: list[Cell]) -> tuple[list[float], list[float], list[float]]:
    """Accuracies of the baseline where it was trained, of the parties alone in mean, and of the global model."""
    bases = [c["baseline_accuracy"] for c in cells if c["baseline_accuracy"] is not None]
    return bases, [fmean(c["standalone"]) for c in cells], [c["global"] for c in cells]


def spread(values: Sequence[float]) -> str:
    """The mean of the seeds, and the deviation of one of them where there are several."""
    if len(values) < 2:
        return f"{values[0]:.4f} (one seed)" if values else "not run"
    return f"{fmean(values):.4f} ± {stdev(values):.4f} ({len(values)} seeds)"


def glance(kept: Kept) -> str:
    """Table 1 of all datasets, by the runs nearest to the paper's."""
    rows = []
    for dataset, name in NAMES.items():
        found = of_five(kept, dataset)
        for s in [*found[:1], *(s for s in found[1:] if s.full and (s.generators == MIXED or s.wide))]:
            also = (
                ", DCGANs, networks twice as wide" if s.wide else f", {kinds(s)} mixed" if s.generators == MIXED else ""
            )
            pairs = zip(PAPER[dataset].table_1, accuracies(kept[s]), strict=True)
            rows.append([name + also, *(text for theirs, v in pairs for text in (f"{theirs:.4f}", spread(v)))])
    heads = ["baseline", "ours", "standalone", "ours", "global", "ours"]
    return table(["dataset", *(h if h == "ours" else f"{h}, paper" for h in heads)], rows)


def table_1(kept: Kept, dataset: str) -> str:
    """Five parties, sigma 1: a row for each recipe, those nearest to the paper's first."""
    rows = [["paper", *(f"{theirs:.4f}" for theirs in PAPER[dataset].table_1)]]
    rows += [[f"ours, {recipe(s)}", *map(spread, accuracies(kept[s]))] for s in of_five(kept, dataset)]
    return table(["", "baseline", "standalone", "global"], rows)


def gain(kept: Kept, dataset: str) -> str:
    """The paper's claim, that the global model is above the standalone ones, by the runs nearest to the paper's."""
    rows = []
    for s in (replace(first, parties=n) for first in of_five(kept, dataset)[:1] for n in PARTIES):
        if s in kept:
            won = [c["global"] - fmean(c["standalone"]) for c in kept[s]]
            above = sum(w > 0 for w in won)
            verdict = "above" if above == len(won) else "on both sides" if above else "below"
            rows.append([str(s.parties), f"{fmean(won):+.4f}", f"{above} of {len(won)}", verdict])
    return table(["parties", "global less standalone", "seeds above", ""], rows)


def heading(s: Setting) -> list[str]:
    """What tells the rows of a table apart."""
    return [str(s.parties), f"{s.sigma:g}", f"{s.steps:,}", kinds(s) + (", wide networks" if s.wide else "")]


def rows_of(kept: Kept, dataset: str, sound: bool) -> list[Setting]:
    """The settings of a variant, sorted."""
    found = [s for s in kept if (s.dataset, s.sound) == (dataset, sound)]
    return sorted(found, key=lambda s: (s.parties, s.sigma, s.steps, heading(s)))


def printed(s: Setting) -> str:
    """The paper's global accuracy, which it prints for five parties alone."""
    theirs = PAPER[s.dataset].table_2.get(s.sigma)
    return "in a plot" if s.parties != 5 else "" if theirs is None else f"{theirs:.4f}"


def table_2(kept: Kept, dataset: str) -> str:
    """The paper's variant: a row for the seeds of a setting, of which none moves an eps."""
    rows, paper = [], PAPER[dataset]
    for s in rows_of(kept, dataset, sound=False):
        first = kept[s][0]
        claim = 2 * paper.batch / paper.examples * math.sqrt(paper.steps * math.log(1e5)) / s.sigma
        accounted = [f"{claim:.4f}" if s.parties == 5 else "-", f"{first['eq18']:.4f}", "none (infinite)"]
        results = [*map(spread, accuracies(kept[s])[1:]), printed(s)]
        share = f"{fmean([run['kept'] for run in kept[s]]):.1%}"
        rows.append([*heading(s), *accounted, *results, share, f"{loss_epsilon(s, first['examples']):.3f}"])
    heads = ["parties", "sigma", "T", "generators", "eq. (18), paper's T", "eq. (18), our T", "true eps of the samples"]
    return table([*heads, "standalone", "global", "paper's global", "samples kept", "true eps of the losses"], rows)


def loss_epsilon(s: Setting, examples: int) -> float:
    """What releasing the noisy losses would cost: a subsampled Gaussian mechanism with the paper's q and our T."""
    from ldpkernels.accounting import sampled_gaussian

    return sampled_gaussian(s.sigma, PAPER[s.dataset].batch / examples, s.steps, delta=1e-5).epsilon


def table_sound(kept: Kept, dataset: str) -> str:
    """The sound variant: a row for the seeds of a setting, of which none moves an eps."""
    rows = []
    for s in rows_of(kept, dataset, sound=True):
        first = kept[s][0]
        spent = f"{first['eps'] + first['vote eps']:.3f} (delta 2e-5; noise {first['vote sigma']:.1f})"
        results = [*map(spread, accuracies(kept[s])[1:]), spent, spread([run["global gnmax"] for run in kept[s]])]
        rows.append([*heading(s), f"{first['eq18']:.2f}", f"{first['eps']:.3f}", *results, printed(s)])
    heads = ["parties", "sigma", "T", "generators", "eq. (18)", "true eps of the samples (PLD)", "standalone"]
    rest = ["global, exact votes (eps infinite)", "eps in all with GNMax", "global, GNMax", "paper's global"]
    return table([*heads, *rest], rows)


def samples_or_labels(cells: list[Cell]) -> str:
    """The four ways to train the same global model: real or generated samples, labelled by the vote or better."""

    def share(name: str) -> str:
        return f"{fmean([c[name] for c in cells]):.1%}" if cells else "not run"

    true, told = share("vote is right of real"), share("vote is the teacher's")
    real, generated = share("kept of real"), share("kept of generated")
    rows = [
        ["real, all", "their own", "", "", "teacher"],
        ["real", "the vote's", real, f"{true} with the truth", "real, vote"],
        ["generated", "the vote's", generated, f"{told} with the model of the first row", "generated, vote"],
        ["generated", "of the model of the first row", generated, "", "generated, teacher"],
    ]
    heads = ["samples", "labels", "kept by the vote", "it agrees", "global model"]
    return table(heads, [[*row, spread([c[of] for c in cells])] for *row, of in rows])


def draw(cells: dict[str, Cell], path: Path) -> None:
    """Figures 6 and 8, a row for each dataset, and the sound variant apart, as its accuracies are elsewhere."""
    kept = kept_of(cells)
    run = [dataset for dataset in NAMES if of_five(kept, dataset)]
    pictures.save([make(dataset, kept) for dataset in run for make in (of_sigma, of_parties)], path)
    pictures.save([sound(dataset, kept) for dataset in NAMES], path.with_name(f"{path.stem}-sound.png"))


def of_sigma(dataset: str, kept: Kept) -> Panel:
    """Figure 6: five parties. The runs are of sigma = 1 and stand for all, as no sigma changes a bit."""
    first, *others = of_five(kept, dataset)
    base, alone, best = accuracies(kept[first])
    lines = [("global", best), ("standalone", alone), ("baseline: all examples", base)]
    mixed = [s for s in others if s.full and s.generators == MIXED]
    lines += [("global, GANs and DCGANs mixed", accuracies(kept[s])[2]) for s in mixed]
    theirs = list(PAPER[dataset].table_2.items())
    every = [100 * a for _, accuracies in lines for a in accuracies] + [100 * a for _, a in theirs]
    low = min(every) - 0.5 * (max(every) - min(every))  # room for the legend
    return Panel(
        f"Figure 6: {NAMES[dataset]}, run at sigma = 1", "sigma", (low, max(every) + 1),
        [(label, [(1.0, accuracies)]) for label, accuracies in lines],
        crosses=[("paper, global", theirs, "k")], flat=True,
    )  # fmt: skip


def of_parties(dataset: str, kept: Kept) -> Panel:
    """Figure 8 has 10 and 20 parties over sigma, in a plot alone; here over the parties."""
    first = of_five(kept, dataset)[0]
    runs = [(n, accuracies(kept[s])) for n in PARTIES if (s := replace(first, parties=n)) in kept]
    lines: list[Line] = [("global", [(n, best) for n, (_, _, best) in runs])]
    lines.append(("standalone", [(n, alone) for n, (_, alone, _) in runs]))
    base = 100 * fmean(accuracies(kept[first])[0])
    every = [base, *(100 * a for _, points in lines for _, found in points for a in found)]
    return Panel(
        f"Figure 8: {NAMES[dataset]}, sigma = 1", "parties", (min(every) - 1, max(every) + 1), lines, ticks=PARTIES,
        level=(base, "baseline: all examples, whoever has them"),
    )  # fmt: skip


def sound(dataset: str, kept: Kept) -> Panel:
    """The sound variant, by exact votes: of images with fewer steps, but for one run."""
    runs = [s for s in kept if (s.dataset, s.sound) == (dataset, True) and s.sigma in SIGMAS]

    def line(label: str, chosen: list[Setting]) -> Line:
        return label, [(s.sigma, [cell["global"] for cell in kept[s]]) for s in chosen]

    lines = [line(f"{n} parties", [s for s in runs if s.parties == n and s.steps == OURS[dataset][1]]) for n in PARTIES]
    lines.append(line(f"5 parties, T = {PAPER[dataset].steps:,}", [s for s in runs if s.full]))
    title = f"{NAMES[dataset]}, sound: T = {OURS[dataset][1]:,}, exact votes"
    return Panel(title, "sigma", (70, 88) if dataset == "adult" else (0, 100), lines)
