# SPDX-License-Identifier: Apache-2.0
"""Whether clients can train a network: asked before anything is trained, spent or sent."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from ldpkernels.calls.perturb import perturb_
from ldpkernels.common.keys import key
from ldpkernels.federated.training import (
    Client,
    Local,
    Weights,
    draws,
    gradients_together,
    normalises,
    scores_of,
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
    perturb_(weights_of(network), 0.0, 1.0, 1.0, generator=key(0))  # all that it refuses
    spoilt = next((name for name, p in network.named_parameters() if not torch.isfinite(p).all()), None)
    if spoilt is not None:
        raise ValueError(f"parameter {spoilt!r} holds NaN or infinity: nothing can be trained from there")
    _warn_of_dropout_that_is_off(network)
    return weights


def _warn_of_dropout_that_is_off(network: nn.Module) -> None:
    """Warn where dropout is off with the whole network, as it is after an evaluation: modules train in their mode."""
    off = [(name, module) for name, module in network.named_modules() if draws(module) and not module.training]
    if off and not network.training:  # where the network itself trains, those were put into eval mode on purpose
        name, module = off[0]
        warnings.warn(
            f"the network is in eval mode, so that clients train without module {name!r} ({type(module).__name__}): "
            "call network.train() first, unless that is meant",
            UserWarning,
            stacklevel=4,  # who calls a driver's init
        )


def check_weights(clients: Sequence[Client], weigh: str) -> None:
    """A ValueError where a client, selected or not, weighs nothing: in the first round, before any is trained."""
    empty = next((client.id for client in clients if not len(client.data[1])), None)
    if weigh == "examples" and empty is not None:
        raise ValueError(f"client {empty} has no examples, and weigh='examples': leave it out, or weigh='alike'")


def check(network: nn.Module, weights: Weights, clients: Sequence[Client], local: Local, round_: int) -> None:
    """A ValueError where clients could not train, before anything is trained, spent or sent.

    Round 0 should give all clients: one that is selected later stops no run then that has been paid for.
    """
    together = trains_together(network, weights, local)
    able = [client for client in clients if any(map(len, client.data))]
    if not able:
        return
    if len({client.key for client in clients}) < len(clients):
        raise ValueError("two clients have one key, and so the same noise: give each its own, key.fold_in(i)")
    for client in able:
        _check_data(client, able[0])
    x, y = (torch.cat([part, part])[:2] for part in (part[:2] for part in able[0].data))  # two, if there is one
    scores = scores_of(network, weights, x)
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2 or len(scores) != 2:
        found = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else f"type {type(scores).__name__}"
        raise ValueError(f"the network's output for two examples has {found}: it must be [examples, classes]")
    _check_labels(able, scores.shape[1])
    _check_last_batches(network, weights, able, local.batch)
    if round_ != 0:  # the rest is slow beside a round of small networks, and does not change with the weights
        return
    spoilt = next((client.id for client in able if not torch.isfinite(client.data[0]).all()), None)
    if spoilt is not None:
        raise ValueError(f"examples of client {spoilt} hold NaN or infinity: leave them out, or fill them in")
    model = _check_gradient(network, weights, x, y)
    if together:
        one = {name: w[None] for name, w in weights.items()}
        try:
            gradients_together(model, weights)(one, x[None], y[None])
        except Exception as error:  # what trains, but not on the tensors that vmap makes
            cure = "pass Local(together=False), or --together no"
            raise ValueError(f"torch.func.vmap cannot train this network: {cure} ({error})") from error


def _check_data(client: Client, first: Client) -> None:
    """Refuse examples of another shape, and labels that are not int64: torch finds out in a round, or never."""
    x, y = client.data
    if y.dtype is not torch.int64 or y.dim() != 1:
        raise ValueError(
            f"labels of client {client.id} are {y.dtype} of shape {tuple(y.shape)}: give one whole number for each "
            "example, y.long() of shape [N]"
        )
    if len(x) != len(y):
        raise ValueError(f"client {client.id} has {len(x)} examples and {len(y)} labels: give one label for each")
    other = first.data[0]
    if not x.device == y.device == other.device:
        raise ValueError(
            f"examples of client {client.id} are on {x.device}, its labels on {y.device}, examples of client "
            f"{first.id} on {other.device}: put all on one"
        )
    if x.shape[1:] != other.shape[1:] or x.dtype is not other.dtype:
        raise ValueError(
            f"examples of client {client.id} have shape {tuple(x.shape[1:])} and dtype {x.dtype}, of client {first.id} "
            f"shape {tuple(other.shape[1:])} and dtype {other.dtype}: give all the same"
        )


def _check_gradient(network: nn.Module, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Try a step in the network's own modes, on a copy, as clients do; the copy."""
    moving = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
    try:
        model = copy.deepcopy(network)
        with torch.random.fork_rng([x.device] if x.is_cuda else []):
            loss = F.cross_entropy(torch.func.functional_call(model, moving, (x,)), y)
            if loss.requires_grad:
                torch.autograd.grad(loss, list(moving.values()), allow_unused=True)
    except Exception as error:  # whatever a network of the user's raises
        raise ValueError(f"the network cannot train on examples of shape {tuple(x.shape[1:])}: {error}") from error
    if not loss.requires_grad:
        raise ValueError(
            "the network's output depends on no parameter that trains: its forward must not run under torch.no_grad, "
            "nor detach its output"
        )
    return model


def _check_labels(clients: Sequence[Client], outputs: int) -> None:
    """Refuse a label without an output: torch finds out in a round, and takes -100 for one to leave out."""
    ends = torch.stack([torch.stack(torch.aminmax(client.data[1])) for client in clients]).tolist()
    for client, (least, most) in zip(clients, ends, strict=True):
        if least < 0 or most >= outputs:
            wrong = least if least < 0 else most
            raise ValueError(
                f"label {wrong} of client {client.id} has no output: the network has {outputs}, for labels 0 to "
                f"{outputs - 1}"
            )


def _check_last_batches(network: nn.Module, weights: Weights, clients: Sequence[Client], batch: int) -> None:
    """Refuse batches of one example where a layer normalises and does not take them: an epoch's last may be one."""
    alone = next((client for client in clients if batch == 1 or len(client.data[1]) % batch == 1), None)
    if alone is None or not normalises(network):
        return
    try:
        scores_of(network, weights, alone.data[0][:1])
    except ValueError as error:
        raise ValueError(
            f"a batch of one example cannot be normalised, and client {alone.id} has {len(alone.data[1])} examples in "
            f"batches of {batch}: take a GroupNorm of fewer groups, or another batch ({error.__cause__})"
        ) from error
