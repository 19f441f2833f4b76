# SPDX-License-Identifier: Apache-2.0
"""Eight hospitals with uneven shares of the patients, who have one to eight records each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ldpkernels.federated import adult, data
from ldpkernels.federated.data import Dataset

SILOS, MOST = 8, 8
UNEVEN = 2.0  # of a Dirichlet distribution over the silos


@dataclass(frozen=True)
class Task:
    """What is learnt. Rates and norms suit seed 99, which is in no result; choosing them costs no budget here."""

    network: Callable[[], torch.nn.Module]
    rounds: int = 30
    epochs: float = 0.5
    q: float = 0.1
    norm: float = 1.0
    rate: float = 1.0

    @property
    def steps(self) -> int:
        return round(self.epochs / self.q)


def _small_network() -> torch.nn.Module:
    pooled = torch.nn.Sequential(torch.nn.AvgPool2d(2), torch.nn.Flatten())
    return torch.nn.Sequential(pooled, torch.nn.Linear(196, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


TASKS = {
    "digits": Task(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), rounds=3),
    "adult": Task(lambda: torch.nn.Linear(88, 2)),
    "mnist": Task(_small_network, rate=2.0),
}


@dataclass
class Silo:
    """The records of a hospital, and whose each is."""

    x: torch.Tensor
    y: torch.Tensor
    persons: torch.Tensor

    @property
    def people(self) -> int:
        return len(self.persons.unique())


@dataclass
class World:
    """One seed's hospitals, and what the models are tested on."""

    task: Task
    dataset: Dataset
    silos: list[Silo]
    seed: int

    @property
    def pooled(self) -> Silo:
        return Silo(*(torch.cat([getattr(one, part) for one in self.silos]) for part in ("x", "y", "persons")))

    def model(self) -> torch.nn.Module:
        torch.manual_seed(self.seed)
        return self.task.network()

    def accuracy(self, model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float((model(self.dataset.test_x).argmax(1) == self.dataset.test_y).double().mean())


def world(name: str, folder: Path | None, seed: int) -> World:
    """Records become patients by a draw: one to eight each, whose mean is 2.9."""
    dataset = adult.load(folder or Path(), seed=seed) if name == "adult" else data.load(name, folder)
    rng = np.random.default_rng(seed)
    chances = 0.7 ** np.arange(MOST)
    sizes = 1 + rng.choice(MOST, len(dataset.train_y), p=chances / chances.sum())
    persons = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)[: len(dataset.train_y)])
    order = torch.from_numpy(rng.permutation(len(dataset.train_y)))
    people = torch.arange(int(persons[-1]) + 1)
    silos = []
    for part in data.deal(people, SILOS, seed, uneven=UNEVEN):
        mine = torch.isin(persons, part)
        rows = order[mine]
        silos.append(Silo(dataset.train_x[rows], dataset.train_y[rows], persons[mine]))
    return World(TASKS[name], dataset, silos, seed)
