# SPDX-License-Identifier: Apache-2.0
"""A step of DP-SGD (Abadi et al. 2016) on gradients by sample, from Opacus or from `torch.func`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard

from ldpkernels.calls.clipped_noise import ClippedInfo, Clipping, NoiseKind, clipped_noised_mean
from ldpkernels.common.keys import Generator
from ldpkernels.inputs.modules import common_prefix
from ldpkernels.inputs.shards import is_sharded

if TYPE_CHECKING:
    import torch


class _DPOptimizer(Protocol):
    """What is read of `opacus.optimizers.DPOptimizer`."""

    original_optimizer: torch.optim.Optimizer
    noise_multiplier: float
    _step_skip_queue: list[bool]

    def step_hook(self, optimizer: _DPOptimizer) -> None:
        """What its `PrivacyEngine` has it call in a step; None without an engine."""


def dp_sgd_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    C: float | Sequence[float],
    sigma: float,
    *,
    batch_size: float,
    grads: Mapping[str, torch.Tensor] | None = None,
    generator: Generator = None,
    noise: NoiseKind = "gaussian",
    clipping: Clipping = "flat",
) -> ClippedInfo[torch.Tensor]:
    """Clip every sample's gradient to norm C, add them, add noise of deviation C * sigma once, and step.

    On a Poisson sample with rate q of n samples, one step is in real arithmetic a Poisson-subsampled Gaussian mechanism
    with noise multiplier sigma, for adding or removing a sample. `ldpkernels.accounting` composes steps. A sample whose
    gradient holds NaN or Inf is left out. `p.grad` is replaced, and stays for an optimizer of your own (pass None).

    Before the first write, two things are refused: layers that mix the samples of a batch, and parameters of the
    optimizer that would take a step by a gradient without noise.

    Args:
        model: A module; its trainable parameters get the gradient. With Opacus, its `GradSampleModule`.
        optimizer: A torch optimizer that needs no closure, stepped at the end. Of Opacus's `DPOptimizer` the inner one
            is stepped, after the hook of its `PrivacyEngine` has counted the step; sigma must be its noise_multiplier.
        C, sigma, generator, noise, clipping: As in `ldpkernels.clipped_noised_mean`.
        batch_size: The expected size of a batch, q * n, because the size of this one is private.
        grads: [B, ...] for every trainable parameter by name, as `torch.func.vmap(torch.func.grad(...))` returns them.
            B may be 0: an empty Poisson batch must take its step too. None takes each parameter's `grad_sample`, which
            Opacus fills in, and clears it.

    Returns:
        The exact norms: **private**, for the owner of the data only.

    >>> import torch, ldpkernels
    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> x = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.5]])
    >>> loss = lambda weights, x: torch.func.functional_call(model, weights, x).sum()
    >>> grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), x)
    >>> info = ldpkernels.dp_sgd_step(model, None, C=1.0, sigma=0.0, batch_size=2, grads=grads)
    >>> model.weight.grad, info.clipped
    (tensor([[0.3000, 0.4000, 0.2500]]), 1)
    """
    import torch

    named = check_trained(model)
    engine = optimizer if _is_opacus(optimizer) else None
    if engine is not None:
        _check_engine(engine, sigma, grads)
    stepped = optimizer if engine is None else engine.original_optimizer
    if stepped is not None:
        _check_optimizer(stepped, named)
    by_sample = _grad_samples(named) if grads is None else _matched(named, grads)
    for name, p in named.items():
        if tuple(by_sample[name].shape[1:]) != tuple(p.shape):
            raise ValueError(
                f"the gradients of {name!r} have shape {tuple(by_sample[name].shape)}: pass [B, *{tuple(p.shape)}]"
            )
    with torch.no_grad():
        out, info = clipped_noised_mean(
            by_sample,
            C,
            sigma,
            batch_size=batch_size,
            generator=generator,
            noise=noise,
            clipping=clipping,
            return_info=True,
        )
    if engine is not None and engine.step_hook is not None:
        engine.step_hook(engine)  # counted first: it reads the samples, and nothing was released where it fails
    for name, p in named.items():
        p.grad = out[name].to(p.dtype)
        if grads is None:
            p.grad_sample = None  # type: ignore[attr-defined]
    if stepped is not None:
        stepped.step()
    return info


def check_trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, torch.Tensor]:
    """The trainable parameters by name, of a model (and a torch optimizer) that a private step takes."""
    if is_sharded(model):
        raise TypeError("model holds DTensors, of which every rank has a part: dp_sgd_step takes whole models")
    named = _by_own_names({name: p for name, p in model.named_parameters() if p.requires_grad})
    if not named:
        raise ValueError("model has no trainable parameters: there is nothing to step")
    _refuse_mixing_layers(model)
    if optimizer is not None:
        _check_optimizer(optimizer, named)
    return named


def _by_own_names(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by the names that the model has itself, without the prefix of a wrapper that holds it."""
    prefix = common_prefix(named)
    return {name.removeprefix(prefix): value for name, value in named.items()}


