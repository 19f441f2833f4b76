# SPDX-License-Identifier: Apache-2.0
"""What takes the place of an app's own model and data: a CNN of 21,840 weights, and 300 images of MNIST a node."""

from __future__ import annotations

import functools
import os
import secrets
from dataclasses import replace

import torch
from torch import nn

import ldpkernels
from benchmarks.budget.task import Task
from ldpkernels.federated import data, networks, training
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.training import Local

# Norm, radius and rate suit the run without noise. They are public.
TASK = Task("mnist", "ldp-fl-cnn", 100, 100, 20, Local(epochs=1, batch=10, rate=0.1), norm=1.0, radius=0.01)
WEIGHTS, IMAGES = 21840, 300
DATA, SEED = "DEPLOY_DATA", "DEPLOY_SEED"  # of the environment: nodes are other processes


@functools.cache
def dataset(root: str) -> Dataset:
    """MNIST with as many training images as the clients have."""
    whole, kept = data.load(TASK.dataset, root), TASK.clients * IMAGES
    return replace(whole, train_x=whole.train_x[:kept], train_y=whole.train_y[:kept])


def network(seed: int = 0) -> nn.Module:
    """The model before training."""
    return networks.network(TASK.network, seed)


def part(number: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A node's own images, which are those of the budget simulation's client."""
    found = dataset(os.environ[DATA])
    own = data.deal(found.train_y, parts, int(os.environ[SEED]))[number]
    return found.train_x[own], found.train_y[own]


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """The steps of the budget simulation's client, in an order of the operating system's."""
    client = training.Client(0, (x, y), ldpkernels.key(secrets.randbits(63)))
    ((_, weights),) = training.train(model, training.weights_of(model), [client], TASK.local, 0)
    model.load_state_dict(weights)


def accuracy(model: nn.Module) -> float:
    """On the 10,000 test images."""
    found = dataset(os.environ[DATA])
    return training.accuracy(model, training.weights_of(model), found.test_x, found.test_y)
