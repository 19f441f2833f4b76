# SPDX-License-Identifier: Apache-2.0
"""Private training inside a silo: Poisson batches of people, clipped by person, noised, and counted first."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

import torch
import torch.distributed as dist

from ldpkernels.accounting import SILO, SUMMED, GaussianEvent, Ledger, PrivacyResult, Relation, Scope, Unit
from ldpkernels.calls.clipped_noise import clipped_noised_sum
from ldpkernels.calls.dp_sgd import check_trained, dp_sgd_step
from ldpkernels.common import arguments
from ldpkernels.distributed import mean
from ldpkernels.distributed.shares import check_ranks
from ldpkernels.laws.distributed import DistributedGaussian
from ldpkernels.planning.calibration import summed
from ldpkernels.trainers.linear import clipped_sum, is_chain
from ldpkernels.trainers.people import Source, check_source, means, people_of

Loss: TypeAlias = Callable[..., torch.Tensor]
Weights: TypeAlias = dict[str, torch.Tensor]
LONG = 2.0**30  # times C is more than any sum
logger = logging.getLogger("ldpkernels.trainers")
AT_ONCE = 1024  # records whose metrics are computed together


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

    The ledger refuses a run past its budget before the first step. Its epsilon protects one example, or with `persons`
    one person with all records: added or removed, against whoever sees the model after each step, the federation's
    server included. It does not protect the silo as a whole. No loss and no accuracy is returned, as they would leave
    without noise: use `measure_privately`. **A gradient that fails counts as zero**, because an error would be an exact
    bit about it; the silo's log has the error. What fails even for an example of zeros, such as a wrong shape, is
    refused before the ledger is asked. The noise is proved in real arithmetic, and drawn in floats.

    With `shares`, the silos of a process group of torch.distributed train one model together, by a masked sum in every
    step (`ldpkernels.distributed.mean`). Each silo adds a share of the noise, and the guarantee is against whoever sees
    the sums, if `shares.clients` other silos follow the protocol. All silos start from the same model and pass the same
    numbers.

    Args:
        model: A module whose layers do not mix the samples of a batch.
        optimizer: A torch optimizer that needs no closure.
        loss: `loss(output, *rest)` of a batch of one example: a number.
        data: Tensors with the same number of rows: the model's input, and the other arguments of the loss.
        ledger: The silo's own, kept over all runs.
        steps: How many steps.
        q: The probability with which an example, or a person, is in a batch.
        C, sigma: The norm to clip to, and the noise multiplier of a step.
        batch_size: The divisor of a sum: a public number near q times the number of examples or persons, of all silos
            with `shares`.
        persons: Whose record each row is, as integers. A person is in a batch with all records, and the gradient of
            their mean loss is clipped. None takes each row for a person of its own.
        most: The most records of a person in a step; if there are more, so many are drawn in each step.
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
    silos = 1 if shares is None else _silos(shares, sigma, C, model)

    def of_one(weights: Weights, *example: torch.Tensor) -> torch.Tensor:
        x, *rest = (part.unsqueeze(0) for part in example)
        return loss(torch.func.functional_call(model, weights, (x,)), *rest)

    by_example = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, *(0 for _ in data)), randomness="different")
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    by_example(weights, *(torch.zeros_like(part[:1]) for part in data))  # what no example can have is refused here
    chain = is_chain(model)
    exact = chain or shares is not None
    noise = sigma if shares is None else 0.0  # that of shares is in their mean
    of_grads, of_sum = (C, noise), (C * LONG, noise / LONG)  # the same noise; a sum, which is one row, stays as it is
    for bound_and_noise in (of_grads, of_sum) if chain else (of_grads,):
        clipped_noised_sum(_none_of(weights, exact), *bound_and_noise)  # and what no sum can have
    ledger.spend(event, times=steps)
    for step in range(steps):
        rows, whose, count = people.drawn(q, generator)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        weights = {name: p.detach() for name, p in trained.items()}
        parts = [part[rows.to(part.device)] for part in data]
        grads = _none_of(weights, exact)
        total = _sum(model, loss, parts, whose, count, C) if chain and count else None
        if count and total is None:
            grads = {name: means(one, whose, count) for name, one in _gradients(by_example, weights, parts).items()}
        bound_and_noise = of_grads if total is None else of_sum
        if exact:  # in one format, whoever is in the batch: noise and sum are added there, and rounded together
            grads = {name: one.double() for name, one in (grads if total is None else total).items()}
        if shares is None:
            dp_sgd_step(model, None, *bound_and_noise, batch_size=batch_size, grads=grads, generator=generator)
        else:  # a sum that was rounded before its noise would move by more than C where one person is added
            found = _mean_of_silos(clipped_noised_sum(grads, *bound_and_noise, generator=generator), shares, step)
            for name, p in trained.items():
                p.grad = (found[name] * (silos / batch_size)).to(p)
        optimizer.step()
    return ledger.result


def _none_of(weights: Weights, exact: bool) -> Weights:
    """No gradient of any example."""
    return {name: p.new_zeros((0, *p.shape), dtype=torch.float64 if exact else p.dtype) for name, p in weights.items()}


def _sum(
    model: torch.nn.Module, loss: Loss, parts: Sequence[torch.Tensor], whose: torch.Tensor, people: int, C: float
) -> Weights | None:
    """The clipped sum, as one row; None where it has to be made of gradients, or a batch fails."""
    try:
        total = clipped_sum(model, loss, parts, whose, people, C)
        return None if total is None else {name: one.unsqueeze(0) for name, one in total.items()}
    except Exception:
        logger.exception("a batch fails")
        return None


def _gradients(by_example: Callable[..., Weights], weights: Weights, batch: Sequence[torch.Tensor]) -> Weights:
    """The gradient of each example; of one that fails it is zero, as an error would tell that it is there."""
    try:
        return by_example(weights, *batch)
    except Exception:
        logger.exception("a batch fails: its examples are taken one by one, and those that fail count as zero")
    found = []
    for one in zip(*(part.split(1) for part in batch), strict=True):
        try:
            found.append(by_example(weights, *one))
        except Exception:
            found.append({name: torch.zeros_like(p).unsqueeze(0) for name, p in weights.items()})
    return {name: torch.cat([one[name] for one in found]) for name in weights}


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

    The ledger counts all of them as one release: a person's records (without `persons`, an example) are added or
    removed, against whoever sees what leaves the silo. The noise on a mean has a deviation of sigma * most_of_metric *
    sqrt(len(metrics)) / (2 * size).

    Args:
        model: As for `train_privately`.
        metrics: By name, a function `metric(output, *rest)` of a batch of one example, and its upper bound: values are
            clipped to between 0 and that. A person counts with the mean of its records; one with a value that is not a
            number counts half.
        data, persons, most, generator: As for `train_privately`.
        ledger: The silo's own, which training spends from too.
        sigma: The noise multiplier.
        size: The divisor: a public number near the number of persons.

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

    of_each = torch.func.vmap(of_one, randomness="different")
    with torch.no_grad():
        of_each(*(torch.zeros_like(part[:1]) for part in data))  # what no example can have is refused here
        ledger.spend(event)
        rows, whose, count = people.drawn(1.0, generator)
        parts = zip(*(part[rows].split(AT_ONCE) for part in data), strict=True)
        found = torch.cat([_or_none(of_each, one, len(limits)) for one in parts])
        values = means(found, whose, count) / torch.tensor(limits, dtype=torch.float64)
        total = clipped_noised_sum(values.clamp(0, 1) - 0.5, math.sqrt(len(limits)) / 2, sigma, generator=generator)
    return {name: limit * (0.5 + float(one) / size) for name, limit, one in zip(metrics, limits, total, strict=True)}


def _or_none(of_each: Callable[..., torch.Tensor], batch: Sequence[torch.Tensor], metrics: int) -> torch.Tensor:
    """The metrics of each example; of one that fails they are no numbers, as an error would tell that it is there."""
    try:
        return of_each(*batch).cpu()
    except Exception:
        if len(batch[0]) == 1:
            return torch.full((1, metrics), math.nan, dtype=torch.float64)
    return torch.cat([_or_none(of_each, one, metrics) for one in zip(*(part.split(1) for part in batch), strict=True)])


def _of_unit(scope: Scope, persons: torch.Tensor | None) -> Scope:
    return scope.per(Unit.EXAMPLE if persons is None else Unit.PERSON)


def _silos(shares: DistributedGaussian, sigma: float, C: float, model: torch.nn.Module) -> int:
    """How many silos are in a sum, whose noise is what the ledger counts at least."""
    if not isinstance(shares, DistributedGaussian):
        raise TypeError(f"shares is a {type(shares).__name__}: pass a DistributedGaussian, the .law of a plan")
    if not sigma <= shares.multiplier(C):
        raise ValueError(
            f"sigma = {sigma} is more than the {shares.multiplier(C):.5g} of shares for rows of norm C = {C}: pass the"
            " sigma and C that it was planned with"
        )
    weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if weights != shares.dimension:
        raise ValueError(f"shares is a law of {shares.dimension} weights, and {weights} are trained: plan with these")
    silos = dist.get_world_size()
    check_ranks(shares, silos, 0, 0)
    return silos


def _mean_of_silos(sums: Weights, shares: DistributedGaussian, step: int) -> Weights:
    """The mean over the silos of their sums, with all silos' noise."""
    length = float(torch.stack([value.norm() for value in sums.values()]).norm())
    scale = min(1.0, shares.rows_norm / length) if length else 1.0
    return cast("Weights", mean({name: value * scale for name, value in sums.items()}, law=shares, round=step))
