# SPDX-License-Identifier: Apache-2.0
"""Private training inside a silo: Poisson batches of people, clipped by person, noised, and counted first."""

from __future__ import annotations

<<<<<<< HEAD
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast
=======
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias
>>>>>>> main

import torch
import torch.distributed as dist

from ldpkernels.accounting import SILO, SUMMED, GaussianEvent, Ledger, PrivacyResult, Relation, Scope, Unit
from ldpkernels.calls.clipped_noise import clipped_noised_sum
from ldpkernels.calls.dp_sgd import check_trained, dp_sgd_step
from ldpkernels.common import arguments
from ldpkernels.distributed import mean
from ldpkernels.laws.distributed import DistributedGaussian
from ldpkernels.planning.calibration import summed
from ldpkernels.trainers.linear import clipped_sum, is_chain
from ldpkernels.trainers.people import Source, check_source, means, people_of

<<<<<<< HEAD
Loss: TypeAlias = Callable[..., torch.Tensor]
=======
if TYPE_CHECKING:
    import torch

    Weights: TypeAlias = dict[str, torch.Tensor]

_BITS = 53
logger = logging.getLogger("ldpkernels.trainers")
>>>>>>> main


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
    shares: DistributedGaussian | None = None,
    generator: Source = "secure",
) -> PrivacyResult:
    """Take steps of DP-SGD on a silo's data, once its ledger has counted them all.

<<<<<<< HEAD
    The ledger refuses a run past its budget before the first step. What it counts holds for one example, or with
    `persons` for one person with all records of it, added or removed, against whoever sees the model after each step,
    the federation's server included. It is no guarantee for the silo. No loss and no accuracy is returned: they would
    leave without noise, and `measure_privately` adds it. The noise is proved in real arithmetic, and drawn in floats.

    With `shares` the silos of a process group of torch.distributed train one model together, a masked sum in every step
    (`ldpkernels.distributed.mean`). A silo adds a share of the noise, and the guarantee is against whoever sees the
    sums, as long as `shares.clients` silos besides do as they should. All silos start from one model, and pass the same
    numbers.
=======
    The ledger refuses a run past its budget before anything is computed. What it counts holds for one example, added or
    removed, against whoever sees the model after each step, the federation's server included. The "trusted server" of
    the result's words is the silo itself. It is no guarantee for a person with several examples, nor for the silo. No
    loss and no accuracy is returned: they would leave without noise. **A gradient that fails counts as zero**,
    as an error would be an exact bit about it; the silo's log says so. What fails for an example of zeros, as a wrong
    shape does, is refused before the ledger is asked. The noise is proved in real arithmetic, and drawn
    in floats.
>>>>>>> main

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
    >>> spent = train_privately(model, optimizer, torch.nn.functional.mse_loss, (x, y), ledger,
    ...                         persons=patients, most=2, steps=3, q=0.1, C=1.0, sigma=2.0, batch_size=2.5)
    >>> 0 < spent.epsilon < 3
    True
    """
    steps = arguments.count("steps", steps)
    scope = SILO if shares is None else replace(SUMMED, relation=Relation.ADD_REMOVE)
    slack = 0.0 if shares is None else shares.rows_slack
    event = replace(summed(arguments.probability("q", q), sigma), scope=_of_unit(scope, persons), slack=slack)
    C, batch_size = arguments.positive("C", C), arguments.positive("batch_size", batch_size)
    people = people_of(data, persons, most)
    check_source(generator)
    check_trained(model, optimizer)
    once = dict(model.named_modules())
    for name, layer in model.named_modules(remove_duplicate=False):
        if name not in once and any(True for _ in layer.parameters()):
            raise ValueError(f"layer {name!r} ({type(layer).__name__}) is in the model under another name too: copy it")
    silos = 1 if shares is None else _silos(shares, sigma, C)

    def of_one(weights: dict[str, torch.Tensor], *example: torch.Tensor) -> torch.Tensor:
        x, *rest = (part.unsqueeze(0) for part in example)
        return loss(torch.func.functional_call(model, weights, (x,)), *rest)

    by_example = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, *(0 for _ in data)), randomness="different")
<<<<<<< HEAD
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    by_example(weights, *(part[:1] for part in data))  # what it can't differentiate costs no budget
    ledger.spend(event, times=steps)
    chain = is_chain(model)
    for step in range(steps):
        rows, whose, count = people.drawn(q, generator)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        weights = {name: p.detach() for name, p in trained.items()}
        parts = [part[rows.to(part.device)] for part in data]
        grads = {name: p.new_zeros((0, *p.shape)) for name, p in weights.items()}
        total = clipped_sum(model, loss, parts, whose, count, C) if chain and count else None
        if count and total is None:
            grads = {name: means(one, whose, count) for name, one in by_example(weights, *parts).items()}
        noise, divisor = (sigma, batch_size) if shares is None else (0.0, 1.0)  # the noise of shares is in their mean
        dp_sgd_step(model, None, C, noise, batch_size=divisor, grads=grads, generator=generator)
        for name, summed_up in (total or {}).items():
            trained[name].grad += summed_up / divisor  # type: ignore[operator]
        if shares is not None:
            found = _mean_of_silos({name: p.grad for name, p in trained.items()}, shares, step)
            for name, p in trained.items():
                p.grad = (found[name] * (silos / batch_size)).to(p)
        optimizer.step()
    return ledger.result


