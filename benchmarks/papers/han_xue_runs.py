# SPDX-License-Identifier: Apache-2.0
"""How the runs of Han and Xue's tables are run.

A cell of the sound variant is labelled twice: by exact votes, and by GNMax with the eps of the generators. A run trains
a baseline, the global model on all parties' real examples, where its setting says so, which is that of seed 0; cells of
their own give the other seeds' theirs.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.papers import han_xue_dssgd, han_xue_tries
from benchmarks.papers.common import Cell, Job
from benchmarks.papers.han_xue_plan import OURS, Setting, config_of, dataset_of, finish, full, plan
from ldpkernels.federated import han_xue

DELTA = 1e-5
QUERIES = 1000  # samples that GNMax labels


def jobs(root: str, workers: int | None, out: Path) -> list[Job]:
    """The runs as jobs; pictures go to `out`."""
    runs = [Job(s.name, s.minutes, functools.partial(compute, s, root, out / s.picture, workers)) for s in plan()]
    for one in (run_of(dataset, seed) for dataset in BASELINE_MINUTES for seed in (1, 2, 3, 4)):
        train = functools.partial(compute_baseline, one, root)
        runs.append(Job(BASELINE + one.name, BASELINE_MINUTES[one.dataset], train))
    return [*runs, *han_xue_tries.jobs(root, workers), *han_xue_dssgd.jobs(root)]


def compute(s: Setting, root: str, picture: Path, workers: int | None, folder: Path) -> Cell:
    """Run it, and draw samples of it where the page shows them."""
    from ldpkernels.accounting import han_xue_eq18
    from ldpkernels.commands import han_xue_run
    from ldpkernels.federated import han_xue_privacy

    torch.set_num_threads(1)
    config = config_of(s)
    world = han_xue.World(dataset_of(s.dataset, root), config)
    state = finish(world, workers, folder, s.name)
    assert state.keep is not None
    assert state.labels is not None
    q = config.recipe.batch / world.examples
    cell: Cell = {
        **asdict(s),
        "examples": world.examples,
        "standalone": list(state.standalone),
        "global": state.accuracy,
        "baseline_accuracy": state.baseline,
        "kept": float(state.keep.float().mean()),
        "labels": torch.bincount(state.labels[state.keep].long(), minlength=world.dataset.classes).tolist(),
        "eq18": han_xue_eq18(q, s.sigma, s.steps, DELTA).claimed,
        "digest": digest(state.makers),
        "ran": {"config": asdict(config), "examples of a party": world.examples},
    }
    if s.sound:
        eps = han_xue_privacy.generators(config, world.examples).result.epsilon
        cell |= {"eps": eps} | gnmax(state, world, eps)
    if s.parties == 5 and s.sigma == 1 and s.seed == 0 and not s.wide:
        han_xue_run.draw(str(picture), world, state)
    return cell


def digest(makers: Any) -> str:
    """Equal for generators that are equal to the bit."""
    import hashlib

    parts = [value.numpy().tobytes() for maker in makers for _, value in sorted(maker.items())]
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def gnmax(state: Any, world: Any, eps: float) -> Cell:
    """Some of the samples, labelled with the noise that costs eps, and the accuracy of a global model of these."""
    from ldpkernels.calls.votes import vote_epsilon

    low, high = 0.1, 1e5
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if vote_epsilon(QUERIES, middle, delta=DELTA).epsilon <= eps else (middle, high)
    config = replace(world.config, vote_sigma=high, queries=QUERIES, baseline=False, epochs=20)
    noisy = han_xue.World(world.dataset, config)
    chosen = noisy.queried(len(state.votes[0]))
    state = replace(state, votes=[v[chosen] for v in state.votes], labels=None, keep=None, accuracy=None)
    for _ in range(2):
        state, _ = han_xue.round_(state, noisy)
    votes = vote_epsilon(QUERIES, high, delta=DELTA).epsilon
    return {"vote sigma": high, "vote eps": votes, "global gnmax": state.accuracy}


BASELINE = "baseline "  # of the names of these cells
BASELINE_MINUTES = {"adult": 0.5, "mnist": 5.0, "fashion-mnist": 5.0}  # of a quiet core


def run_of(dataset: str, seed: int) -> Setting:
    """The run of Table 1 that a baseline belongs to."""
    adult = Setting(dataset, False, 5, 1.0, OURS["adult"][0], seed)
    return adult if dataset == "adult" else replace(full(dataset, 5, "gan"), seed=seed)


def compute_baseline(s: Setting, root: str, folder: Path) -> Cell:
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
    runs = {name: cell for name, cell in cells.items() if not name.startswith(BASELINE)}
    known = {key_of(c): c["baseline_accuracy"] for c in runs.values() if c.get("baseline_accuracy") is not None}
    for name, cell in cells.items():
        if name.startswith(BASELINE):
            known[key_of(asdict(run_of(cell["dataset"], cell["seed"])))] = cell["baseline_accuracy"]
    return {name: {**c, "baseline_accuracy": known.get(key_of(c))} for name, c in runs.items()}


def key_of(c: Cell) -> tuple[object, ...]:
    """What a baseline depends on; generators have no part in it."""
    return c["dataset"], c["seed"], c.get("parties"), bool(c.get("full")), bool(c.get("wide"))
