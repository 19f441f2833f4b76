# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks/papers/han_xue.py, from its cells."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.papers.common import markdown_table

# Han and Xue's table 1 (baseline, standalone, global), the accuracies of their table 2, and their T, B and N.
PAPER: dict[str, dict[str, Any]] = {
    "adult": {
        "table 1": (0.8474, 0.8246, 0.8281),
        "table 2": {1.0: 0.8281, 1.5: 0.8236, 3.0: 0.8147, 5.0: 0.8109},
        "schedule": (1000, 256, 7814),
    },
    "mnist": {
        "table 1": (0.9920, 0.9816, 0.9828),
        "table 2": {1.0: 0.9828, 1.5: 0.9819, 3.0: 0.9789, 5.0: 0.9677},
        "schedule": (10000, 128, 12000),
    },
    "fashion-mnist": {
        "table 1": (0.9250, 0.8760, 0.8894),
        "table 2": {1.0: 0.8894, 1.5: 0.8779, 3.0: 0.8702, 5.0: 0.8647},
        "schedule": (10000, 128, 12000),
    },
}
FULL_EPOCHS = 10  # of every network in the runs with the paper's T and all of the samples
Cell = dict[str, Any]


def sections(dataset: str, found: list[Cell], reduced: str) -> list[str]:
    """The tables of one dataset; `reduced` says what was cut."""
    paper, sound = ([c for c in found if c["sound"] is kind] for kind in (False, True))
    whole = [
        "Ours beside the paper's. One run a row, unless seeds are named. Accuracies are of the real test examples.",
        f"**What was cut.** {reduced}",
    ]
    if paper:
        whole += ["## Table 1", table_1(dataset, paper), gain(dataset, paper)]
        whole += ["## Table 2, and 10 and 20 parties", table_2(dataset, paper)]
        whole.append(equal_generators(paper))
    if sound:
        whole += ["## The sound variant", table_sound(dataset, sound), SOUND]
    return [*whole, "## Why they differ", DIFFERENCES[dataset], pictures(dataset, bool(paper), bool(sound))]


def recipe(c: Cell) -> str:
    """How generators were trained and how much was made, in words: cells of one recipe may be compared."""
    full = f", all samples, {FULL_EPOCHS} epochs" if c.get("full") else ""
    return f"T = {c['steps']:,}{', ' + c['generators'] if c.get('generators') else ''}{full}"


def recipes(cells: list[Cell]) -> list[str]:
    """Those of the cells, the one nearest to the paper's first."""
    return list(dict.fromkeys(recipe(c) for c in sorted(cells, key=lambda c: (not c.get("full"), -c["steps"]))))


def table_1(dataset: str, cells: list[Cell]) -> str:
    """Five parties, sigma 1: a column for each recipe."""
    five = [c for c in cells if c["parties"] == 5 and c["sigma"] == 1]
    heads, columns = ["", "paper"], []
    for kind in recipes(five):
        ours = [c for c in five if recipe(c) == kind]
        heads.append(f"ours, {kind}")
        columns.append(
            (
                [c["baseline_accuracy"] for c in ours if c["baseline_accuracy"] is not None],
                [mean(c["standalone"]) for c in ours],
                [c["global"] for c in ours],
            )
        )
    names = ("baseline", "standalone", "global")
    rows = [
        [name, f"{theirs:.4f}", *(spread(column[i]) for column in columns)]
        for i, (name, theirs) in enumerate(zip(names, PAPER[dataset]["table 1"], strict=True))
    ]
    return markdown_table(heads, rows)


def gain(dataset: str, cells: list[Cell]) -> str:
    """The paper's claim, that the global model is above the standalone ones, against the runs nearest to the paper's.

    One run a setting decides nothing within its own luck; the sentence says how many there are.
    """
    _, standalone, best = PAPER[dataset]["table 1"]
    held, failed = [], []
    nearest = recipes(cells)[0]
    for parties in sorted({c["parties"] for c in cells}):
        runs = [c for c in cells if c["parties"] == parties and c["sigma"] == 1 and recipe(c) == nearest]
        won = [c["global"] - mean(c["standalone"]) for c in runs]
        if won:
            seeds = f"{len(won)} seeds" if len(won) > 1 else "one seed"
            (held if mean(won) > 0 else failed).append(f"{parties} parties ({mean(won):+.4f}, {seeds})")
    claim = f"The paper's global model is {best - standalone:.4f} above its standalone models. Here, with {nearest},"
    if not failed:
        return f"**Global above standalone holds.** {claim} it is above them with {' and '.join(held)}."
    above = f", and above them with {' and '.join(held)}" if held else ""
    verdict = "holds with some numbers of parties only" if held else "fails"
    return f"**Global above standalone {verdict}.** {claim} it is below them with {' and '.join(failed)}{above}."


