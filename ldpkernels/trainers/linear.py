# SPDX-License-Identifier: Apache-2.0
"""Clipped sums of people's gradients without the gradients, for chains of linear layers ("ghost norms").

A linear layer's gradient by a row is g a^T, of what came in and what came back. So the squared norm of a person's sum
over rows is the sum of (g_r . g_s)(a_r . a_s + 1) over pairs of its rows, and the clipped sum of all people one product
of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.modules import module as everywhere

HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
ROUNDING = 2.0**-32  # of the longest that a person's gradient can be, squared: more than fp64 loses in products
BELOW = 1 - 2.0**-20  # of C: more than rounding a clipped row to fp32 adds
APART = (
    torch.nn.Linear, torch.nn.Sequential, torch.nn.Flatten, torch.nn.Identity, torch.nn.AvgPool2d, torch.nn.MaxPool2d,
    torch.nn.ReLU, torch.nn.Tanh, torch.nn.Sigmoid, torch.nn.GELU, torch.nn.SiLU, torch.nn.ELU, torch.nn.LeakyReLU,
)  # fmt: skip  # what keeps the rows of a batch apart


def is_chain(model: torch.nn.Module) -> bool:
    """Whether a model is made of linear layers, with weights of their own, and of what has none."""
    modules = list(model.modules())
    own = sum(len(list(one.parameters(recurse=False))) for one in modules)
    hooked = any(getattr(everywhere, f"_global_{hooks}", None) for hooks in HOOKS)
    hooked |= any(p._backward_hooks for p in model.parameters())
    return not hooked and all(map(_is_plain, modules)) and own == len(list(model.parameters()))


def _is_plain(one: torch.nn.Module) -> bool:
    """Whether a layer does what its class does, to a copy of what came in."""
    changed = "forward" in vars(one) or any(getattr(one, f"_{hooks}") for hooks in HOOKS)
    return type(one) in APART and not changed and not getattr(one, "inplace", False)


def clipped_sum(
    model: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    parts: Sequence[torch.Tensor],
    whose: torch.Tensor,
    people: int,
    C: float,
) -> dict[str, torch.Tensor] | None:
    """The sum of people's gradients in fp64, each of the mean loss of its rows and clipped to norm C, by parameter.

    None where a layer gets anything but a vector for each row, once.
    """
    seen: list[tuple[str, torch.nn.Linear, torch.Tensor, torch.Tensor]] = []

    def watch(name: str, layer: torch.nn.Linear) -> Callable[..., None]:
        return lambda _, inputs, output: seen.append((name, layer, inputs[0].detach(), output))

    layers = [(name, one) for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)]
    trained = [(name, one) for name, one in layers if any(p.requires_grad for p in one.parameters())]
    handles = [one.register_forward_hook(watch(name, one)) for name, one in trained]
    try:
        with torch.enable_grad():
            output = model(parts[0])
    finally:
        for handle in handles:
            handle.remove()
    if len(seen) != len(trained) or any(a.ndim != 2 or len(a) != len(whose) for _, _, a, _ in seen):
        return None

    def of_one(out: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return loss(out.unsqueeze(0), *(part.unsqueeze(0) for part in rest))

    whose = whose.to(output.device)
    counts = whose.bincount(minlength=people)
    losses = torch.func.vmap(of_one, randomness="different")(output, *parts[1:])
    backs = torch.autograd.grad((losses / counts.to(losses.dtype)[whose]).sum(), [out for *_, out in seen])
    made = [(name, layer, a.double(), g.double()) for (name, layer, a, _), g in zip(seen, backs, strict=True)]
    square = longest = torch.zeros(people, dtype=torch.float64, device=whose.device)
    for _, layer, a, g in made:
        in_pairs, alone = _pairs(layer, a, g, whose, counts)
        square, longest = square + in_pairs, longest + alone
    norm = (square + ROUNDING * longest.square()).clamp(min=0).sqrt()
    C *= BELOW
    finite = norm.isfinite()
    scale = torch.where(norm <= C, 1.0, C / norm).where(finite, 0.0)[whose, None]
    kept = None if bool(finite.all()) else finite[whose, None]
    found = {}
    for name, layer, a, g in made:
        if kept is not None:  # what is no number is none times zero either
            a, g = a.where(kept, 0.0), g.where(kept, 0.0)
        scaled = g * scale
        prefix = f"{name}." if name else ""
        if layer.weight.requires_grad:
            found[f"{prefix}weight"] = scaled.T @ a
        if layer.bias is not None and layer.bias.requires_grad:
            found[f"{prefix}bias"] = scaled.sum(0)
    return found


def _pairs(
    layer: torch.nn.Linear, a: torch.Tensor, g: torch.Tensor, whose: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The squared norm of each person's gradient in a layer, and the sum of its rows' norms."""
    people, most = len(counts), int(counts.max())

    def products(x: torch.Tensor) -> torch.Tensor:
        if most == 1:
            return x.square().sum(1)[:, None, None]
        rows = x.new_zeros((people, most, x.shape[1]))
        rows[whose, torch.arange(len(whose), device=whose.device) - torch.searchsorted(whose, whose)] = x
        return rows @ rows.transpose(1, 2)

    bias = layer.bias is not None and layer.bias.requires_grad
    inner = (products(a) if layer.weight.requires_grad else 0.0) + float(bias)
    pairs = products(g) * inner
    return pairs.sum((1, 2)), pairs.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt().sum(1)
