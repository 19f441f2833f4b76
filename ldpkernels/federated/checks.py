# SPDX-License-Identifier: Apache-2.0
"""Whether clients can train a network: asked before anything is trained, spent or sent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

import ldpkernels
from ldpkernels.federated.training import (
    Client,
    Local,
    Weights,
    evaluating,
    gradients_together,
    trains_together,
    weights_of,
)


def initial_weights(network: nn.Module, local: Local) -> Weights:
    """The parameters to start from; a network that `perturb_` refuses is refused here, by name and with the cure."""
    for name, module in network.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise ValueError(
                f"module {name!r} ({type(module).__name__}) keeps running statistics of a client's data, which no "
                "driver sends: build it with track_running_stats=False, or put a GroupNorm in its place"
            )
    for name, p in network.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name!r} is not initialized: run the network once on examples")
    floating = [name for name, b in network.named_buffers() if b.is_floating_point() or b.is_complex()]
    if floating and local.buffers is None:
        raise ValueError(
            f"buffer {floating[0]!r} (one of {len(floating)}) would stay with each client and never reach the server: "
            "pass Local(buffers='keep') if it is a constant"
        )
    weights = weights_of(network)
    ldpkernels.perturb_(weights_of(network), 0.0, 1.0, 1.0, generator=ldpkernels.key(0))  # all that it refuses
    return weights


def check_weights(clients: Sequence[Client], weigh: str) -> None:
    """A ValueError where a client, selected or not, weighs nothing: in the first round, before any is trained."""
    empty = next((client.id for client in clients if not len(client.data[1])), None)
    if weigh == "examples" and empty is not None:
        raise ValueError(f"client {empty} has no examples, and weigh='examples': leave it out, or weigh='alike'")


def check(network: nn.Module, weights: Weights, clients: Sequence[Client], local: Local, round_: int) -> None:
    """A ValueError where clients could not train, before anything is trained, spent or sent."""
    together = trains_together(network, weights, local)
    x, y = next((client.data for client in clients if len(client.data[1])), (None, None))
    if x is None or y is None:
        return
    try:
        with torch.no_grad(), evaluating(network):
            scores = torch.func.functional_call(network, weights, (x[:2],))
    except Exception as error:  # whatever a network of the user's raises
        raise ValueError(f"the network does not take examples of shape {tuple(x.shape[1:])}: {error}") from error
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2 or len(scores) != len(x[:2]):
        found = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else f"type {type(scores).__name__}"
        raise ValueError(f"the network's output for two examples has {found}: it must be [examples, classes]")
    if int(y.max()) >= scores.shape[1]:
        raise ValueError(f"label {int(y.max())} has no output: the network has {scores.shape[1]}")
    if together and round_ == 0:  # it is slow beside a round of small networks, and does not change with the weights
        one = {name: w[None] for name, w in weights.items()}
        try:
            gradients_together(network, weights)(one, x[None, :2], y[None, :2])
        except RuntimeError as error:
            raise ValueError(f"torch.func.vmap cannot train this network: pass together=False ({error})") from error