def table_2(dataset: str, cells: list[Cell]) -> str:
    """Every run of the paper's variant."""
    rows = []
    steps, batch, examples = PAPER[dataset]["schedule"]
    for c in sorted(cells, key=lambda c: (c["parties"], c["sigma"], c["seed"])):
        theirs = PAPER[dataset]["table 2"].get(c["sigma"]) if c["parties"] == 5 else None
        claim = 2 * batch / examples * math.sqrt(steps * math.log(1e5)) / c["sigma"] if c["parties"] == 5 else None
        rows.append(
            [
                *heading(c),
                "-" if claim is None else f"{claim:.4f}",
                f"{c['eq18']:.4f}",
                "none (infinite)",
                f"{mean(c['standalone']):.4f}",
                f"{c['global']:.4f}",
                "in a plot" if theirs is None else f"{theirs:.4f}",
                f"{c['kept']:.1%}",
                f"{loss_epsilon(c, dataset):.3f}",
            ]
        )
    heads = [
        "parties",
        "sigma",
        "T",
        "generators",
        "seed",
        "eq. (18), paper's T",
        "eq. (18), our T",
        "true eps of the samples",
    ]
    return markdown_table(
        [*heads, "standalone", "global", "paper's global", "samples kept", "true eps of the losses"], rows
    )


def loss_epsilon(c: Cell, dataset: str) -> float:
    """Of a subsampled Gaussian mechanism with the paper's q and our T: what releasing the noisy losses would cost."""
    from ldpkernels.accounting import sampled_gaussian

    q = PAPER[dataset]["schedule"][1] / c["examples"]
    return sampled_gaussian(c["sigma"], q, c["steps"], delta=1e-5).epsilon


def equal_generators(cells: list[Cell]) -> str:
    """What the digests say."""
    nearest = max(recipes(cells), key=lambda kind: sum(recipe(c) == kind for c in cells))
    five = [c for c in cells if c["parties"] == 5 and c["seed"] == cells[0]["seed"] and recipe(c) == nearest]
    sigmas = ", ".join(f"{c['sigma']:g}" for c in sorted(five, key=lambda c: c["sigma"]))
    if len(five) < 2:
        return NOISE + " Only one sigma was run here for that reason; tests/federated/test_han_xue.py checks others."
    verdict = "the same to the bit" if len({c["digest"] for c in five}) == 1 else "**different, which is a bug**"
    return f"{NOISE} The generators of the runs with sigma {sigmas} are {verdict}, and so is all that follows."


def table_sound(dataset: str, cells: list[Cell]) -> str:
    """Every run of the sound variant."""
    rows = []
    for c in sorted(cells, key=lambda c: (c["parties"], c["sigma"], c["seed"])):
        theirs = PAPER[dataset]["table 2"].get(c["sigma"]) if c["parties"] == 5 else None
        rows.append(
            [
                *heading(c),
                f"{c['eq18']:.2f}",
                f"{c['eps']:.3f}",
                f"{mean(c['standalone']):.4f}",
                f"{c['global']:.4f}",
                f"{c['eps'] + c['vote eps']:.3f} (delta 2e-5; noise {c['vote sigma']:.1f})",
                f"{c['global gnmax']:.4f}",
                "in a plot" if theirs is None else f"{theirs:.4f}",
            ]
        )
    heads = ["parties", "sigma", "T", "generators", "seed", "eq. (18)", "true eps of the samples (PLD)", "standalone"]
    rest = ["global, exact votes (eps infinite)", "eps in all with GNMax", "global, GNMax", "paper's global"]
    return markdown_table([*heads, *rest], rows)


def heading(c: Cell) -> list[str]:
    generators = c.get("generators") or "mixed"
    return [str(c["parties"]), f"{c['sigma']:g}", f"{c['steps']:,}", generators, str(c["seed"])]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def spread(values: list[float]) -> str:
    """The mean, and the extremes where there are several."""
    if not values:
        return "not run"
    text = f"{mean(values):.4f}"
    return text if len(values) == 1 else f"{text} ({min(values):.4f} to {max(values):.4f})"


def pictures(dataset: str, paper: bool, sound: bool) -> str:
    """Real examples beside synthetic samples, five parties, sigma 1."""
    drawn = [kind for kind, there in (("paper", paper), ("sound", sound)) if there]
    return "\n".join(f"![{kind}: real beside synthetic](han-xue-{dataset}-{kind}.png)" for kind in drawn)


IMAGES = (
    "The paper gives neither its networks nor its loss nor its optimizers; ours are small. Steps, samples and epochs "
    "matter more than the type of the generators: with the paper's T and all samples a plain GAN in every party is "
    "enough. Runs with fewer of them (above) have worse samples, and a global model below the standalone ones."
)
DIFFERENCES = {
    "adult": (
        "The paper gives neither the encoding in 88 features nor any setting of its models, and ours do better alone: "
        "standalone and baseline are above its figures. Better local models leave the global one less to gain. The "
        "paper reports one run a setting, as far as it says."
    ),
    "mnist": IMAGES,
    "fashion-mnist": IMAGES,
}
NOISE = (
    "**Sigma changes nothing.** The noise is a constant in the weights, and its gradient is zero (docs/federated/"
    "han_xue.md). The fall of the paper's accuracies with sigma is not the noise's doing, and its eps protects nothing "
    "here. The last column is the guarantee of a release of the noisy losses, which nobody needs."
)
SOUND = (
    "Gradients of real examples are clipped to C = 1 and noised, on Poisson samples. With exact votes the samples are "
    "protected and the labels are not. With GNMax 1,000 samples are labelled with noise that costs as much again as "
    "the generators. A vote of five parties is at most five against none, so at this eps most labels are noise, and "
    "taking fewer samples with less noise each buys no more information: eps fixes queries / noise^2."
)
