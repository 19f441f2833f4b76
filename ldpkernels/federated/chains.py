# SPDX-License-Identifier: Apache-2.0
"""Plain chains of convolutions, which train in C++.

A convolution of ten channels on a batch of ten keeps a core busy with everything but arithmetic: what calls it, clears
and copies its memory, and lays its weights out takes longer than its products. csrc/training has the few layers that
such networks are made of, and takes all steps of a client in one call. What a client arrives at is what torch's own
steps arrive at, to a few times the rounding of fp32: kernels of 3 by 3 and 5 by 5 are taken by Winograd's algorithm.
A chain may begin by mirroring images: what it draws is known before its steps, so that they take other images instead.
Where C++ refuses a shape, as of a normalisation over images of one pixel, torch trains the chain (`training.train`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import torch
from torch import nn

from ldpkernels import _native
from ldpkernels.federated.networks import Mirrored

WIDEST = 128  # channels up to which kernels of every size were measured to be faster (docs/federated/training.md)

Weights = dict[str, torch.Tensor]


def fits(network: nn.Module, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the network is a plain chain of layers that are known here, with convolutions in front, and can take
    these images and labels.

    >>> from ldpkernels.federated import networks
    >>> chain, images, labels = networks.ldp_fl_cnn(), torch.zeros(5, 1, 28, 28), torch.zeros(5, dtype=torch.long)
    >>> fits(chain, dict(chain.named_parameters()), images, labels)
    True
    >>> fits(chain.double(), dict(chain.named_parameters()), images.double(), labels)
    False
    """
    return is_plain(network, weights) and takes(network, x, y)


def takes(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether a plain chain can take these images and labels."""
    outputs = [layer for layer in cast("nn.Sequential", network) if isinstance(layer, nn.Linear)][-1].out_features
    return (
        x.dtype is torch.float32
        and x.device.type == "cpu"
        and x.dim() == 4
        and y.dtype is torch.int64
        and (len(y) == 0 or (int(y.min()) >= 0 and int(y.max()) < outputs))
    )


def is_plain(network: nn.Module, weights: Weights) -> bool:
    """Whether the network is a plain chain of layers that are known here, with convolutions in front."""
    if type(network) is not nn.Sequential or _is_changed(network) or not _native.training_isas():
        return False
    if {name for name, _ in network.named_parameters(remove_duplicate=False)} != set(weights):
        return False  # tied weights have one of their names
    layers = list(network)
    flat = [i for i, layer in enumerate(layers) if type(layer) is nn.Flatten]
    if len(flat) != 1 or len({id(layer) for layer in layers}) < len(layers):
        return False
    images, features = layers[_mirrors(layers[0]) : flat[0]], layers[flat[0] + 1 :]
    linear = [layer for layer in features if isinstance(layer, nn.Linear)]
    return (
        any(type(layer) is nn.Conv2d for layer in images)
        and all(_is_known(layer) for layer in images)
        and len(linear) > 0
        and all(type(layer) in (nn.Linear, nn.ReLU) for layer in features)
        and all((m.start_dim, m.end_dim) == (1, -1) for m in layers if isinstance(m, nn.Flatten))
        and not any(_is_changed(layer) for layer in layers)
        and all(w.dtype is torch.float32 and w.device.type == "cpu" for w in weights.values())
    )


def _mirrors(layer: nn.Module) -> bool:
    return type(layer) is Mirrored and layer.training


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        plain = layer.padding_mode == "zeros" and layer.groups == 1 and layer.stride == layer.dilation == (1, 1)
        narrow = max(layer.in_channels, layer.out_channels) <= WIDEST
        inside = not isinstance(layer.padding, str) and all(map(int.__lt__, layer.padding, layer.kernel_size))
        return type(layer) is nn.Conv2d and plain and narrow and inside
    if isinstance(layer, nn.BatchNorm2d):
        return type(layer) is nn.BatchNorm2d and not layer.track_running_stats and layer.training
    if isinstance(layer, nn.GroupNorm):
        return type(layer) is nn.GroupNorm
    if isinstance(layer, nn.MaxPool2d):
        plain = not layer.return_indices and not layer.ceil_mode and layer.padding == 0 and layer.dilation == 1
        return type(layer) is nn.MaxPool2d and plain and isinstance(layer.kernel_size, int) and _side(layer) > 0
    return type(layer) is nn.ReLU


def _side(pool: nn.MaxPool2d) -> int:
    """The side of the pool's squares, where they lie side by side; else 0."""
    return pool.kernel_size if isinstance(pool.kernel_size, int) and pool.stride == pool.kernel_size else 0


def _is_changed(layer: nn.Module) -> bool:
    """Whether the layer's call does more than its class says: hooks, a forward of its own, a computed weight."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks) or "forward" in vars(layer) or hasattr(layer, "parametrizations")


def train(
    network: nn.Module,
    weights: Weights,
    data: tuple[torch.Tensor, torch.Tensor],
    order: torch.Tensor,
    batch: int,
    rate: float,
    only: Collection[str] | None = None,
    isa: str = "",
) -> Weights:
    """The weights of a client after its epochs, which go through its data in this order [epochs, examples].

    What a chain draws is drawn from torch's generator, as its layers would.
    """
    found = {name: w.detach().clone(memory_format=torch.contiguous_format) for name, w in weights.items()}
    arrays = {name: w.numpy() for name, w in found.items()}

    def layer_of(name: str, kind: str, *sizes: int, epsilon: float = 0.0) -> _native.Layer:
        weight, bias = f"{name}.weight", f"{name}.bias"
        trains = [only is None or n in only for n in (weight, bias)]
        return _native.Layer(kind, sizes, arrays.get(weight), arrays.get(bias), trains[0], trains[1], epsilon)

    chain, layers = [], cast("nn.Sequential", network)
    for name, layer in layers.named_children():
        if isinstance(layer, nn.Conv2d):
            height, width = cast("tuple[int, int]", layer.padding)
            chain.append(layer_of(name, "convolution", *cast("tuple[int, int]", layer.kernel_size), height, width))
        elif isinstance(layer, nn.Linear):
            chain.append(layer_of(name, "linear"))
        elif isinstance(layer, nn.MaxPool2d):
            chain.append(layer_of(name, "max_pool", _side(layer)))
        elif isinstance(layer, nn.BatchNorm2d):
            chain.append(layer_of(name, "batch_norm", epsilon=layer.eps))
        elif isinstance(layer, nn.GroupNorm):
            chain.append(layer_of(name, "group_norm", layer.num_groups, epsilon=layer.eps))
        elif isinstance(layer, nn.ReLU):
            chain.append(layer_of(name, "relu"))
    x, y = data
    if _mirrors(layers[0]):
        mirrored = [Mirrored.chosen(len(step)) for epoch in order for step in epoch.split(batch)]
        order = order + len(y) * torch.cat(mirrored).view(order.shape)
        x, y = torch.cat([x, x.flip(-1)]), torch.cat([y, y])
    _native.train_chain(chain, x.contiguous().numpy(), y.contiguous().numpy(), order.numpy(), batch, rate, isa)
    return found
