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
        if getattr(module, "running_mean", None) is not None and (module.training or local.buffers is None):
            raise ValueError(
                f"module {name!r} ({type(module).__name__}) keeps running statistics of a client's data, which no "
                "driver sends: put a GroupNorm in its place. In eval mode they are constants, which "
                "Local(buffers='keep') or --buffers keep leaves as they are"
            )
    for name, p in network.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name!r} is not initialized: run the network once on examples")
    floating = [name for name, b in network.named_buffers() if b.is_floating_point() or b.is_complex()]
    if floating and local.buffers is None:
        raise ValueError(
            f"buffer {floating[0]!r} (one of {len(floating)}) would stay with each client and never reach the server: "
            "pass Local(buffers='keep'), or --buffers keep, if it is a constant"
        )
    weights = weights_of(network)
    if not weights:
        raise ValueError("the network has no parameter that trains: all are frozen (requires_grad), or it has none")
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
    able = [client for client in clients if len(client.data[1])]
    if not able:
        return
    x, y = max(able, key=lambda client: len(client.data[1])).data
    scores = _scores(network, weights, x[:2])
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2 or len(scores) != len(x[:2]):
        found = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else f"type {type(scores).__name__}"
        raise ValueError(f"the network's output for two examples has {found}: it must be [examples, classes]")
    _check_labels(able, scores.shape[1])
    _check_last_batches(network, weights, able, local.batch)
    if together and round_ == 0:  # it is slow beside a round of small networks, and does not change with the weights
        one = {name: w[None] for name, w in weights.items()}
        try:
            gradients_together(network, weights)(one, x[None, :2], y[None, :2])
        except RuntimeError as error:
            cure = "pass Local(together=False), or --together no"
            raise ValueError(f"torch.func.vmap cannot train this network: {cure} ({error})") from error


def _scores(network: nn.Module, weights: Weights, x: torch.Tensor) -> object:
    try:
        with torch.no_grad(), evaluating(network):
            return torch.func.functional_call(network, weights, (x,))
    except Exception as error:  # whatever a network of the user's raises
        raise ValueError(f"the network does not take examples of shape {tuple(x.shape[1:])}: {error}") from error


def _check_labels(clients: Sequence[Client], outputs: int) -> None:
    """Every label has an output: torch finds out in the middle of a round, and takes -100 for one to leave out."""
    ends = torch.stack([torch.stack(torch.aminmax(client.data[1])) for client in clients]).tolist()
    for client, (least, most) in zip(clients, ends, strict=True):
        if least < 0 or most >= outputs:
            wrong = least if least < 0 else most
            raise ValueError(
                f"label {wrong} of client {client.id} has no output: the network has {outputs}, for labels 0 to "
                f"{outputs - 1}"
            )


def _check_last_batches(network: nn.Module, weights: Weights, clients: Sequence[Client], batch: int) -> None:
    """A normalisation over the batch cannot normalise one example, which may be the last that is left of a client."""
    alone = next((client for client in clients if batch == 1 or len(client.data[1]) % batch == 1), None)
    if alone is None or not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in network.modules()):
        return
    try:
        _scores(network, weights, alone.data[0][:1])
    except ValueError as error:
        raise ValueError(
            f"a batch of one example cannot be normalised, and client {alone.id} has {len(alone.data[1])} examples in "
            f"batches of {batch}: take a GroupNorm, or another batch ({error.__cause__})"
        ) from error
