# SPDX-License-Identifier: Apache-2.0
"""The task: a dataset dealt to clients, a small model, and what some of them would send in a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import ldpkernels
from ldpkernels.federated import data, networks, training
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.selection import select
from ldpkernels.federated.training import Client, Local, Weights


@dataclass(frozen=True)
class Task:
    """What is trained, by whom, for how long. `norm` and `radius` bound an update.

    Both bounds and the rates are those that suit the run without noise, and are public: to find them on private data
    would cost more than the totals here.
    """

    dataset: str
    network: str
    clients: int  # among whom the data is dealt
    trained: int  # of them, drawn anew in each round: each stands for equally many
    rounds: int
    local: Local
    norm: float
    radius: float
    shrink: bool = False  # every noisy mean, by what its expected error says


TASKS = {
    "digits": Task("digits", "softmax", 100, 100, 5, Local(epochs=5, batch=16, rate=1.0), norm=1.5, radius=0.2),
    "mnist": Task("mnist", "softmax", 1000, 100, 5, Local(epochs=1, batch=10, rate=0.1), norm=1.0, radius=0.05),
}


def network_of(task: Task, dataset: Dataset, seed: int) -> nn.Module:
    if task.network != "softmax":
        return networks.network(task.network, seed)
    layer = nn.Linear(dataset.train_x[0].numel(), dataset.classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


class Federation:
    """One seed's clients and network; the same for every mechanism and total."""

    def __init__(self, task: Task, dataset: Dataset, seed: int) -> None:
        self.task, self.dataset, self.seed = task, dataset, seed
        self.key = ldpkernels.key(seed)
        self.network = network_of(task, dataset, seed)
        parts = data.deal(dataset.train_y, task.clients, seed)
        self.clients = training.clients_of(dataset.train_x, dataset.train_y, parts, self.key)
        self.start = training.weights_of(self.network)

    def updates(self, weights: Weights, round_: int) -> np.ndarray:
        """What the clients of a round send, clipped to the norm: [trained, d]."""
        return clipped(self.unclipped(weights, round_), self.task.norm)

    def unclipped(self, weights: Weights, round_: int) -> np.ndarray:
        """What they arrive at, less what they started from."""
        chosen: list[Client] = select(self.clients, self.task.trained, self.seed, round_)
        rows = [
            flat({name: w - weights[name] for name, w in found.items()})
            for _, found in training.train(self.network, weights, chosen, self.task.local, round_)
        ]
        return np.stack(rows)

    def moved(self, weights: Weights, update: np.ndarray) -> Weights:
        moved, start = {}, 0
        for name, w in weights.items():
            part = update[start : start + w.numel()].reshape(tuple(w.shape))
            moved[name] = w + torch.from_numpy(part).to(w.dtype)
            start += w.numel()
        return moved

    def accuracy(self, weights: Weights) -> float:
        return training.accuracy(self.network, weights, self.dataset.test_x, self.dataset.test_y)


def clipped(updates: np.ndarray, norm: float) -> np.ndarray:
    """The updates, each row brought within the norm."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * np.minimum(1.0, norm / np.maximum(norms, 1e-30))


def flat(weights: Weights) -> np.ndarray:
    return np.concatenate([w.detach().double().numpy().ravel() for w in weights.values()])
