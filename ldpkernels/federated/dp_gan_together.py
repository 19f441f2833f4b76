# SPDX-License-Identifier: Apache-2.0
"""Generators of one kind that take their steps at once: weights of all parties stacked, `torch.func.vmap` over them.

A step of one generator is some hundred small operations, which a GPU launches for longer than it computes. Each party's
draws are those of `Training.step`. What is clipped and noised, losses or the gradients of single examples, is so for
one party after another, by its own key. Results are those of steps in turn, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ldpkernels.clipped_noise import clipped_noised_mean
from ldpkernels.dp_sgd import dp_sgd_step
from ldpkernels.federated.dp_gan import Recipe, Training, adam, chosen, gradient_of_each
from ldpkernels.federated.generators import generator_of
from ldpkernels.federated.training import Weights
from ldpkernels.keys import Key


def steps(parties: Sequence[tuple[Training, torch.Tensor, Key]], count: int) -> None:
    """So many steps of every party, in place: each has its training, its examples and its key, as of `Training.step`.

    >>> import ldpkernels
    >>> from ldpkernels.federated.dp_gan import Recipe
    >>> from ldpkernels.federated.generators import build
    >>> key, recipe, x = ldpkernels.key(0), Recipe(steps=4, batch=8), torch.randn(20, 5)
    >>> trainings = [Training(build("gan", (5,), None, key.fold_in(i)), recipe) for i in range(3)]
    >>> steps([(training, x, key.fold_in(3 + i)) for i, training in enumerate(trainings)], count=4)
    >>> [training.done for training in trainings]
    [4, 4, 4]
    """
    if not parties:
        raise ValueError("parties is empty: give one at least")
    trainings, examples, keys = (list(values) for values in zip(*parties, strict=True))
    together = _Together(trainings)
    for _ in range(count):
        together.step(examples, keys)
    together.end()


class _Together:
    """Critics and makers, stacked, of trainings that have taken equally many steps."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings, first = trainings, trainings[0]
        found = {(t.generator.kind, t.recipe, t.done) for t in trainings}
        if len(found) > 1:
            kinds = " and ".join(sorted(f"a {kind} of {recipe} after {done} steps" for kind, recipe, done in found))
            raise ValueError(f"trainings={kinds}: those at once are of one kind, recipe and number of steps")
        if len({(str(t.generator.critic), str(t.generator.maker)) for t in trainings}) > 1:
            raise ValueError("trainings have different layers, spans or losses: those at once differ in weights alone")
        self.recipe, self.latent, self.device = first.recipe, first.generator.latent, first.generator.device
        self.critic = _Stack([t.generator.critic for t in trainings], [t.optimizers[0] for t in trainings], self.recipe)
        makers = [t.generator.maker for t in trainings]
        adversarial = first.generator.adversarial
        self.maker = _Stack(makers, [t.optimizers[1] for t in trainings], self.recipe) if adversarial else None

    def end(self) -> None:
        """Give every party its own weights, buffers and optimizers' states."""
        self.critic.end()
        if self.maker is not None:
            self.maker.end()

    def step(self, examples: Sequence[torch.Tensor], keys: Sequence[Key]) -> None:
        """Take one step of every party."""
        keys = [key.fold_in(t.done) for key, t in zip(keys, self.trainings, strict=True)]
        coins = [generator_of(key) for key in keys]
        picked = [chosen(len(x), self.recipe, c) for x, c in zip(examples, coins, strict=True)]
        batches = [x[which.to(x.device)] for x, which in zip(examples, picked, strict=True)]
        noises = [self._draw(c, len(batch)) for c, batch in zip(coins, batches, strict=True)]
        synthetic = None
        if self.maker is not None:
            with torch.no_grad():
                made = self.maker("forward", self._draws(coins))
            synthetic = self.critic("synthetic", made).mean(1).sum()  # of all parties: each has its own weights
        if self.recipe.sound:
            self._sound_gradient(batches, noises, keys, synthetic)
        else:
            losses = self.critic("forward", torch.stack(batches), torch.stack(noises))
            each = [
                clipped_noised_mean(row, self.recipe.C, self.recipe.sigma, generator=key.fold_in(0))
                for row, key in zip(losses, keys, strict=True)
            ]
            real = torch.stack(each).sum()
            self.critic.set_gradients(real if synthetic is None else (real + synthetic) / 2)
        self.critic.optimizer.step()
        if self.maker is not None:
            fooled = self.critic("fooled", self.maker("forward", self._draws(coins)))
            self.maker.set_gradients(fooled.mean(1).sum())
            self.maker.optimizer.step()
        for t in self.trainings:
            t.done += 1

    def _draw(self, coins: torch.Generator, n: int) -> torch.Tensor:
        return torch.randn(n, self.latent, generator=coins).to(self.device)

    def _draws(self, coins: Sequence[torch.Generator]) -> torch.Tensor:
        return torch.stack([self._draw(c, self.recipe.batch) for c in coins])

    def _sound_gradient(
        self,
        batches: Sequence[torch.Tensor],
        noises: Sequence[torch.Tensor],
        keys: Sequence[Key],
        synthetic: torch.Tensor | None,
    ) -> None:
        """Give the critics the clipped and noised gradients of their Poisson samples, and those of the synthetic."""
        longest = max(1, *map(len, batches))
        x, noise = (torch.stack([_filled(part, longest) for part in parts]) for parts in (batches, noises))
        by_example = self.critic.gradients_by_example(x, noise)
        for i, (batch, key) in enumerate(zip(batches, keys, strict=True)):
            own = {name: g[i, : len(batch)] for name, g in by_example.items()}
            recipe, noise_key = self.recipe, key.fold_in(0)
            critic = self.critic.modules[i]
            dp_sgd_step(critic, None, recipe.C, recipe.sigma, batch_size=recipe.batch, grads=own, generator=noise_key)
        found = self.critic.gradients_of_parties()
        if synthetic is not None:
            theirs = self.critic.gradients(synthetic)
            norms = torch.stack([g.square().flatten(1).sum(1) for g in theirs.values()]).sum(0).sqrt()
            scale = (self.recipe.C / norms).clamp(max=1.0)
            shaped = {name: scale.reshape(-1, *[1] * (g.dim() - 1)) for name, g in theirs.items()}
            found = {name: (g + shaped[name] * theirs[name]) / 2 for name, g in found.items()}
        for name, w in self.critic.weights.items():
            w.grad = found[name]


