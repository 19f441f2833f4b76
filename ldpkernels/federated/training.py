# SPDX-License-Identifier: Apache-2.0
"""What a client does with its own data: some epochs of stochastic gradient descent from the server's weights."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from ldpkernels.keys import Key

Weights = dict[str, torch.Tensor]

# Sub-keys of a client's round: one use each.
BATCHES, NOISE = 0, 1


class Client(NamedTuple):
    """A client: its name, its examples and labels, and the key that all its randomness comes from."""

    id: int
    data: tuple[torch.Tensor, torch.Tensor]
    key: Key

    def round_key(self, round_: int, use: int) -> Key:
        """The key for one use in one round."""
        return self.key.fold_in(2 * round_ + use)


@dataclass(frozen=True)
class Local:
    """How a client trains: E epochs, batches of B, rate gamma.

    `together` trains all clients of a round at once with `torch.func.vmap` over stacked weights, or one after another.
    None takes what was measured to be faster (benchmarks/test_federated.py): together on a GPU and for networks without
    convolutions, whose many small operations cost more to launch than to compute; else one after another.
    """

    epochs: int = 1
    batch: int = 10
    rate: float = 0.03
    together: bool | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not self.rate > 0:
            raise ValueError(f"rate={self.rate} must be above 0")


class Mean:
    """The mean of plain models or updates: a sum in fp64, given in each tensor's own dtype.

    >>> mean = Mean()
    >>> mean.add({"w": torch.tensor([1.0, 2.0])})
    >>> mean.add({"w": torch.tensor([2.0, 4.0])})
    >>> mean.mean()
    {'w': tensor([1.5000, 3.0000])}
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: Weights = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, weights: Weights) -> None:
        """Add one client's."""
        for name, w in weights.items():
            self._sum[name] = self._sum[name] + w.double() if name in self._sum else w.double()
            self._dtypes[name] = w.dtype
        self.count += 1

    def mean(self) -> Weights:
        """Nothing where nothing was added."""
        return {name: (total / self.count).to(self._dtypes[name]) for name, total in self._sum.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of one client's."""
        return sum(total.numel() * self._dtypes[name].itemsize for name, total in self._sum.items())


def weights_of(network: nn.Module) -> Weights:
    """A copy of a network's parameters, by name."""
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def clients_of(x: torch.Tensor, y: torch.Tensor, parts: Sequence[torch.Tensor], key: Key) -> list[Client]:
    """One client for each part of the data, each with a key of its own."""
    return [Client(i, (x[part], y[part]), key.fold_in(i)) for i, part in enumerate(parts)]


def train(
    network: nn.Module,
    weights: Weights,
    clients: Sequence[Client],
    local: Local,
    round_: int,
    *,
    only: Collection[str] | None = None,
) -> Iterator[tuple[Client, Weights]]:
    """Train every client from the same weights; each with what it arrives at, in the order of `clients`.

    `only` names the parameters to train; the others stay as they are. The network gives the architecture alone.
    """
    together = local.together
    if together is None:
        together = _is_faster_together(network, weights)
    sizes = {len(client.data[1]) for client in clients}
    if together and len(sizes) == 1:
        yield from _train_together(network, weights, clients, local, round_, only)
    else:
        for client in clients:
            yield client, _train_one(network, weights, client, local, round_, only)


def batches(client: Client, local: Local, round_: int) -> Iterator[torch.Tensor]:
    """The examples of each step: every epoch goes through the data in a new order."""
    seed = client.round_key(round_, BATCHES).words[0] % 2**63
    generator = torch.Generator().manual_seed(seed)
    for _ in range(local.epochs):
        yield from torch.randperm(len(client.data[1]), generator=generator).split(local.batch)


def accuracy(network: nn.Module, weights: Weights, x: torch.Tensor, y: torch.Tensor, batch: int = 1000) -> float:
    """The fraction of examples that the network puts into their class."""
    correct = 0
    with torch.no_grad():
        for images, labels in zip(x.split(batch), y.split(batch), strict=True):
            correct += int((torch.func.functional_call(network, weights, (images,)).argmax(1) == labels).sum())
    return correct / len(y)


def _is_faster_together(network: nn.Module, weights: Weights) -> bool:
    on_gpu = any(w.is_cuda for w in weights.values())
    return on_gpu or not any(isinstance(m, nn.Conv2d) for m in network.modules())


def _train_one(
    network: nn.Module, weights: Weights, client: Client, local: Local, round_: int, only: Collection[str] | None
) -> Weights:
    model = copy.deepcopy(network)
    model.load_state_dict(weights, strict=False)
    trained = [p.requires_grad_(only is None or name in only) for name, p in model.named_parameters()]
    trained = [p for p in trained if p.requires_grad]
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # small convolutions: 1.3 times faster
    x, y = client.data
    for batch in batches(client, local, round_):
        batch = batch.to(y.device)
        gradients = torch.autograd.grad(F.cross_entropy(model(x[batch]), y[batch]), trained)
        with torch.no_grad():
            torch._foreach_add_(trained, gradients, alpha=-local.rate)
    return {name: p.detach().clone(memory_format=torch.contiguous_format) for name, p in model.named_parameters()}


def _train_together(
    network: nn.Module,
    weights: Weights,
    clients: Sequence[Client],
    local: Local,
    round_: int,
    only: Collection[str] | None,
) -> Iterator[tuple[Client, Weights]]:
    def loss(moving: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(network, {**weights, **moving}, (x,)), y)

    gradient = torch.func.vmap(torch.func.grad(loss))
    names = [name for name in weights if only is None or name in only]
    stacked = {name: weights[name].expand(len(clients), *weights[name].shape).clone() for name in names}
    x = torch.stack([client.data[0] for client in clients])
    y = torch.stack([client.data[1] for client in clients])
    everyone = torch.arange(len(clients), device=y.device).unsqueeze(1)
    for step in zip(*(batches(client, local, round_) for client in clients), strict=True):
        chosen = torch.stack(step).to(y.device)
        gradients = gradient(stacked, x[everyone, chosen], y[everyone, chosen])
        for name in names:
            stacked[name].sub_(gradients[name], alpha=local.rate)
    for i, client in enumerate(clients):
        yield client, {name: stacked[name][i].clone() if name in stacked else weights[name] for name in weights}
