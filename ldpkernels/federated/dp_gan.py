# SPDX-License-Identifier: Apache-2.0
"""Training a party's generator: Han and Xue's Algorithm 1 as printed, and the step that is differentially private."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypedDict

import torch

from ldpkernels.calls.clipped_noise import clipped_noised_mean
from ldpkernels.calls.dp_sgd import dp_sgd_step
from ldpkernels.common.keys import Key
from ldpkernels.federated.generators import Discriminator, LocalGenerator, generator_of
from ldpkernels.federated.training import Weights


@dataclass(frozen=True)
class Recipe:
    """How generators are trained.

    `sound=False` is Algorithm 1, lines 10 to 16: the losses of real examples are clipped to C, added and noised, and
    the gradient is that of this noisy loss. **The noise is a constant for the weights, so the gradient has none of
    it.** `sound=True` clips the gradient of each real example to C and noises their sum, on Poisson samples of rate
    batch / examples: each step is a subsampled Gaussian mechanism of noise multiplier sigma.

    Algorithm 1 leaves the loss open; `loss` is a discriminator's (`generators.Discriminator`). None is "squares" if
    losses are clipped, because clipping leaves those alone, and "log" if gradients are.
    """

    steps: int = 1000
    batch: int = 256
    C: float = 1.0
    sigma: float = 1.0
    sound: bool = False
    loss: str | None = None
    lr: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be 1 or more")
        for name in ("C", "lr"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)} must be above 0 and finite")
        if not 0 <= self.sigma < float("inf"):
            raise ValueError(f"sigma={self.sigma} must be 0 or more and finite")

    @property
    def discriminator_loss(self) -> str:
        """The loss of discriminators: `loss`, or what None stands for."""
        return self.loss or ("log" if self.sound else "squares")

    def rate(self, examples: int) -> float:
        """The probability of an example to be in a Poisson sample of so many, as `chosen` draws and reports count it.

        It is batch / examples to within 2^-23, because `chosen` draws multiples of 2^-24.
        """
        return math.ceil(float(torch.tensor(self.batch / examples)) * 2**24) / 2**24


class Progress(TypedDict):
    """All that a step of a generator's training changes, for a checkpoint."""

    done: int
    critic: Weights
    maker: Weights
    optimizers: list[dict[str, object]]


@dataclass
class Training:
    """A generator, its optimizers, and the steps that it has taken."""

    generator: LocalGenerator
    recipe: Recipe
    done: int = 0
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        modules = [self.generator.critic, *([self.generator.maker] if self.generator.adversarial else [])]
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=self.recipe.lr, betas=(0.5, 0.999)) for m in modules]

    def state_dict(self) -> Progress:
        """All that a step changes: weights, optimizers' states, the number of steps."""
        return {
            "done": self.done,
            "critic": self.generator.critic.state_dict(),
            "maker": self.generator.maker.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: Progress) -> None:
        """Continue from `state_dict`, to the bit."""
        self.done = state["done"]
        self.generator.critic.load_state_dict(state["critic"])
        self.generator.maker.load_state_dict(state["maker"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def step(self, x: torch.Tensor, key: Key) -> None:
        """One step on a party's examples x. The key is the party's; each step folds its number into it.

        Everything but the noise of privacy is drawn on the host, so that batches are the same on every device.
        """
        key = key.fold_in(self.done)
        coins = generator_of(key)
        batch = x[chosen(len(x), self.recipe, coins).to(x.device)]
        critic_gradient(self.generator, batch, self.recipe, coins, key.fold_in(0))
        self.optimizers[0].step()
        if self.generator.adversarial:
            self._step_maker(coins)
        self.done += 1

    def _step_maker(self, coins: torch.Generator) -> None:
        generator, critic = self.generator, self.generator.critic
        assert isinstance(critic, Discriminator)
        critic.requires_grad_(False)  # line 16
        self.optimizers[1].zero_grad()
        noise = torch.randn(self.recipe.batch, generator.latent, generator=coins).to(generator.device)
        critic.fooled(generator.maker(noise)).mean().backward()
        self.optimizers[1].step()
        critic.requires_grad_(True)


def chosen(examples: int, recipe: Recipe, coins: torch.Generator) -> torch.Tensor:
    """Which examples a step sees: a batch of fixed size, or for the sound step a Poisson sample."""
    if recipe.batch > examples:
        raise ValueError(f"batch={recipe.batch} is more than the {examples} examples of a party: take a smaller batch")
    if recipe.sound:
        return (torch.rand(examples, generator=coins) < recipe.rate(examples)).nonzero().flatten()
    return torch.randperm(examples, generator=coins)[: recipe.batch]


def critic_gradient(
    generator: LocalGenerator, batch: torch.Tensor, recipe: Recipe, coins: torch.Generator, key: Key
) -> None:
    """Put the critic's gradient for a batch of real examples, and as many synthetic ones, into its parameters."""
    critic = generator.critic
    noise = torch.randn(len(batch), generator.latent, generator=coins).to(batch.device)
    synthetic = None
    if isinstance(critic, Discriminator):
        with torch.no_grad():
            made = generator.maker(torch.randn(recipe.batch, generator.latent, generator=coins).to(batch.device))
        synthetic = critic.synthetic(made).mean()
    if recipe.sound:
        grads = gradients(critic, batch, noise)
        dp_sgd_step(critic, None, recipe.C, recipe.sigma, batch_size=recipe.batch, grads=grads, generator=key)
        if synthetic is not None:  # made of noise and of released weights alone: post-processing
            weights = list(critic.parameters())
            theirs = torch.autograd.grad(synthetic, weights)
            norm = torch.stack([g.square().sum() for g in theirs]).sum().sqrt()
            scale = (recipe.C / norm).clamp(max=1.0)  # as long as the real branch's mean may be, or it decides alone
            for p, g in zip(weights, theirs, strict=True):
                p.grad = (p.grad + scale * g) / 2 if p.grad is not None else None
        return
    critic.zero_grad()
    real = clipped_noised_mean(critic(batch, noise), recipe.C, recipe.sigma, generator=key)
    (real if synthetic is None else (real + synthetic) / 2).backward()


def gradients(critic: torch.nn.Module, batch: torch.Tensor, noise: torch.Tensor) -> Weights:
    """The gradient of each example's loss, by parameter."""
    weights = {name: p.detach() for name, p in critic.named_parameters()}
    if len(batch) == 0:
        return {name: p.new_empty(0, *p.shape) for name, p in weights.items()}

    def loss(weights: Weights, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = torch.func.functional_call(critic, weights, (x[None], noise[None]))
        return losses.sum()

    by_example: Weights = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, batch, noise)
    return by_example