class _Stack:
    """Modules of one architecture as one module with stacked parameters and buffers, and one optimizer."""

    def __init__(
        self, modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], recipe: Recipe
    ) -> None:
        self.modules, self.optimizers = modules, optimizers
        self._named = _Named(modules[0])
        self.weights, self.buffers = torch.func.stack_module_state(list(modules))
        self.optimizer = adam(self.weights.values(), recipe)
        for name, w in self.weights.items():
            states = [o.state[module.get_parameter(name)] for module, o in zip(modules, optimizers, strict=True)]
            for kind, value in states[0].items():
                alone = value.dim() == 0  # the number of steps, which is everybody's
                self.optimizer.state[w][kind] = value.clone() if alone else torch.stack([s[kind] for s in states])

    @torch.no_grad()
    def end(self) -> None:
        """Give every module and optimizer its part of the stack."""
        for i, (module, optimizer) in enumerate(zip(self.modules, self.optimizers, strict=True)):
            for name, w in self.weights.items():
                parameter = module.get_parameter(name)
                parameter.copy_(w[i])
                parameter.grad = None
                state = self.optimizer.state[w].items()
                optimizer.state[parameter] = {kind: v.clone() if v.dim() == 0 else v[i].clone() for kind, v in state}
            for name, buffer in self.buffers.items():
                module.get_buffer(name).copy_(buffer[i])

    def __call__(self, method: str, *args: torch.Tensor) -> torch.Tensor:
        """What every module's method makes of its part of the arguments; buffers are written as by one module."""

        def one(state: Weights, *args: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.func.functional_call(self._named, _of_module(state), (method, *args))
            return found

        stacked: torch.Tensor = torch.func.vmap(one)({**self.weights, **self.buffers}, *args)
        return stacked

    def gradients(self, total: torch.Tensor) -> Weights:
        """The stacked gradients of a sum over the parties."""
        return dict(zip(self.weights, torch.autograd.grad(total, list(self.weights.values())), strict=True))

    def set_gradients(self, total: torch.Tensor) -> None:
        """Put the gradients of a sum over the parties where the optimizer looks for them."""
        for name, gradient in self.gradients(total).items():
            self.weights[name].grad = gradient

    def gradients_by_example(self, x: torch.Tensor, noise: torch.Tensor) -> Weights:
        """The gradient of each example's loss [party, example, ...], by parameter."""
        weights = {name: w.detach() for name, w in self.weights.items()}
        found: Weights = torch.func.vmap(gradient_of_each(self.modules[0]))(weights, x, noise)
        return found

    def gradients_of_parties(self) -> Weights:
        """What `dp_sgd_step` left with every module, stacked."""
        return {
            name: torch.stack([_gradient(module.get_parameter(name)) for module in self.modules])
            for name in self.weights
        }


class _Named(nn.Module):
    """A module's methods behind `forward`, the only one that `functional_call` calls."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, method: str, *args: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.module, method)(*args)
        return found


def _of_module(state: Weights) -> Weights:
    return {f"module.{name}": value for name, value in state.items()}


def _filled(x: torch.Tensor, length: int) -> torch.Tensor:
    """The examples, with zeros after them to this length."""
    return torch.cat([x, x.new_zeros(length - len(x), *x.shape[1:])])


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
