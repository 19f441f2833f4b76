# SPDX-License-Identifier: Apache-2.0
"""The network and the data: 1,797 pictures of 8 x 8, dealt to the nodes."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def network(seed=0):
    """64 inputs, 32 hidden units, 10 classes: 2,410 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits():
    """Pictures and labels, in a fixed random order."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    return torch.tensor(x / 16.0, dtype=torch.float32)[order], torch.tensor(y)[order]


def part(number, parts):
    """One node's share of the first 1,437."""
    x, y = digits()
    return x[:1437][number::parts], y[:1437][number::parts]


def train(model, x, y, epochs=4, batch=10, rate=0.3):
    """Plain stochastic gradient descent."""
    for _ in range(epochs):
        for chosen in torch.randperm(len(y)).split(batch):
            loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for weight, gradient in zip(model.parameters(), gradients, strict=True):
                    weight -= rate * gradient


@torch.no_grad()
def accuracy(model):
    """On the last 360, which no node has."""
    x, y = digits()
    return float((model(x[1437:]).argmax(1) == y[1437:]).double().mean())
