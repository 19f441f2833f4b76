# SPDX-License-Identifier: Apache-2.0
"""The generators of Han and Xue's parties: GAN, DCGAN and variational autoencoder, in one shape.

A generator has a critic, the only part that sees real examples, and a maker, which turns noise into samples. A critic
is a module with `forward(x, noise) -> losses`, one loss for each example and no exchange between them (no batch
normalisation), so that losses and gradients can be clipped by example.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from ldpkernels.common.keys import Key

KINDS = ("gan", "dcgan", "vae")
LOSSES = ("squares", "log")


class Discriminator(nn.Module):
    """The losses of a discriminator D(x) = sigmoid(logit(x)).

    "squares" (Mao et al. 2017) are (1 - D(x))^2 for real examples and D(s)^2 for synthetic samples. They stay below 1,
    so clipping at C = 1 leaves them alone. "log" are -log D(x) and -log(1 - D(s)), those of equation (4). They have no
    bound, and if the loss is clipped, an example above C has no gradient. Once all real examples of a batch are above
    C, the discriminator learns from synthetic samples alone, and never recovers.
    """

    def __init__(self, logit: nn.Module, loss: str) -> None:
        super().__init__()
        self.logit, self.loss = logit, loss

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """The loss of each real example; it takes no noise."""
        return self._losses(-self.logit(x).flatten())

    def synthetic(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of each synthetic sample."""
        return self._losses(self.logit(x).flatten())

    def fooled(self, x: torch.Tensor) -> torch.Tensor:
        """The maker's loss of each synthetic sample, -log D(s) (Goodfellow et al. 2014)."""
        return nn.functional.softplus(-self.logit(x).flatten())

    def _losses(self, wrong: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(wrong).square() if self.loss == "squares" else nn.functional.softplus(wrong)


class Autoencoder(nn.Module):
    """The variational bound of each example, an average over its features.

    Both terms are divided by the number of features: in their sum every loss would be far above the bound C, and a
    clipped loss has no gradient.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Squared error of the reconstruction plus divergence from the prior."""
        mean, log_variance = self.encoder(x).chunk(2, 1)
        code = mean + noise * (0.5 * log_variance).exp()
        squares = (self.decoder(code) - x).square().flatten(1).mean(1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        losses: torch.Tensor = squares + divergence / x[0].numel()
        return losses


@dataclass(frozen=True)
class LocalGenerator:
    """A critic and a maker. Of an autoencoder the maker is the decoder, trained with the critic."""

    kind: str
    critic: nn.Module
    maker: nn.Module
    latent: int

    @property
    def adversarial(self) -> bool:
        """Whether the maker learns from the critic's verdict rather than with it."""
        return isinstance(self.critic, Discriminator)

    @torch.no_grad()
    def sample(self, n: int, key: Key) -> torch.Tensor:
        """Draw n synthetic samples, in the host's memory."""
        noise = torch.randn(n, self.latent, generator=generator_of(key)).to(self.device)
        self.maker.eval()
        made = torch.cat([self.maker(part) for part in noise.split(1024)]) if n else self.maker(noise[:0])
        self.maker.train()
        return made.cpu()

    def to(self, device: torch.device) -> LocalGenerator:
        """The generator with its modules on this device."""
        return replace(self, critic=self.critic.to(device), maker=self.maker.to(device))

    @property
    def device(self) -> torch.device:
        """The device of its modules."""
        return next(self.maker.parameters()).device


def build(
    kind: str, shape: tuple[int, ...], span: tuple[float, float] | None, key: Key, *, loss: str = "squares"
) -> LocalGenerator:
    """A generator with initial weights.

    Args:
        kind: "gan", "dcgan" (images with sides that four divides) or "vae".
        shape: Of one example.
        span: The least and the greatest number of an example, where they are public (of pixels); None for features.
            Samples stay within it, so that whoever sees them knows it.
        key: Decides the initial weights.
        loss: Of a discriminator: "squares" or "log".

    >>> import ldpkernels
    >>> generator = build("dcgan", (1, 8, 8), (0.0, 1.0), ldpkernels.key(0))
    >>> tuple(generator.sample(3, ldpkernels.key(1)).shape)
    (3, 1, 8, 8)
    """
    if kind not in KINDS:
        raise ValueError(f"generator={kind!r} must be one of {', '.join(KINDS)}")
    if loss not in LOSSES:
        raise ValueError(f"loss={loss!r} must be one of {', '.join(LOSSES)}")
    if span is not None and not span[0] < span[1]:
        raise ValueError(f"span={span} must be two numbers, the lower first, or None for features that have none")
    if kind == "dcgan" and (len(shape) != 3 or shape[1] % 4 or shape[1] != shape[2]):
        raise ValueError(f"a dcgan makes square images with a side divisible by 4, not {shape}: use 'gan' or 'vae'")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.words[0])
        return _vae(shape, span) if kind == "vae" else (_gan if kind == "gan" else _dcgan)(shape, span, loss)


def generator_of(key: Key) -> torch.Generator:
    """A torch generator for what needs reproducing and no secrecy: initial weights, samples from a prior, shuffling."""
    return torch.Generator().manual_seed(key.words[0])


class _Within(nn.Module):
    """Numbers within a span, in the shape of an example."""

    def __init__(self, shape: tuple[int, ...], span: tuple[float, float] | None) -> None:
        super().__init__()
        self.shape, self.span = shape, span

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.span is not None:
            low, high = self.span
            x = low + (high - low) * torch.sigmoid(x)
        return x.reshape(-1, *self.shape)


class _Centred(nn.Module):
    """Examples within a span, moved to -1 .. 1."""

    def __init__(self, span: tuple[float, float] | None) -> None:
        super().__init__()
        self.span = span

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.span is None:
            return x
        low, high = self.span
        return (x - low) * (2 / (high - low)) - 1


def _gan(shape: tuple[int, ...], span: tuple[float, float] | None, loss: str) -> LocalGenerator:
    features, latent = math.prod(shape), 64
    logit = nn.Sequential(
        _Centred(span), nn.Flatten(), nn.Linear(features, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64),
        nn.LeakyReLU(0.2), nn.Linear(64, 1),
    )  # fmt: skip
    maker = nn.Sequential(
        nn.Linear(latent, 128), nn.BatchNorm1d(128), nn.LeakyReLU(0.2), nn.Linear(128, 256), nn.BatchNorm1d(256),
        nn.LeakyReLU(0.2), nn.Linear(256, features), _Within(shape, span),
    )  # fmt: skip
    return LocalGenerator("gan", Discriminator(logit, loss), maker, latent)


def _dcgan(shape: tuple[int, ...], span: tuple[float, float] | None, loss: str) -> LocalGenerator:
    channels, side, latent = shape[0], shape[1] // 4, 64
    logit = nn.Sequential(
        _Centred(span), nn.Conv2d(channels, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32 * side * side, 1),
    )  # fmt: skip
    maker = nn.Sequential(
        nn.Linear(latent, 32 * side * side), nn.Unflatten(1, (32, side, side)), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, channels, 4, 2, 1), _Within(shape, span),
    )  # fmt: skip
    return LocalGenerator("dcgan", Discriminator(logit, loss), maker, latent)


def _vae(shape: tuple[int, ...], span: tuple[float, float] | None) -> LocalGenerator:
    features, width, latent = math.prod(shape), 128, 16
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 2 * latent))
    decoder = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, features), _Within(shape, span))
    critic = Autoencoder(encoder, decoder)
    return LocalGenerator("vae", critic, decoder, latent)
