# SPDX-License-Identifier: Apache-2.0
"""The papers' networks, as far as the papers tell."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def digits_mlp() -> nn.Module:
    """64 inputs, 32 hidden units, 10 classes: 2,410 weights, for scikit-learn's digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def ldp_fl_cnn() -> nn.Module:
    """PyTorch's basic example without its dropout: a reading of LDP-FL's "two-layer CNN".

    >>> sum(p.numel() for p in ldp_fl_cnn().parameters())
    21840
    """
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


def ldp_fed_cnn() -> nn.Module:
    """LDP-Fed's network, and another reading of LDP-FL's for Fashion-MNIST (docs/federated/ldp_fl.md).

    Its batch normalisation keeps no running statistics: they would leave a client unprotected.

    >>> sum(p.numel() for p in ldp_fed_cnn().parameters())
    29034
    """
    return nn.Sequential(*_normalised(1, 16, 1568))


def wide_cnn() -> nn.Module:
    """LDP-Fed's network for CIFAR-10: three colours, and twice as many channels.

    >>> sum(p.numel() for p in wide_cnn().parameters())
    94858
    """
    return nn.Sequential(*_normalised(3, 32, 4096))


def wide_cnn_mirrored() -> nn.Module:
    """`wide_cnn`, trained on images of which half are mirrored, drawn anew at each step.

    >>> network("wide-cnn-mirrored", 0).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(Mirrored(), *_normalised(3, 32, 4096))


def _normalised(colours: int, channels: int, features: int) -> list[nn.Module]:
    """Two convolutions with batch normalisation, the second of twice the channels, and a linear layer."""
    layers: list[nn.Module] = []
    for into, out in ((colours, channels), (channels, 2 * channels)):
        convolution, norm = nn.Conv2d(into, out, 5, padding=2), nn.BatchNorm2d(out, track_running_stats=False)
        layers += [convolution, norm, nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers, nn.Flatten(), nn.Linear(features, 10)]


class Mirrored(nn.Module):
    """Mirrors each image with probability one half while a network trains, and none while it is evaluated.

    >>> x = torch.arange(6.0).reshape(1, 1, 2, 3)
    >>> torch.equal(Mirrored().eval()(x), x)
    True
    """

    draws = True  # from the client's key, as dropout does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The images, mirrored or not."""
        if not self.training:
            return x
        return torch.where(self.chosen(len(x), x.device).view(-1, 1, 1, 1), x.flip(-1), x)

    @staticmethod
    def chosen(images: int, device: torch.device | None = None) -> torch.Tensor:
        """Which of a step's images are mirrored."""
        return torch.rand(images, device=device) < 0.5


def small_vgg_normalised() -> nn.Module:
    """Four convolutions and two linear layers, a small VGG for CIFAR-10; LDP-FL does not give its own.

    It has group normalisation and He's initial weights, without which it learns less from few steps.

    >>> sum(p.numel() for p in small_vgg_normalised().parameters())
    181882
    """

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]

    network = nn.Sequential(
        *block(3, 32),
        *block(32, 32),
        nn.MaxPool2d(2),
        *block(32, 64),
        nn.MaxPool2d(2),
        *block(64, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 112),
        nn.ReLU(),
        nn.Linear(112, 10),
    )
    for layer in network:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return network


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "digits-mlp": digits_mlp,
    "ldp-fl-cnn": ldp_fl_cnn,
    "ldp-fed-cnn": ldp_fed_cnn,
    "small-vgg-normalised": small_vgg_normalised,
    "wide-cnn": wide_cnn,
    "wide-cnn-mirrored": wide_cnn_mirrored,
}
# What each paper's driver takes for a dataset where the user names no network.
LDP_FL = {
    "digits": "digits-mlp",
    "mnist": "ldp-fl-cnn",
    "fashion-mnist": "ldp-fl-cnn",
    "cifar10": "small-vgg-normalised",
}
LDP_FED = {"digits": "digits-mlp", "mnist": "ldp-fed-cnn", "fashion-mnist": "ldp-fed-cnn"}


def network(name: str, seed: int) -> nn.Module:
    """A network with the initial weights of a seed; the caller's random state is left alone."""
    if name not in NETWORKS:
        raise ValueError(f"network={name!r} must be one of {', '.join(NETWORKS)}")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return NETWORKS[name]()
