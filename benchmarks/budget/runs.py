# SPDX-License-Identifier: Apache-2.0
"""What workers do: plan for a total and a trust, and train under one candidate."""

from __future__ import annotations

from typing import NamedTuple

import torch

import ldpkernels
from benchmarks.budget.means import at_norm, mean_of, next_norm, shrunk
from benchmarks.budget.task import Federation, Task, clipped, network_of
from ldpkernels.federated.data import Dataset
from ldpkernels.planning import Candidate, Trust

NOISE = 1 << 20  # fold_in of a run's key
Shared = tuple[Task, Dataset]


class Cell(NamedTuple):
    """One run: a total, a trust, a mechanism (none of them for the run without noise), and a seed."""

    dataset: str
    clients: int
    epsilon: float
    trust: str
    mechanism: str
    seed: int


def planned(shared: Shared, _: None, one: tuple[int, float, Trust]) -> dict[str, Candidate]:
    """A worker's task: the candidates by name."""
    task, dataset = shared
    clients, epsilon, trust = one
    weights = sum(p.numel() for p in network_of(task, dataset, 0).parameters())
    found = ldpkernels.plan(
        epsilon,
        rounds=task.rounds,
        clients=clients,
        weights=weights,
        trust=trust,
        radius=task.radius,
        norm=task.norm,
    )
    return {candidate.name: candidate for candidate in found}


def run(shared: Shared, _: None, item: tuple[Cell, Candidate | None]) -> float:
    """A worker's task: the accuracy after the last round."""
    task, dataset = shared
    cell, candidate = item
    torch.set_num_threads(1)
    world = Federation(task, dataset, cell.seed)
    weights = world.start
    key = world.key.fold_in(NOISE)
    norm = task.norm
    for round_ in range(task.rounds):
        updates = world.unclipped(weights, round_)
        mean = mean_of(candidate, clipped(updates, norm), cell.clients, key.fold_in(round_))
        if candidate is not None and task.shrink:
            mean = shrunk(mean, candidate.expected_error)
        if candidate is not None and candidate.adaptive:
            norm = next_norm(candidate, norm, updates, key.fold_in(task.rounds + round_))
            candidate = at_norm(candidate, norm)
        weights = world.moved(weights, mean)
    return world.accuracy(weights)