def measure_privately(
    model: torch.nn.Module,
    metrics: Mapping[str, tuple[Loss, float]],
    data: Sequence[torch.Tensor],
    ledger: Ledger,
    *,
    sigma: float,
    size: float,
    persons: torch.Tensor | None = None,
    most: int = 1,
    generator: Source = "secure",
) -> dict[str, float]:
    """The means of a model's loss, accuracy or the like on a silo's data: clipped, noised, and counted first.
=======

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
>>>>>>> main

    One release of them all, in the ledger: between a run with a person's records (an example, without `persons`) and
    one without, against whoever sees what leaves the silo. The noise on a mean has a deviation of
    sigma * most_of_metric * sqrt(len(metrics)) / (2 * size).

    Args:
        model: As for `train_privately`.
        metrics: By name, a function `metric(output, *rest)` of a batch of one example, and the most that it counts:
            values are clipped to between 0 and that. A person counts with the mean of its records; one with a value
            that is no number counts half.
        data, persons, most, generator: As for `train_privately`.
        ledger: The silo's own, which training spends from too.
        sigma: The noise multiplier.
        size: The divisor: a public number near that of the people.

    >>> import torch
    >>> from ldpkernels.accounting import Ledger
    >>> hit = lambda output, y: (output.argmax(1) == y).float().mean()
    >>> metrics = {"loss": (torch.nn.functional.cross_entropy, 4.0), "accuracy": (hit, 1.0)}
    >>> data, ledger = (torch.randn(900, 2), torch.arange(900) % 2), Ledger(None, epsilon=1.0)
    >>> found = measure_privately(torch.nn.Linear(2, 2), metrics, data, ledger, sigma=10.0, size=900)
    >>> 0.3 < found["accuracy"] < 0.7, ledger.epsilon < 1.0
    (True, True)
    """
    event = GaussianEvent(arguments.positive("sigma", sigma), scope=_of_unit(SILO, persons))
    size, people = arguments.positive("size", size), people_of(data, persons, most)
    limits = [arguments.positive(f"most of {name!r}", limit) for name, (_, limit) in metrics.items()]
    if not limits:
        raise ValueError("metrics is empty: name what to measure")
    check_source(generator)
    check_trained(model)

    def of_one(*example: torch.Tensor) -> torch.Tensor:
        x, *rest = (part.unsqueeze(0) for part in example)
        output = model(x)
        return torch.stack([metric(output, *rest).reshape(()).double() for metric, _ in metrics.values()])

    ledger.spend(event)
    rows, whose, count = people.drawn(1.0, generator)
    with torch.no_grad():
        found = torch.func.vmap(of_one, randomness="different", chunk_size=1024)(*(part[rows] for part in data)).cpu()
        values = means(found, whose, count) / torch.tensor(limits, dtype=torch.float64)
        total = clipped_noised_sum(values.clamp(0, 1) - 0.5, math.sqrt(len(limits)) / 2, sigma, generator=generator)
    return {name: limit * (0.5 + float(one) / size) for name, limit, one in zip(metrics, limits, total, strict=True)}


def _of_unit(scope: Scope, persons: torch.Tensor | None) -> Scope:
    return scope.per(Unit.EXAMPLE if persons is None else Unit.PERSON)


def _silos(shares: DistributedGaussian, sigma: float, C: float) -> int:
    """How many silos are in a sum, whose noise is what the ledger counts at least."""
    if not isinstance(shares, DistributedGaussian):
        raise TypeError(f"shares is a {type(shares).__name__}: pass a DistributedGaussian, the .law of a plan")
    if not sigma <= shares.multiplier(C):
        raise ValueError(
            f"sigma = {sigma} is more than the {shares.multiplier(C):.5g} of shares for rows of norm C = {C}: pass the"
            " sigma and C that it was planned with"
        )
    return dist.get_world_size()


def _mean_of_silos(
    sums: dict[str, torch.Tensor | None], shares: DistributedGaussian, step: int
) -> dict[str, torch.Tensor]:
    """The mean over the silos of their sums, with all silos' noise."""
    own = {name: value for name, value in sums.items() if value is not None}
    length = float(torch.stack([value.double().norm() for value in own.values()]).norm())
    scale = min(1.0, shares.rows_norm / length) if length else 1.0
    found = mean({name: value * scale for name, value in own.items()}, law=shares, round=step)
    return cast("dict[str, torch.Tensor]", found)
