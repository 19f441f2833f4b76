# SPDX-License-Identifier: Apache-2.0
"""The tables of results/ldp-fed-fashion-mnist.md and its figures, from the cells that are there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ldpkernels
from benchmarks.papers import pictures
from benchmarks.papers.common import Cell, by_run, left_open, percent, spread
from benchmarks.papers.common import table as markdown_table
from benchmarks.papers.ldp_fed_runs import (
    ALONE,
    ALPHAS,
    CYCLES,
    DEVIATIONS,
    EQUIVALENT_SIGMA,
    EXAMPLES,
    FED,
    FEWER,
    KINDS,
    METHODS,
    NAMES,
    OTHERWISE,
    OWN,
    RHO,
    ROUNDS,
    SELECT,
    SHORT,
    TEST_BATCHES,
    TRAINS,
    VARIANTS,
    WITHOUT_NOISE,
    C,
    Run,
    config_of,
    plan,
)
from benchmarks.papers.pictures import Line, Panel
from ldpkernels.federated import ldp_fed, networks

# Table 2: a method, the paper's ticks as its text has them, what ours sends and what it costs, whose choice the noise
# is, and the run that was made of it.
FEATURES: list[tuple[str, str, str, str, Run | None]] = [
    ("SMC", "∼ · ✗ ✗ ✓", "8 bytes a value, masks with everybody", "nobody's: there is none", Run("smc")),
    ("ε-DP parameter sharing", "∼ · ✓ ✓ ✓", "another page, on MNIST: DP-DSSGD", "each one's", None),
    (
        "local optimizer: DP-SGD",
        "∼ · ✓ ✓ ✗",
        "4 bytes a value, gradients of examples",
        "each one's",
        Run("dpsgd", sigma=EQUIVALENT_SIGMA),
    ),
    (
        "Hybrid-One",
        "∼ · ✗ ✗ ✓",
        "8 bytes a value, masks, gradients of examples",
        "of all together",
        Run("hybrid-one", sigma=EQUIVALENT_SIGMA),
    ),
    ("continuous ε-LDP", "✓ ✓ ✓ ✗", "LDP-FL's piecewise mechanism, another page", "each one's", None),
    ("LDP-Fed", "✓ ✓ ✓ ✓", "5 bytes a value, one layer a round", "each one's", FED),
]
Ways = dict[str, dict[str, Any]]  # changes of a run, by name
Kept = dict[Run, list[Cell]]  # of a run with seed 0, one cell for each seed that was run


def kept_of(cells: dict[str, Cell]) -> Kept:
    """The cells by run, in the order of their seeds."""
    return by_run(cells, plan())


def tables(cells: dict[str, Cell]) -> dict[str, str]:
    """Every table of the page, by its mark."""
    kept = kept_of(cells)
    cycles = [
        (replace(FED, cycles=c, examples=n), [str(c), f"{n:,}", f"{percent(paper)} ± {DEVIATIONS[c]:.2f}"])
        for n in (EXAMPLES, *FEWER)
        for c, paper in CYCLES.items()
    ]
    return {
        "methods": table_of(kept, ["run", "paper"], [(run, [told(run), paper]) for run, paper in METHODS]),
        "cycles": table_of(kept, ["cycles", "examples of a client", "paper"], cycles),
        "less-training": training_table(kept),
        "features": features_table(kept),
        "variants": table_of(kept, ["run"], [(run, [told(run)]) for run in VARIANTS]),
        "own-alphas": table_of(kept, ["run"], [(run, [told(run)]) for run in OWN]),
        "test-batches": batches_table(kept),
        "trains": trained_table(kept),
        "sweep": sweep_table(kept),
    }


def told(run: Run) -> str:
    """What was run, in words."""
    words = [NAMES[run.method]]
    if run.method == "alpha-cldp-fed":
        words.append(f"{run.cycles} cycle{'s' * (run.cycles > 1)}")
    if run.method in ldp_fed.METHODS:
        words += ["no noise"] if run.alpha is None else []
        words += ["Laplace"] if run.mechanism == "laplace" else []
        words += [f"rho = {run.rho}"] if run.rho != RHO else []
        words += ["all layers train"] if run.method != "basic" and run.trains == "all" else []
        words += ["each client keeps its own"] if run.keeps else []
        words += ["Poisson selection"] if run.selection == "poisson" else []
        words += [f"clients' own alphas, {run.alpha / run.own:g} to {run.alpha * run.own:g}"] if run.own != 1 else []
    words += [f"sigma = {run.sigma:g}"] if run.method in ("dpsgd", "hybrid-one") else []
    return ", ".join([*words, f"{run.rounds} rounds", f"{run.examples:,} examples"])


def noise_of(run: Run) -> float | None:
    """The deviation of the noise that all rounds put on a weight of the model in the layer that gets most."""
    if run.method not in ldp_fed.METHODS or run.alpha is None:
        return None
    network = networks.ldp_fed_cnn()
    total: dict[str, float] = {}
    config = config_of(run)
    alphas = {config.alpha_of(client) or 0.0 for client in range(run.clients)}  # a third of the clients has each
    for turn in ldp_fed.plan(network, config):
        laws = [ldpkernels.OrdinalCLDP(turn.alpha_of_value(a, "linf"), C, run.rho, run.mechanism) for a in alphas]
        for name in turn.names:
            total[name] = total.get(name, 0.0) + statistics.fmean(law.variance(0) for law in laws) / SELECT
    return math.sqrt(max(total.values())) / 10**run.rho


def accuracy_of(kept: Kept, run: Run) -> str:
    """The mean of the seeds; nothing where there is none."""
    return spread([cell["final"] for cell in kept.get(run, [])])


def honest_of(kept: Kept, run: Run) -> str:
    """What a client loses in the seed where it loses most."""
    every = [cell["honest_eps"] for cell in kept.get(run, [])]
    if not every:
        return ""
    return "infinite" if None in every else f"{max(every):.3g}"


def table_of(kept: Kept, header: list[str], rows: Iterable[tuple[Run, list[str]]]) -> str:
    """The rows that were run, behind what tells them apart."""
    body = []
    for run, first in rows:
        if run in kept:
            noise = noise_of(run)
            added = ["", ""] if noise is None else [f"{noise:.1e}", f"{run.alpha:g}"]
            body.append([*first, accuracy_of(kept, run), *added, honest_of(kept, run)])
    return markdown_table([*header, "ours", "noise on a weight", "alpha", "honest eps"], body)


def sweep_table(kept: Kept) -> str:
    """Where the noise begins to matter: over alpha, for two methods and mechanisms."""
    header, body = ["alpha"], []
    for method, mechanism in KINDS:
        header += [f"{NAMES[method]}, {mechanism}", "noise"]
    for alpha in ALPHAS:
        line = [f"{alpha:g}"]
        for method, mechanism in KINDS:
            run = replace(SHORT, method=method, alpha=alpha, mechanism=mechanism)
            line += [accuracy_of(kept, run), f"{noise_of(run):.1e}"]
        body.append([*line, f"{alpha * 2 * C * 10**RHO:.0e}"])
    for run in WITHOUT_NOISE:
        body.append([f"{NAMES[run.method]}, no noise", accuracy_of(kept, run), *[""] * 7, "infinite"])
    return markdown_table([*header, "honest eps"], body)


def were_run(kept: Kept, usual: Run, ways: Ways) -> Ways:
    """Of these changes of a run those that were run."""
    return {name: way for name, way in ways.items() if replace(usual, **way) in kept}


def trained_table(kept: Kept) -> str:
    """What a client trains: the layer that it sends, or all of them."""
    fed, body = replace(SHORT, method="alpha-cldp-fed"), []
    ways = were_run(kept, fed, TRAINS)
    for cycles in (1, 4):
        runs = [replace(fed, cycles=cycles, **way) for way in ways.values()]
        body.append([str(cycles), *(accuracy_of(kept, run) for run in runs)])
    return markdown_table(["cycles", *ways], body)


def training_table(kept: Kept) -> str:
    """What training decides of Table 1: its cycles again, with less of it and with other models to start from."""
    ways, body = were_run(kept, FED, {**{f"{n} examples": {"examples": n} for n in FEWER}, **OTHERWISE}), []
    for cycles in (1, 5, 16):
        usual = replace(FED, cycles=cycles)
        runs = [replace(usual, **way) for way in ways.values()]
        cells = (accuracy_of(kept, run) + in_pairs(kept, run, usual) for run in runs)
        body.append([str(cycles), percent(CYCLES[cycles]), accuracy_of(kept, usual), *cells])
    return markdown_table(["cycles", "paper", "Table 1", *ways], body)


def in_pairs(kept: Kept, run: Run, usual: Run) -> str:
    """The mean of what each seed of a run has more than the same seed of the usual one; nothing of less than two."""
    other = {cell["seed"]: cell["final"] for cell in kept.get(usual, [])}
    more = [100 * (cell["final"] - other[cell["seed"]]) for cell in kept.get(run, []) if cell["seed"] in other]
    return f"; {statistics.fmean(more):+.2f} ± {left_open(more):.2f}" if len(more) > 1 else ""


def batches_table(kept: Kept) -> str:
    """The same models, tested in batches of several sizes: the network normalises by what is in a batch."""
    body = []
    for run, cells in kept.items():
        tested = [cell["by test batch"] for cell in cells if cell.get("by test batch")]
        if tested:
            body.append([told(run), *(spread([one[str(size)] for one in tested]) for size in TEST_BATCHES)])
    return markdown_table(["run", *(f"batches of {size:,}" for size in TEST_BATCHES)], body)


def features_table(kept: Kept) -> str:
    """The paper's ticks, and what is behind them here."""
    body = [
        [name, ticks, sent, choice, *(("", "") if run is None else (honest_of(kept, run), accuracy_of(kept, run)))]
        for name, ticks, sent, choice, run in FEATURES
    ]
    heads = ["method", "paper", "efficient", "locally defined", "protection: honest eps", "29,034 weights: accuracy"]
    return markdown_table(heads, body)


