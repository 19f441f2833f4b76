# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks/papers/han_xue.py, from its cells."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

from benchmarks.papers.common import markdown_table
from benchmarks.papers.han_xue_words import DIFFERENCES

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
NAMES = {"adult": "Adult", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
SIGMAS = (1.0, 1.5, 3.0, 5.0)  # of its table 2
FULL_EPOCHS = 10  # of every network in the runs with the paper's T and all of the samples
Cell = dict[str, Any]


def glance(found: list[Cell]) -> str:
    """Table 1 of all datasets, by the runs nearest to the paper's."""
    rows = []
    for dataset, name in NAMES.items():
        five = [c for c in found if (c["dataset"], c["sound"], c["parties"], c["sigma"]) == (dataset, False, 5, 1)]
        if not five:
            continue
        for kind in [recipes(five)[0], *dict.fromkeys(recipe(c) for c in five if c.get("wide"))]:
            ours = [c for c in five if recipe(c) == kind]
            also = ", DCGANs, networks twice as wide" if ours[0].get("wide") else ""
            pairs = zip(PAPER[dataset]["table 1"], accuracies(ours), strict=True)
            rows.append([name + also, *(text for theirs, v in pairs for text in (f"{theirs:.4f}", spread(v)))])
    heads = ["baseline", "ours", "standalone", "ours", "global", "ours"]
    return markdown_table(["dataset", *(h if h == "ours" else f"{h}, paper" for h in heads)], rows)


def accuracies(cells: list[Cell]) -> tuple[list[float], list[float], list[float]]:
    """Of the baseline where it was trained, of the parties alone in mean, and of the global model: a run each."""
    baseline = [c["baseline_accuracy"] for c in cells if c["baseline_accuracy"] is not None]
    return baseline, [mean(c["standalone"]) for c in cells], [c["global"] for c in cells]


def sections(dataset: str, found: list[Cell], reduced: str, stem: str) -> list[str]:
    """The tables of one dataset; `reduced` says what was cut, `stem` where its pictures are."""
    paper, sound = ([c for c in found if c["sound"] is kind] for kind in (False, True))
    whole = [f"## {NAMES[dataset]}", f"**What was cut.** {reduced}"]
    if paper:
        whole += [table_1(dataset, paper), gain(dataset, paper)]
        whole += ["### Table 2, and 10 and 20 parties", table_2(dataset, paper)]
        whole.append(equal_generators(paper))
    if sound:
        whole += ["### The sound variant", table_sound(dataset, sound)]
    pictured = pictures(stem, found)
    return [*whole, f"**Why they differ.** {DIFFERENCES[dataset]}", f"### Figure 4: real and synthetic\n\n{pictured}"]


def recipe(c: Cell) -> str:
    """How generators were trained and how much was made, in words: cells of one recipe may be compared."""
    full = f", all samples, {FULL_EPOCHS} epochs" if c.get("full") else ""
    wide = ", networks twice as wide" if c.get("wide") else ""
    return f"T = {c['steps']:,}{', ' + kinds(c) if c.get('generators') else ''}{full}{wide}"


def kinds(c: Cell) -> str:
    """Of the parties' generators."""
    both = "GAN, VAE" if c["dataset"] == "adult" else "GAN, DCGAN"
    return c["generators"].upper().replace("+", ", ") if c.get("generators") else both


def recipes(cells: list[Cell]) -> list[str]:
    """Those of the cells, the ones nearest to the paper's first, of them the one of most runs."""
    runs = Counter(map(recipe, cells))
    nearest = sorted(cells, key=lambda c: (not c.get("full"), -c["steps"], -runs[recipe(c)]))
    return list(dict.fromkeys(map(recipe, nearest)))


def table_1(dataset: str, cells: list[Cell]) -> str:
    """Five parties, sigma 1: a row for each recipe, those nearest to the paper's first."""
    five = [c for c in cells if c["parties"] == 5 and c["sigma"] == 1]
    rows = [["paper", *(f"{theirs:.4f}" for theirs in PAPER[dataset]["table 1"])]]
    for kind in recipes(five):
        rows.append([f"ours, {kind}", *map(spread, accuracies([c for c in five if recipe(c) == kind]))])
    return markdown_table(["", "baseline", "standalone", "global"], rows)


def gain(dataset: str, cells: list[Cell]) -> str:
    """The paper's claim, that the global model is above the standalone ones, against the runs nearest to the paper's.

    One run a setting decides nothing within its own luck; the sentence says how many there are.
    """
    _, standalone, best = PAPER[dataset]["table 1"]
    sides: dict[str, list[str]] = {"above": [], "below": [], "on both sides of": []}
    nearest = recipes(cells)[0]
    for parties in sorted({c["parties"] for c in cells}):
        runs = [c for c in cells if c["parties"] == parties and c["sigma"] == 1 and recipe(c) == nearest]
        won = [c["global"] - mean(c["standalone"]) for c in runs]
        if won:
            above = sum(w > 0 for w in won)
            seeds = f"above in {above} of {len(won)} seeds" if len(won) > 1 else "one seed"
            side = "above" if above == len(won) else "on both sides of" if above else "below"
            sides[side].append(f"{parties} parties ({mean(won):+.4f}, {seeds})")
    found = [side for side, where in sides.items() if where]
    if "above" in found:
        verdict = "holds" if found == ["above"] else "holds with some numbers of parties only"
    elif "below" in found:
        verdict = "fails" if found == ["below"] else "fails with some numbers of parties, and is undecided with others"
    else:
        verdict = "is not decided"
    told = ", and ".join(f"{side} them with {' and '.join(sides[side])}" for side in found)
    return (
        f"**Global above standalone {verdict}.** The paper's global model is {best - standalone:.4f} above its "
        f"standalone models. Here, with {nearest}, it is {told}."
    )


def table_2(dataset: str, cells: list[Cell]) -> str:
    """The paper's variant: a row for the seeds of a setting, of which none moves an eps."""
    rows = []
    steps, batch, examples = PAPER[dataset]["schedule"]
    for c, *more in by_setting(cells):
        theirs = PAPER[dataset]["table 2"].get(c["sigma"]) if c["parties"] == 5 else None
        claim = 2 * batch / examples * math.sqrt(steps * math.log(1e5)) / c["sigma"] if c["parties"] == 5 else None
        rows.append(
            [
                *heading(c),
                "-" if claim is None else f"{claim:.4f}",
                f"{c['eq18']:.4f}",
                "none (infinite)",
                *map(spread, accuracies([c, *more])[1:]),
                "in a plot" if theirs is None else f"{theirs:.4f}",
                f"{mean([run['kept'] for run in (c, *more)]):.1%}",
                f"{loss_epsilon(c, dataset):.3f}",
            ]
        )
    heads = [
        "parties",
        "sigma",
        "T",
        "generators",
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
        return (
            "Only one sigma was run here, since none changes anything; tests/federated/test_han_xue.py checks others."
        )
    verdict = "the same to the bit" if len({c["digest"] for c in five}) == 1 else "**different, which is a bug**"
    return (
        f"The generators of the runs of seed {five[0]['seed']} with sigma {sigmas} are {verdict}, and so is all that "
        f"follows: each ends at {five[0]['global']:.4f}. Where a row has more seeds, they make the difference."
    )


def table_sound(dataset: str, cells: list[Cell]) -> str:
    """The sound variant: a row for the seeds of a setting, of which none moves an eps."""
    rows = []
    for c, *more in by_setting(cells):
        theirs = PAPER[dataset]["table 2"].get(c["sigma"]) if c["parties"] == 5 else None
        rows.append(
            [
                *heading(c),
                f"{c['eq18']:.2f}",
                f"{c['eps']:.3f}",
                *map(spread, accuracies([c, *more])[1:]),
                f"{c['eps'] + c['vote eps']:.3f} (delta 2e-5; noise {c['vote sigma']:.1f})",
                spread([run["global gnmax"] for run in (c, *more)]),
                "in a plot" if theirs is None else f"{theirs:.4f}",
            ]
        )
    heads = ["parties", "sigma", "T", "generators", "eq. (18)", "true eps of the samples (PLD)", "standalone"]
    rest = ["global, exact votes (eps infinite)", "eps in all with GNMax", "global, GNMax", "paper's global"]
    return markdown_table([*heads, *rest], rows)


def heading(c: Cell) -> list[str]:
    networks = ", wide networks" if c.get("wide") else ""
    return [str(c["parties"]), f"{c['sigma']:g}", f"{c['steps']:,}", kinds(c) + networks]


def by_setting(cells: list[Cell]) -> list[list[Cell]]:
    """The cells that differ in the seed alone, sorted."""
    settings: dict[tuple[Any, ...], list[Cell]] = {}
    for c in sorted(cells, key=lambda c: (c["parties"], c["sigma"], c["steps"], heading(c), c["seed"])):
        settings.setdefault((*heading(c), bool(c.get("full"))), []).append(c)
    return list(settings.values())


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def spread(values: list[float]) -> str:
    """The mean of the seeds, and the deviation of one of them where there are several."""
    if len(values) < 2:
        return f"{values[0]:.4f} (one seed)" if values else "not run"
    return f"{mean(values):.4f} ± {statistics.stdev(values):.4f} ({len(values)} seeds)"


def picture_of(c: Cell, stem: str) -> str:
    """The file with samples of a run of five parties; runs in the paper's own size have one for each kind."""
    of = f"-{c['generators']}".replace("+", "-") if c.get("full") and c["generators"] else ""
    return f"{stem}-{'sound' if c['sound'] else 'paper'}{of}.png"


def pictures(stem: str, cells: list[Cell]) -> str:
    """Real examples beside synthetic samples, five parties, sigma 1."""
    shown = []
    for sound, words in ((False, "As the paper has it"), (True, "The sound variant")):
        drawn = [c for c in cells if (c["sound"], c["parties"], c["sigma"], c["seed"]) == (sound, 5, 1, 0)]
        drawn = [c for c in drawn if not c.get("wide")]  # whose generators are those of the others
        whole = [c for c in drawn if c.get("full")]
        for c in drawn if sound else whole or drawn:
            told = f"{words}, {recipe(c)}"
            shown.append(f"{told}:\n\n![{told}: real and synthetic]({picture_of(c, stem)})")
    return "\n\n".join(shown)
