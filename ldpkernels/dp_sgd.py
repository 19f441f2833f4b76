# SPDX-License-Identifier: Apache-2.0
"""A step of DP-SGD (Abadi et al. 2016) on gradients by sample, from Opacus or from `torch.func`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ldpkernels.clipped_noise import ClippedInfo, Clipping, NoiseKind, clipped_noised_mean
from ldpkernels.keys import Generator

if TYPE_CHECKING:
    import torch


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
) -> ClippedInfo:
    """Clip every sample's gradient to norm C, add them, add noise of deviation C * sigma once, and step.

    For a Poisson sample with rate q of n samples, one step is a Poisson-subsampled Gaussian mechanism with noise
    multiplier sigma with respect to adding or removing a sample; `ldpkernels.accounting` composes steps. A sample whose
    gradient holds NaN or Inf is left out. `p.grad` is replaced, and stays for an optimizer of your own (None here).

    Args:
        model: A module; its trainable parameters get the gradient. With Opacus, its `GradSampleModule`.
        optimizer: Any torch optimizer, stepped at the end.
        C, sigma, generator, noise, clipping: As in `ldpkernels.clipped_noised_mean`.
        batch_size: The expected size of a batch, q * n: the size of this one is private.
        grads: [B, ...] for every trainable parameter by name, as `torch.func.vmap(torch.func.grad(...))` returns them.
            None takes each parameter's `grad_sample`, which Opacus fills in, and clears it.

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

    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError("model has no trainable parameters: there is nothing to step")
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
    for name, p in named.items():
        p.grad = out[name].to(p.dtype)
        if grads is None:
            p.grad_sample = None  # type: ignore[attr-defined]
    if optimizer is not None:
        optimizer.step()
    return info  # type: ignore[no-any-return]


def _grad_samples(named: Mapping[str, Any]) -> dict[str, Any]:
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


def _matched(named: Mapping[str, Any], grads: Mapping[str, Any]) -> dict[str, Any]:
    missing, unknown = named.keys() - grads.keys(), grads.keys() - named.keys()
    if missing or unknown:
        wrong = f"no {min(missing)!r}" if missing else f"{min(unknown)!r}, which is no trainable parameter"
        raise ValueError(f"grads has {wrong}: pass one gradient for each trainable parameter, by its name")
    return {name: grads[name] for name in named}
