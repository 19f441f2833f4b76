# SPDX-License-Identifier: Apache-2.0
"""Han and Xue's baseline of further seeds: the global model on all parties' real examples, and nothing else.

A run trains it where its setting says so, which is that of seed 0; these cells give the other seeds' theirs, of the
same examples, network, key and epochs.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks.papers.common import Cell, Job
from benchmarks.papers.han_xue_plan import OURS, Setting, config_of, dataset_of, full
from ldpkernels.federated import han_xue

PREFIX = "baseline "  # of the names of these cells
MINUTES = {"adult": 0.5, "mnist": 5.0, "fashion-mnist": 5.0}  # of a quiet core


def run_of(dataset: str, seed: int) -> Setting:
    """The run of Table 1 that it belongs to."""
    adult = Setting(dataset, False, 5, 1.0, OURS["adult"][0], seed)
    return adult if dataset == "adult" else replace(full(dataset, 5, "gan"), seed=seed)


def jobs(root: str) -> list[Job]:
    """The runs of the seeds that have no baseline, as jobs."""
    runs = [run_of(dataset, seed) for dataset in MINUTES for seed in (1, 2, 3, 4)]
    return [Job(PREFIX + s.name, MINUTES[s.dataset], functools.partial(compute, s, root)) for s in runs]


def compute(s: Setting, root: str, folder: Path) -> Cell:
    """Train it: the last unit of a run whose others are not needed."""
    torch.set_num_threads(1)
    config = replace(config_of(s), baseline=True)
    world = han_xue.World(dataset_of(s.dataset, root), config)
    nothing = torch.empty(0)
    before = han_xue.State(
        makers=[{}] * s.parties, votes=[nothing] * s.parties, labels=nothing, keep=nothing, accuracy=0.0
    )
    after, _ = han_xue.round_(before, world)
    return {
        "dataset": s.dataset,
        "seed": s.seed,
        "baseline_accuracy": after.baseline,
        "ran": {"config": asdict(config)},
    }


def joined(cells: dict[str, Cell]) -> dict[str, Cell]:
    """The other cells. Runs without a baseline have that of another that differs in its generators alone."""
    runs = {name: cell for name, cell in cells.items() if not name.startswith(PREFIX)}
    known = {key_of(c): c["baseline_accuracy"] for c in runs.values() if c.get("baseline_accuracy") is not None}
    for name, cell in cells.items():
        if name.startswith(PREFIX):
            known[key_of(asdict(run_of(cell["dataset"], cell["seed"])))] = cell["baseline_accuracy"]
    return {name: {**c, "baseline_accuracy": known.get(key_of(c))} for name, c in runs.items()}


def key_of(c: Cell) -> tuple[object, ...]:
    """What a baseline depends on; generators have no part in it."""
    return c["dataset"], c["seed"], c.get("parties"), bool(c.get("full")), bool(c.get("wide"))
