# SPDX-License-Identifier: Apache-2.0
"""DP-SGD at a participant: Poisson batches, gradients by sample from `torch.func`, `ldpkernels.dp_sgd_step`.

What leaves the participant is computed from the noisy steps and the server's weights alone. So who sees all of it
learns no more of an example than `honest_epsilon` says, for adding or removing that example.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import ldpkernels
from ldpkernels.accounting import sampled_gaussian
from ldpkernels.federated.training import BATCHES, NOISE, Client, Local, Weights, own_draws


@dataclass(frozen=True)
class PrivateSteps:
    """How a participant trains: `local.epochs` times as many steps as it has batches of `local.batch` on average.

    `C` is the norm that each sample's gradient is clipped to, `sigma` the noise's deviation in units of C.
    """

    local: Local
    C: float
    sigma: float

    def steps(self, examples: int) -> int:
        """The number of steps in a round."""
        return self.local.epochs * math.ceil(examples / self.local.batch)

    def rate(self, examples: int) -> float:
        """The probability of an example to be in a batch."""
        return min(1.0, self.local.batch / examples)


def train(network: nn.Module, weights: Weights, client: Client, private: PrivateSteps, round_: int) -> Weights:
    """One participant's weights after its noisy steps."""
    model = copy.deepcopy(network)
    model.load_state_dict(weights, strict=False)
    named = {name: p for name, p in model.named_parameters() if name in weights}  # the others are frozen
    optimizer = torch.optim.SGD(named.values(), lr=private.local.rate)
    gradient = _gradients(model)
    x, y = client.data
    drawn = torch.Generator().manual_seed(client.round_key(round_, BATCHES).words[0] % 2**63)
    with own_draws(client, round_):
        for step in range(private.steps(len(y))):
            batch = (torch.rand(len(y), generator=drawn, dtype=torch.float64) < private.rate(len(y))).nonzero()[:, 0]
            batch = batch.to(y.device)
            moving = {name: p.detach() for name, p in named.items()}
            if len(batch):
                grads = gradient(moving, x[batch], y[batch])
            else:  # noise all the same: an empty batch is as private as any
                grads = {name: p.new_zeros(0, *p.shape) for name, p in moving.items()}
            ldpkernels.dp_sgd_step(
                model,
                optimizer,
                private.C,
                private.sigma,
                batch_size=private.rate(len(y)) * len(y),
                grads=grads,
                generator=client.round_key(round_, NOISE).fold_in(step),
            )
    return {name: p.detach().clone() for name, p in named.items()}


def _gradients(network: nn.Module) -> Callable[[Weights, torch.Tensor, torch.Tensor], Weights]:
    """From weights, examples and labels to the gradients of each example."""

    def loss(moving: Weights, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(network, moving, (image[None],)), label[None])

    of_each: Callable[[Weights, torch.Tensor, torch.Tensor], Weights]
    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    return of_each


def honest_epsilon(private: PrivateSteps, examples: int, rounds: int, delta: float = 1e-5) -> float:
    """What an example of a participant of so many rounds loses, to whoever sees all of its uploads."""
    if not rounds:
        return 0.0
    if not private.sigma:
        return math.inf
    steps = rounds * private.steps(examples)
    return sampled_gaussian(private.sigma, private.rate(examples), steps, delta=delta).epsilon


def group_normalised(network: nn.Sequential) -> nn.Sequential:
    """A copy with group normalisation in place of that of batches, which mixes the examples of a step.

    >>> from ldpkernels.federated import networks
    >>> sum(p.numel() for p in group_normalised(networks.ldp_fed_cnn()).parameters())
    29034
    """
    layers = [nn.GroupNorm(4, m.num_features) if isinstance(m, nn.BatchNorm2d) else m for m in copy.deepcopy(network)]
    return nn.Sequential(*layers)