def certainty(alpha: float, M: int) -> float:
    """How sure an adversary is of a value at most, who held all of -M .. M for equally likely and saw it under alpha.

    The exponential mechanism's weights are b^|y - v| / Z(v) with b = e^(-alpha / 2), and the surest place is an end of
    the range, where Z is least. The sum ends where its terms no longer count.
    """
    b, size = math.exp(-alpha / 2), 2 * M + 1
    far = min(size, math.ceil(80 / alpha))

    def mass(v: int) -> float:
        return (1 + b - b ** (v + 1) - b ** (size - v)) / (1 - b)

    return 1 / mass(0) / math.fsum(b**v / mass(v) for v in range(far))


def equivalent_epsilon(alpha: float, M: int) -> float:
    """The eps at which randomised response over -M .. M leaves an adversary as sure of a value as alpha-CLDP does.

    >>> round(equivalent_epsilon(1.0, 10**10), 1)
    23.6
    """
    sure = certainty(alpha, M)
    return math.log(sure / (1 - sure) * 2 * M)  # from sure = e^eps / (e^eps + 2 M)


def draw(cells: dict[str, Cell], path: Path) -> None:
    """Draw accuracy over rounds for the methods, over cycles beside the paper's, and over alpha for the mechanisms."""
    kept = kept_of(cells)

    def by_round(run: Run, label: str) -> Line:
        found = kept.get(run, [])
        seeds = zip(*(cell["accuracy"].values() for cell in found), strict=True)
        return label, [(int(r), values) for r, values in zip(found[0]["accuracy"] if found else (), seeds, strict=True)]

    def finals(run: Run) -> list[float]:
        return [cell["final"] for cell in kept.get(run, [])]

    def over_alpha(method: str, mechanism: str) -> Line:
        runs = [replace(SHORT, method=method, alpha=alpha, mechanism=mechanism) for alpha in ALPHAS]
        return f"{NAMES[method]}, {mechanism}", [(run.alpha or 0.0, finals(run)) for run in runs]

    one = replace(FED, cycles=1)
    cldp = [by_round(Run("basic"), "basic"), by_round(Run("single-layer"), "single layer")]
    cldp += [by_round(one, "alpha-CLDP-Fed, 1 cycle"), by_round(FED, "alpha-CLDP-Fed, 5 cycles")]
    theirs = [("paper: single layer", 0.8489, "C1"), ("paper: 1 cycle", CYCLES[1], "C2")]
    theirs.append(("paper: basic, below 10%", 0.1, "C0"))
    private = [Run(method, sigma=EQUIVALENT_SIGMA) for method in ("dpsgd", "hybrid-one")]
    others = [by_round(run, f"{NAMES[run.method]}, sigma = {run.sigma:g}") for run in private]
    others = [
        by_round(Run("non-private"), "no noise"),
        by_round(ALONE if ALONE in kept else replace(ALONE, rounds=14), "alone"),
        *others,
    ]
    cycles = [
        (f"{n:,} examples a client", [(c, finals(replace(FED, cycles=c, examples=n))) for c in CYCLES])
        for n in (EXAMPLES, *FEWER)
    ]
    cycles.append(("no noise, 1,200 examples", [(FED.cycles, finals(replace(FED, alpha=None)))]))
    sweep = [over_alpha(method, noise) for method, noise in KINDS]
    panels = [
        Panel("Figure 3: alpha-CLDP, alpha = 1", "round", (75, 92), cldp,
              crosses=[(label, [(ROUNDS, accuracy)], color) for label, accuracy, color in theirs]),
        Panel("Figure 3: what it is compared with", "round", (75, 92), others),
        Panel("Table 1: alpha-CLDP-Fed, alpha = 1", "cycles", (84, 90), cycles,
              crosses=[("paper", list(CYCLES.items()), "k")]),
        Panel("Where noise matters: 20 rounds, 300 examples", "alpha", (0, 100), sweep, log=True),
    ]  # fmt: skip
    pictures.save(panels, path)
