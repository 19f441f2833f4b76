# SPDX-License-Identifier: Apache-2.0
"""Networks for CIFAR-10 that are tried beside those of `ldpkernels.federated.networks`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ldpkernels.federated.networks import Mirrored, network

MARGIN = 4  # of zeros on every side


class Cropped(Mirrored):
    """Moves each image by up to four pixels, and mirrors it with probability one half; nothing in evaluation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The images, of the size that they had."""
        if not self.training:
            return x
        wide, (height, width) = nn.functional.pad(x, 4 * [MARGIN]), x.shape[2:]
        corners = torch.randint(2 * MARGIN + 1, (len(x), 2)).tolist()
        crops = [one[:, i : i + height, j : j + width] for one, (i, j) in zip(wide, corners, strict=True)]
        return super().forward(torch.stack(crops))


def tutorial() -> nn.Sequential:
    """The network of PyTorch's tutorial for CIFAR-10, which is probably the paper's "default network"."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def changed(name: str, seed: int) -> Any:
    """A network by its name, and after a space what is changed in it.

    "batch" has batch normalisation for that of groups, "plain" none and PyTorch's initial weights, and "cropped" trains
    on images that are cropped and mirrored.
    """
    name, _, change = name.partition(" ")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[Any] = list(tutorial() if name == "tutorial" else network(name, seed))  # type: ignore[call-overload]
        if change == "plain":
            layers = [layer for layer in layers if not isinstance(layer, nn.GroupNorm)]
            for layer in layers:
                if isinstance(layer, (nn.Conv2d, nn.Linear)):
                    layer.reset_parameters()
    if change == "batch":
        grouped = ((i, layer.num_channels) for i, layer in enumerate(layers) if isinstance(layer, nn.GroupNorm))
        for i, channels in grouped:
            layers[i] = nn.BatchNorm2d(channels, track_running_stats=False)
    return nn.Sequential(*([Cropped()] if change == "cropped" else []), *layers)
