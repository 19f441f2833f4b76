# SPDX-License-Identifier: Apache-2.0
"""Clients whose small convolutions are computed side by side, as the groups of one network.

A convolution of ten channels on a batch of ten keeps a core busy with everything but arithmetic. Four clients of equal
size take each step as one: their channels stand beside each other, convolutions have a group for each client, linear
layers are batched products, and the sum of the clients' losses has each client's own gradient. What a client arrives
at is what it arrives at alone, to the rounding of its dtype. Who trains beside whom follows from the order of a
round's clients, never from the number of workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

SIDE = 4  # clients that train side by side; measured, with eight the data no longer stay in a core's own cache
FEWEST = 16  # clients of a round from which on they do: fewer are better spread over workers
WIDEST = 24  # channels up to which it was measured to be faster

Weights = dict[str, torch.Tensor]
Step = tuple[torch.Tensor, torch.Tensor]  # the examples and labels of one client
_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.Identity)


def groups(network: nn.Module, sizes: Sequence[int]) -> list[list[int]]:
    """Clients of so many examples, by place: those who train side by side together, the others alone.

    >>> from ldpkernels.federated import networks
    >>> groups(networks.ldp_fl_cnn(), [60] * 18)[-2:]
    [[12, 13, 14, 15], [16, 17]]
    """
    everyone = list(range(len(sizes)))
    side = SIDE if len(sizes) >= FEWEST and len(set(sizes)) == 1 and fits(network) else 1
    return [everyone[i : i + side] for i in range(0, len(everyone), side)]


def fits(network: nn.Module) -> bool:
    """Whether it is a plain chain of layers that are known here, with narrow convolutions in front."""
    if type(network) is not nn.Sequential or _is_changed(network):
        return False
    layers = list(network)
    flat = [i for i, layer in enumerate(layers) if type(layer) is nn.Flatten]
    if len(flat) != 1 or len({id(layer) for layer in layers}) < len(layers):
        return False
    images, features = layers[: flat[0]], layers[flat[0] + 1 :]
    return (
        any(type(layer) is nn.Conv2d for layer in images)
        and all(_keeps_images_apart(layer) for layer in images)
        and all(type(layer) in (nn.Linear, *_ELEMENTWISE) for layer in features)
        and all((m.start_dim, m.end_dim) == (1, -1) for m in layers if isinstance(m, nn.Flatten))
        and not any(_is_changed(layer) for layer in layers)
    )


def _keeps_images_apart(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        plain = layer.padding_mode == "zeros" and layer.groups == 1
        return type(layer) is nn.Conv2d and plain and max(layer.in_channels, layer.out_channels) <= WIDEST
    if isinstance(layer, nn.MaxPool2d):
        return type(layer) is nn.MaxPool2d and not layer.return_indices
    return type(layer) in (nn.AvgPool2d, nn.GroupNorm, *_ELEMENTWISE)


def _is_changed(layer: nn.Module) -> bool:
    """Whether its call does more than its class says: hooks, a forward of its own, a weight that is computed."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks) or "forward" in vars(layer) or hasattr(layer, "parametrizations")


def train(
    network: nn.Module,
    weights: Weights,
    steps: Iterable[Sequence[Step]],
    count: int,
    rate: float,
    only: Collection[str] | None = None,
) -> list[Weights]:
    """Where so many clients arrive, that take the same number of steps of the same sizes from the same weights."""
    layers = dict(cast("nn.Sequential", network).named_children())
    kinds = {name: layers[name.rpartition(".")[0]] for name in weights}
    joint = {name: _joined(w, count, kinds[name]) for name, w in weights.items()}
    trained = [w.requires_grad_() for name, w in joint.items() if only is None or name in only]
    for step in steps if trained else ():
        x = torch.stack([images for images, _ in step], 1).flatten(1, 2)
        scores = _scores(layers, joint, _channels_last(x), count)
        labels = torch.cat([y for _, y in step])
        loss = F.cross_entropy(scores.flatten(0, 1), labels, reduction="sum") / scores.shape[1]
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            torch._foreach_add_(trained, gradients, alpha=-rate)
    apart = {name: w.detach().contiguous().view(count, *weights[name].shape) for name, w in joint.items()}
    return [{name: w[i].clone() for name, w in apart.items()} for i in range(count)]


def _joined(w: torch.Tensor, count: int, layer: nn.Module) -> torch.Tensor:
    """The weights of all clients as the layer below takes them."""
    if isinstance(layer, nn.Linear):
        return w.detach().expand(count, *w.shape).clone()
    return _channels_last(w.detach().repeat(count, *[1] * (w.dim() - 1)))


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and x.shape[1] > 1 else x


def _scores(layers: dict[str, nn.Module], joint: Weights, x: torch.Tensor, count: int) -> torch.Tensor:
    """Scores [clients, examples, classes] for images [examples, clients x channels, height, width]."""
    for name, layer in layers.items():
        weight, bias = joint.get(f"{name}.weight"), joint.get(f"{name}.bias")
        if isinstance(layer, nn.Conv2d):
            assert weight is not None
            x = F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, count)
        elif isinstance(layer, nn.GroupNorm):
            x = F.group_norm(x, count * layer.num_groups, weight, bias, layer.eps)
        elif isinstance(layer, nn.Flatten):
            x = x.reshape(len(x), count, -1).transpose(0, 1)
        elif isinstance(layer, nn.Linear):
            assert weight is not None
            across = weight.transpose(1, 2)
            x = torch.bmm(x, across) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, across)
        else:
            x = layer(x)
    return x
