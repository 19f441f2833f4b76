# SPDX-License-Identifier: Apache-2.0
"""How the runs of Han and Xue's tables are run.

A cell of the sound variant is labelled twice: by exact votes, and by GNMax with the eps of the generators.
"""

from __future__ import annotations

import dataclasses
import functools
import resource
from pathlib import Path
from typing import Any

from benchmarks.papers import han_xue_ablation, han_xue_baseline, han_xue_dssgd
from benchmarks.papers.common import Cell, Job
from benchmarks.papers.han_xue_plan import Setting, config_of, dataset_of, finish, plan

DELTA = 1e-5
QUERIES = 1000  # samples that GNMax labels


def jobs(root: str, workers: int | None, out: Path) -> list[Job]:
    """The runs as jobs; pictures go to `out`."""
    runs = [Job(s.name, s.minutes, functools.partial(compute, s, root, out / s.picture, workers)) for s in plan()]
    return [*runs, *han_xue_baseline.jobs(root), *han_xue_ablation.jobs(root, workers), *han_xue_dssgd.jobs(root)]


def compute(s: Setting, root: str, picture: Path, workers: int | None, folder: Path) -> Cell:
    """Run it, and draw samples of it where the page shows them."""
    import torch

    from ldpkernels.accounting import han_xue_eq18
    from ldpkernels.commands import han_xue_picture
    from ldpkernels.federated import han_xue, han_xue_privacy

    torch.set_num_threads(1)
    started, config = cpu_seconds(), config_of(s)
    world = han_xue.World(dataset_of(s.dataset, root), config)
    state = finish(world, workers, folder, s.name)
    assert state.keep is not None
    assert state.labels is not None
    q = config.recipe.batch / world.examples
    cell: Cell = {
        **dataclasses.asdict(s),
        "examples": world.examples,
        "standalone": list(state.standalone),
        "global": state.accuracy,
        "baseline_accuracy": state.baseline,
        "kept": float(state.keep.float().mean()),
        "labels": torch.bincount(state.labels[state.keep].long(), minlength=world.dataset.classes).tolist(),
        "eq18": han_xue_eq18(q, s.sigma, s.steps, DELTA).claimed,
        "digest": digest(state.makers),
        "ran": {"config": dataclasses.asdict(config), "examples of a party": world.examples},
    }
    if s.sound:
        eps = han_xue_privacy.generators(config, world.examples).result.epsilon
        cell |= {"eps": eps} | gnmax(state, world, eps)
    if s.parties == 5 and s.sigma == 1 and s.seed == 0 and not s.wide:
        han_xue_picture.draw(str(picture), world, state)
    return cell | {"CPU seconds": round(cpu_seconds() - started, 1)}


def cpu_seconds() -> float:
    """What this process and the workers that it has closed have taken of the processor."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def digest(makers: Any) -> str:
    """Equal for generators that are equal to the bit."""
    import hashlib

    parts = [value.numpy().tobytes() for maker in makers for _, value in sorted(maker.items())]
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def gnmax(state: Any, world: Any, eps: float) -> Cell:
    """Some of the samples, labelled with the noise that costs eps, and the accuracy of a global model of these."""
    from ldpkernels.calls.votes import vote_epsilon
    from ldpkernels.federated import han_xue

    low, high = 0.1, 1e5
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if vote_epsilon(QUERIES, middle, delta=DELTA).epsilon <= eps else (middle, high)
    config = dataclasses.replace(world.config, vote_sigma=high, queries=QUERIES, baseline=False, epochs=20)
    noisy = han_xue.World(world.dataset, config)
    chosen = noisy.queried(len(state.votes[0]))
    state = dataclasses.replace(state, votes=[v[chosen] for v in state.votes], labels=None, keep=None, accuracy=None)
    for _ in range(2):
        state, _ = han_xue.round_(state, noisy)
    votes = vote_epsilon(QUERIES, high, delta=DELTA).epsilon
    return {"vote sigma": high, "vote eps": votes, "global gnmax": state.accuracy}
