# SPDX-License-Identifier: Apache-2.0
"""What LDP-Fed is compared with: federated learning without privacy, alone, under DP-SGD, and with secure sums.

- "non-private": the server averages the selected participants' updates.
- "local": every participant trains alone; the accuracy is their mean.
- "smc": non-private, with updates as integers of rho digits, as a secure sum takes them (ldpkernels.secure_sums).
- "dpsgd": every participant trains by DP-SGD (`private_sgd`).
- "hybrid-one": DP-SGD with noise smaller by sqrt(k), summed as in "smc" (Truex and others, AISec 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from benchmarks.papers import private_sgd
from benchmarks.papers.private_sgd import PrivateSteps
from ldpkernels.federated import training
from ldpkernels.federated.checks import initial_weights
from ldpkernels.federated.cldp_upload import integers_of
from ldpkernels.federated.ldp_fed import State, add, difference
from ldpkernels.federated.runs import Row
from ldpkernels.federated.selection import select
from ldpkernels.federated.training import Client, Crew, Local, Weights
from ldpkernels.federated.weighing import Mean

METHODS = ("non-private", "local", "smc", "dpsgd", "hybrid-one")


@dataclass(frozen=True)
class Config:
    """What server and participants agree on; what is not named below is as in `ldp_fed.Config`.

    `rho` is the digits of "smc" and "hybrid-one"; `C` and `sigma` are the clipping norm and the noise multiplier of the
    two with DP-SGD.
    """

    method: str
    select: int | None = None
    rho: int = 10
    C: float = 1.0
    sigma: float = 1.0
    local: Local = field(default_factory=Local)
    seed: int = 0

    def private(self, clients: int) -> PrivateSteps:
        """A participant's steps in a round of so many."""
        shared = math.sqrt(clients) if self.method == "hybrid-one" else 1.0
        return PrivateSteps(self.local, self.C, self.sigma / shared)


def init(network: nn.Module, config: Config, clients: Sequence[Client]) -> State:
    """The initial weights; for "local", stacked, as every participant goes its own way."""
    weights = initial_weights(network, config.local)
    if config.method == "local":
        weights = {name: w.expand(len(clients), *w.shape).clone() for name, w in weights.items()}
    return State(0, weights)


def round_(
    state: State, clients: Sequence[Client], network: nn.Module, config: Config, *, workers: Crew | None = None
) -> tuple[State, Row]:
    """One round: train the selected participants and add the mean of their updates.

    With `workers` (`training.crew`) participants train beside each other.
    """
    if config.method == "local":
        common = state.weights, config.local, state.round
        own = list(_each(train_alone, common, network, clients, workers))
        return State(state.round + 1, {n: torch.stack([w[n] for w in own]) for n in state.weights}), {"clients": 0}
    chosen, names = select(clients, config.select, config.seed, state.round), list(state.weights)
    if config.method in ("dpsgd", "hybrid-one"):
        private = state.weights, config.private(len(chosen)), state.round
        trained = _each(_train_privately, private, network, chosen, workers)
    else:
        found = training.train(network, state.weights, chosen, config.local, state.round, workers=workers)
        trained = (after for _, after in found)
    updates = (difference(after, state.weights, names) for after in trained)
    if config.method in ("smc", "hybrid-one"):
        mean = _secure_mean(list(updates), config.rho)
    else:
        plain = Mean()
        for update in updates:
            plain.add(update)
        mean = plain.mean()
    return State(state.round + 1, add(state.weights, mean)), {"clients": len(chosen)}


def accuracy(network: nn.Module, state: State, config: Config, x: torch.Tensor, y: torch.Tensor) -> float:
    """The accuracy of the weights; for "local", the mean of the participants'."""
    if config.method != "local":
        return training.accuracy(network, state.weights, x, y)
    count = len(next(iter(state.weights.values())))
    alone = [{name: w[i] for name, w in state.weights.items()} for i in range(count)]
    return sum(training.accuracy(network, weights, x, y) for weights in alone) / count


def honest_epsilon(clients: Sequence[Client], config: Config, rounds: int, delta: float = 1e-5) -> float:
    """What an example of the participant that loses most does, to whoever sees what is sent; all have equally many.

    Neighbours: one example added or removed, which is to say zeros in its place, since the number of examples that
    batches and weights follow from is public. For an example replaced by another it is no bound.

    The choice of participants depends on no data, so that each may count its own rounds. "smc" and "non-private" add no
    noise: infinite. For "hybrid-one" a participant's own noise is counted and no more: the noises of k participants add
    up in the sum of one step's gradients, but they are put into several steps each, along different weights.
    """
    if config.method == "local":
        return 0.0
    if config.method in ("non-private", "smc"):
        return math.inf
    rounds_of = dict.fromkeys((client.id for client in clients), 0)
    least = math.inf
    for round_ in range(rounds):
        chosen = select(clients, config.select, config.seed, round_)
        least = min(least, config.private(len(chosen)).sigma)
        for client in chosen:
            rounds_of[client.id] += 1
    private = replace(config.private(1), sigma=least)
    (examples,) = {len(client.data[1]) for client in clients}
    return private_sgd.honest_epsilon(private, examples, max(rounds_of.values()), delta)


def train_alone(shared: training.Shared, common: tuple[Weights, Local, int], place: int) -> Weights:
    """A participant that goes its own way, whose weights have its place in the stack."""
    network, clients, _ = shared
    stacked, local, round_ = common
    alone = {name: w[place] for name, w in stacked.items()}
    return next(training.train(network, alone, [clients[place]], local, round_))[1]


def _train_privately(shared: training.Shared, common: tuple[Weights, PrivateSteps, int], place: int) -> Weights:
    """A participant's DP-SGD."""
    network, clients, _ = shared
    weights, private, round_ = common
    return private_sgd.train(network, weights, clients[place], private, round_)


def _each(
    task: Callable[[training.Shared, Any, int], Weights],
    common: Any,
    network: nn.Module,
    clients: Sequence[Client],
    workers: Crew | None,
) -> Iterable[Weights]:
    """What a task gives for each of these participants, in their order."""
    if workers is not None:
        return workers.map(task, common, training.places(workers, network, clients))
    shared = training.Shared(network, list(clients))
    return (task(shared, common, i) for i in range(len(clients)))


def _secure_mean(updates: Sequence[Weights], rho: int) -> Weights:
    """The mean of integers of rho digits, of which a secure sum would tell the server no more than this."""
    total, most = None, (2**63 - 1) // len(updates)  # so that no sum passes 63 bits
    for update in updates:
        flat = torch.cat([w.reshape(-1) for w in update.values()])
        if float(flat.abs().max()) * 10.0**rho > most:
            raise ValueError(f"rho={rho} leaves no room for a sum of {len(updates)} updates in 63 bits: lower it")
        integers = integers_of(flat, min(most, 2**62), rho)
        total = integers if total is None else total + integers
    assert total is not None
    parts = (total.double() / (len(updates) * 10.0**rho)).split([w.numel() for w in updates[0].values()])
    return {name: part.reshape(w.shape) for (name, w), part in zip(updates[0].items(), parts, strict=True)}
