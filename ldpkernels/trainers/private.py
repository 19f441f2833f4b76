# SPDX-License-Identifier: Apache-2.0
"""Private training inside a silo: Poisson batches of people, clipped by person, noised, and counted first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ldpkernels.accounting import SILO, SUMMED, Ledger, PrivacyResult, Relation
from ldpkernels.calls.dp_sgd import check_trained, dp_sgd_step
from ldpkernels.common import arguments
from ldpkernels.laws.distributed import Shares
from ldpkernels.planning.calibration import summed

if TYPE_CHECKING:
    import torch

    Loss: TypeAlias = Callable[..., torch.Tensor]

Source: TypeAlias = "Literal['secure'] | torch.Generator"
_BITS = 53


def train_privately(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    data: Sequence[torch.Tensor],
    ledger: Ledger,
    *,
    steps: int,
    q: float,
    C: float,
    sigma: float,
    batch_size: float,
    persons: torch.Tensor | None = None,
    most: int = 1,
    shares: Shares | None = None,
    generator: Source = "secure",
) -> PrivacyResult:
    """Take steps of DP-SGD on a silo's data, once its ledger has counted them all.

    The ledger refuses a run past its budget before anything is computed. What it counts holds for one example, or with
    `persons` for one person with all records of it, added or removed, against whoever sees the model after each step,
    the federation's server included. It is no guarantee for the silo. No loss and no accuracy is returned: they would
    leave without noise, and `measure_privately` adds it. The noise is proved in real arithmetic, and drawn in floats.

    With `shares` the silos of a process group of torch.distributed train one model together, a masked sum in every step
    (`ldpkernels.distributed.mean`). A silo adds a share of the noise, and the guarantee is against whoever sees the
    sums, as long as `shares.clients` silos besides do as they should. All silos start from one model, and pass the same
    numbers.

    Args:
        model: A module whose layers don't mix the samples of a batch.
        optimizer: A torch optimizer that needs no closure.
        loss: `loss(output, *rest)` of a batch of one example: a number.
        data: Tensors with the same number of rows: the model's input, and what the loss takes besides.
        ledger: The silo's own, kept over all runs.
        steps: How many steps.
        q: The probability with which an example, or a person, is in a batch.
        C, sigma: The norm to clip to, and the noise multiplier of a step.
        batch_size: The divisor of a sum: a public number near q times the number of examples or persons, of all silos
            with `shares`.
        persons: Whose record each row is, as integers. A person is in a batch with all records of it, and what is
            clipped is the gradient of their mean loss. None takes each row for a person of its own.
        most: Of a person with more records, so many are drawn in each step.
        shares: The law of the noise in a sum of all silos, from `plan`.
        generator: Where batches and noise come from. A `torch.Generator` makes a run repeatable, and is for tests.

    Returns:
        What the ledger has spent, this run included.

    >>> import torch
    >>> from ldpkernels.accounting import Ledger
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> ledger = Ledger(None, epsilon=3.0, delta=1e-5)
    >>> x, y, patients = torch.randn(50, 2), torch.randn(50, 1), torch.arange(50) // 2
    >>> spent = train_privately(model, optimizer, torch.nn.functional.mse_loss, (x, y), ledger, persons=patients, most=2,
    ...                         steps=3, q=0.1, C=1.0, sigma=2.0, batch_size=2.5)
    >>> 0 < spent.epsilon < 3
    True
    """
    import torch

    steps = arguments.count("steps", steps)
    scope = SILO if shares is None else replace(SUMMED, relation=Relation.ADD_REMOVE)
    event = replace(summed(arguments.probability("q", q), sigma), scope=_of_unit(scope, persons))
    C, batch_size = arguments.positive("C", C), arguments.positive("batch_size", batch_size)
    people = _people(data, persons, most)
    _check_source(generator)
    check_trained(model, optimizer)
    ranks = 1 if shares is None else _silos(shares, sigma, C)

    def of_one(weights: dict[str, torch.Tensor], *example: torch.Tensor) -> torch.Tensor:
        x, *rest = (part.unsqueeze(0) for part in example)
        return loss(torch.func.functional_call(model, weights, (x,)), *rest)

    by_example = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, *(0 for _ in data)), randomness="different")
    ledger.spend(event, times=steps)
    for step in range(steps):
        rows, whose, people_drawn = people.drawn(q, generator)
        weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        grads = {name: p.new_zeros((people_drawn, *p.shape)) for name, p in weights.items()}
        if len(rows):
            of_rows = by_example(weights, *(part[rows.to(part.device)] for part in data))
            grads = {name: _means(of_rows[name], whose, people_drawn) for name in grads}
        if shares is None:
            dp_sgd_step(model, optimizer, C, sigma, batch_size=batch_size, grads=grads, generator=generator)
            continue
        from ldpkernels.distributed import mean

        dp_sgd_step(model, None, C, 0.0, batch_size=1.0, grads=grads)  # the sum alone, which gets its noise next
        own = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        found = mean(own, law=shares, round=step)  # type: ignore[arg-type]
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.grad = (found[name] * (ranks / batch_size)).to(p)  # type: ignore[index, call-overload]
        optimizer.step()
    return ledger.result
