# SPDX-License-Identifier: Apache-2.0
"""Private training inside a silo: Poisson batches, clipped by example, noised, and counted first."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ldpkernels.accounting import Ledger, PrivacyResult, SampledGaussianEvent
from ldpkernels.calls.dp_sgd import check_trained, dp_sgd_step
from ldpkernels.common import arguments

if TYPE_CHECKING:
    import torch

    Weights: TypeAlias = dict[str, torch.Tensor]

_BITS = 53
logger = logging.getLogger("ldpkernels.trainers")


def train_privately(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., torch.Tensor],
    data: Sequence[torch.Tensor],
    ledger: Ledger,
    *,
    steps: int,
    q: float,
    C: float,
    sigma: float,
    batch_size: float,
    generator: Literal["secure"] | torch.Generator = "secure",
) -> PrivacyResult:
    """Take steps of DP-SGD on a silo's data, once its ledger has counted them all.

    The ledger refuses a run past its budget before anything is computed. What it counts holds for one example, added or
    removed, against whoever sees the model after each step, the federation's server included. The "trusted server" of
    the result's words is the silo itself. It is no guarantee for a person with several examples, nor for the silo. No
    loss and no accuracy is returned: they would leave without noise. **A gradient that fails counts as zero**,
    as an error would be an exact bit about it; the silo's log says so. What fails for an example of zeros, as a wrong
    shape does, is refused before the ledger is asked. The noise is proved in real arithmetic, and drawn
    in floats.

    Args:
        model: A module whose layers don't mix the samples of a batch.
        optimizer: A torch optimizer that needs no closure.
        loss: `loss(output, *rest)` of a batch of one example: a number.
        data: Tensors with the same number of rows: the model's input, and what the loss takes besides.
        ledger: The silo's own, kept over all runs. Runs of another q or sigma need one of method="rdp".
        steps: How many steps.
        q: The probability with which an example is in a batch.
        C, sigma: The norm to clip to, and the noise multiplier of a step.
        batch_size: The divisor of a sum: a public number near q times the number of examples.
        generator: Where batches and noise come from. A `torch.Generator` makes a run repeatable, and is for tests.

    Returns:
        What the ledger has spent, this run included.

    >>> import torch
    >>> from ldpkernels.accounting import Ledger
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> ledger = Ledger(None, epsilon=3.0, delta=1e-5)
    >>> x, y = torch.randn(50, 2), torch.randn(50, 1)
    >>> spent = train_privately(model, optimizer, torch.nn.functional.mse_loss, (x, y), ledger,
    ...                         steps=3, q=0.1, C=1.0, sigma=2.0, batch_size=5)
    >>> 0 < spent.epsilon < 3
    True
    """
    import torch

    steps = arguments.count("steps", steps)
    event = SampledGaussianEvent(sigma, q)
    C, batch_size = arguments.positive("C", C), arguments.positive("batch_size", batch_size)
    if not data or len({len(part) for part in data}) != 1:
        raise ValueError(f"data has {[len(part) for part in data]} rows: pass tensors with one row for each example")
    if generator != "secure" and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator is a {type(generator).__name__}: pass 'secure' or a torch.Generator")
    rows = len(data[0])
    check_trained(model, optimizer)

    def of_one(weights: dict[str, torch.Tensor], *example: torch.Tensor) -> torch.Tensor:
        x, *rest = (part.unsqueeze(0) for part in example)
        return loss(torch.func.functional_call(model, weights, (x,)), *rest)

    by_example = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, *(0 for _ in data)), randomness="different")

    def trained() -> Weights:
        return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    by_example(trained(), *(torch.zeros_like(part[:1]) for part in data))  # what no example can have is refused here
    ledger.spend(event, times=steps)
    for _ in range(steps):
        drawn = _sample(rows, event.q, generator)
        chosen = drawn.nonzero().flatten()
        batch = [part[chosen.to(part.device)] for part in data]
        grads = _gradients(by_example, trained(), batch)
        dp_sgd_step(model, optimizer, C, sigma, batch_size=batch_size, grads=grads, generator=generator)
    return ledger.result


def _gradients(by_example: Callable[..., Weights], weights: Weights, batch: Sequence[torch.Tensor]) -> Weights:
    """The gradient of each example; of one that fails it is zero, as an error would tell that it is there."""
    import torch

    none = {name: p.new_zeros((0, *p.shape)) for name, p in weights.items()}
    if not len(batch[0]):
        return none
    try:
        return by_example(weights, *batch)
    except Exception:
        logger.exception("a batch fails: its examples are taken one by one, and those that fail count as zero")
    found = [none]
    for one in zip(*(part.split(1) for part in batch), strict=True):
        try:
            found.append(by_example(weights, *one))
        except Exception:
            found.append({name: torch.zeros_like(p).unsqueeze(0) for name, p in weights.items()})
    return {name: torch.cat([one[name] for one in found]) for name in weights}


def _sample(rows: int, q: float, generator: Literal["secure"] | torch.Generator) -> torch.Tensor:
    """Which rows are in a batch, each by a draw of its own, with a probability of q or less by 2^-53."""
    import torch

    below = int(q * 2**_BITS)
    if isinstance(generator, torch.Generator):
        return (torch.randint(2**_BITS, (rows,), generator=generator, device=generator.device) < below).cpu()
    words = np.frombuffer(os.urandom(8 * rows), dtype=np.uint64) >> np.uint64(64 - _BITS)
    return torch.from_numpy(words < np.uint64(below))
