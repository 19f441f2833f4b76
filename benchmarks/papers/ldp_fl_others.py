# SPDX-License-Identifier: Apache-2.0
"""The methods with which LDP-FL's paper compares itself on MNIST: of Geyer et al. (2017) and of Bhowmick et al. (2018).

Clients train as LDP-FL's do and send whole updates, clipped to a public norm. **Geyer et al.**: a trusted server adds
Gaussian noise to their sum. Theirs, as quoted, takes the median of the clients' norms for a bound, which is private
data and is not in its epsilon; here the bound is fixed. **Bhowmick et al.**: each client sends its update by PrivUnit
under one eps; here by PrivUnitG, its form with Gaussian vectors. Epsilon is a client's total over all rounds, by
`ldpkernels.plan`.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.papers import ldp_fl_runs
from benchmarks.papers.common import Cell, Job
from benchmarks.papers.ldp_fl_plan import NETWORK

CANDIDATE = {"geyer": "central gaussian", "bhowmick": "privunitg"}
OTHERS = "other "  # how the names of these cells begin


@dataclass(frozen=True)
class Other:
    """A run of one of the methods. `paper` is what LDP-FL's text says that it reached."""

    method: str
    clients: int
    rounds: int
    epsilon: float
    delta: float
    norm: float
    epochs: int
    trained: int = 20  # of the clients in a round; each stands for equally many
    seed: int = 0

    @property
    def name(self) -> str:
        """The key of the run's cell."""
        total = "" if self.method == "no noise" else f" eps={self.epsilon:g} delta={self.delta:g}"
        few = f" trained={self.trained}" if self.trained < self.clients else ""
        return (
            f"{OTHERS}{self.method} mnist n={self.clients}{few} T={self.rounds}{total} norm={self.norm:g} "
            f"E={self.epochs} seed={self.seed}"
        )

    @property
    def minutes(self) -> float:
        """What the run costs a quiet core."""
        steps = self.epochs * -(-60_000 // self.clients // 10)
        return self.rounds * self.trained * steps * 7e-4 / 60

    @property
    def twin(self) -> Other:
        """This run without noise, where updates are clipped all the same."""
        return replace(self, method="no noise", epsilon=0.0, delta=0.0)


# The accuracies of Geyer et al. as LDP-FL's text gives them, by rounds. It says that they are of 100 clients; as others
# quote Geyer et al., they are of 100, 1,000 and 10,000.
GEYER = {11: 0.78, 54: 0.92, 412: 0.96}
RUNS = [
    Other("geyer", 100, 11, 8.0, 1e-3, 2.0, 5),
    Other("geyer", 1000, 54, 8.0, 1e-5, 0.5, 5),
    Other("geyer", 10_000, 412, 8.0, 1e-6, 0.2, 5),
    Other("bhowmick", 100, 10, 5000.0, 0.0, 2.0, 1),
    Other("bhowmick", 100, 10, 500.0, 0.0, 2.0, 1),
    Other("bhowmick", 1000, 54, 500.0, 0.0, 0.5, 5),
]
SEEDS = 3


def plan() -> list[Other]:
    """All the runs and their twins."""
    found = dict.fromkeys(one for run in RUNS for one in (run, run.twin))
    return [replace(one, seed=seed) for seed in range(SEEDS) for one in found]


def jobs(root: str) -> list[Job]:
    """The runs as jobs."""
    return [Job(one.name, one.minutes, functools.partial(compute, one, root)) for one in plan()]


def planned(other: Other, weights: int) -> Any:
    """The candidate that keeps the total; None without noise."""
    import ldpkernels

    if other.method == "no noise":
        return None
    size = {"rounds": other.rounds, "clients": other.clients, "weights": weights}
    trust: Any = "central" if other.method == "geyer" else "local"
    found = ldpkernels.plan(other.epsilon, other.delta, **size, trust=trust, norm=other.norm)
    return next(candidate for candidate in found if candidate.name == CANDIDATE[other.method])


def task_of(other: Other) -> Any:
    """What is learnt, by whom."""
    from benchmarks.budget.task import Task
    from ldpkernels.federated.training import Local

    local = Local(epochs=other.epochs, batch=10, rate=0.03)
    size = (other.clients, min(other.trained, other.clients), other.rounds)
    return Task("mnist", NETWORK["mnist"], *size, local, norm=other.norm, radius=other.norm)


def compute(other: Other, root: str, folder: Path) -> Cell:
    """Run it: accuracy after each round, and the total that was spent."""
    import torch

    from benchmarks.budget.means import mean_of
    from benchmarks.budget.task import Federation

    torch.set_num_threads(1)
    task = task_of(other)
    world = Federation(task, ldp_fl_runs.dataset_of("mnist", root), other.seed)
    weights, accuracies = world.start, []
    candidate = planned(other, sum(w.numel() for w in weights.values()))
    for round_ in range(other.rounds):
        key = world.key.fold_in(1 << 20).fold_in(round_)
        mean = mean_of(candidate, world.updates(weights, round_), other.clients, key)
        weights = world.moved(weights, mean)
        accuracies.append(world.accuracy(weights))
    total = None if candidate is None else candidate.epsilon
    call = "" if candidate is None else candidate.call
    ran = {"task": asdict(task), "plan": call, "rounds": len(accuracies)}
    return {**asdict(other), "accuracy": accuracies, "spent": total, "call": call, "ran": ran}