def _refuse_mixing_layers(model: torch.nn.Module) -> None:
    """A gradient by sample is not a sample's own where a layer took the mean of a batch."""
    import torch

    for name, module in model.named_modules():
        kind, norms = type(module).__name__, torch.nn.modules
        if isinstance(module, norms.instancenorm._InstanceNorm):
            if module.training and module.track_running_stats:
                raise ValueError(
                    f"layer {name!r} ({kind}) keeps running statistics of the samples, which no noise hides: make it "
                    "with track_running_stats=False"
                )
            continue
        mixes = isinstance(module, norms.batchnorm._BatchNorm) and (module.training or module.running_mean is None)
        if mixes:
            raise ValueError(
                f"layer {name!r} ({kind}) mixes the samples of a batch, so that no gradient belongs to one of them: "
                "use GroupNorm, or freeze its public statistics by .eval()"
            )


def _is_opacus(optimizer: object) -> TypeGuard[_DPOptimizer]:
    return hasattr(optimizer, "original_optimizer")


def _check_engine(engine: _DPOptimizer, sigma: float, grads: object) -> None:
    """Whether the step is one that the engine's accountant counts as it is."""
    if type(engine).__name__ != "DPOptimizer":
        raise TypeError(
            f"optimizer is a {type(engine).__name__}, which clips and adds noise in its own way: pass its "
            "original_optimizer and account for the steps yourself, or use its own step"
        )
    if engine._step_skip_queue:
        raise ValueError(
            "optimizer is in a BatchMemoryManager, which splits batches: dp_sgd_step needs the whole batch"
        )
    if engine.step_hook is not None and engine.noise_multiplier != sigma:
        raise ValueError(
            f"sigma={sigma} is not the noise_multiplier={engine.noise_multiplier} of the optimizer, which its "
            "PrivacyEngine counts: pass that"
        )
    if engine.step_hook is not None and grads is not None:
        raise ValueError(
            "the PrivacyEngine of the optimizer counts the samples that Opacus found: leave grads out, or pass "
            "optimizer.original_optimizer and account for the steps yourself"
        )


def _check_optimizer(optimizer: torch.optim.Optimizer, named: Mapping[str, torch.Tensor]) -> None:
    """Whether a step moves by noised gradients alone."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}, whose step recomputes gradients without noise: use one that "
            "steps with p.grad"
        )
    trained = {id(p) for p in named.values()}
    for group, parameters in enumerate(optimizer.param_groups):
        for i, p in enumerate(parameters["params"]):
            if id(p) not in trained and p.grad is not None:
                what = "no parameter of the model" if p.requires_grad else "frozen or no parameter of the model"
                raise ValueError(
                    f"parameter {i} of the optimizer's group {group}, of shape {tuple(p.shape)}, is {what} and has a "
                    "gradient, with which the optimizer would step without noise: set its .grad to None, or take it "
                    "out"
                )


def _grad_samples(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    import torch

    found = {}
    for name, p in named.items():
        grad = getattr(p, "grad_sample", None)
        if isinstance(grad, list):  # several backward passes: more samples
            grad = torch.cat(grad) if grad else None
        if grad is None:
            raise ValueError(
                f"parameter {name!r} has no grad_sample: run backward through opacus.GradSampleModule, or pass grads="
            )
        found[name] = grad
    return found


def _matched(named: Mapping[str, torch.Tensor], grads: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not named.keys() <= grads.keys():
        grads = _by_own_names(grads)
    missing, unknown = named.keys() - grads.keys(), grads.keys() - named.keys()
    if missing or unknown:
        wrong = f"no {min(missing)!r}" if missing else f"{min(unknown)!r}, which is not a trainable parameter"
        raise ValueError(f"grads has {wrong}: pass one gradient for each trainable parameter, by its name")
    return {name: grads[name] for name in named}
