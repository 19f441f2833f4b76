# SPDX-License-Identifier: Apache-2.0
"""What the commands of `ldpkernels fl` share when they run."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ldpkernels.commands import options
from ldpkernels.common.arguments import is_name
from ldpkernels.common.keys import key
from ldpkernels.common.plot import new_figure, save
from ldpkernels.federated import data, networks, own, training, workers
from ldpkernels.federated.training import Crew


@dataclass(frozen=True)
class Federation:
    """A dataset on its device, the network's architecture and initial weights, and the clients."""

    dataset: data.Dataset
    network: nn.Module
    clients: list[training.Client]

    @property
    def weights(self) -> int:
        """The number of weights that the network trains."""
        return sum(p.numel() for p in self.network.parameters() if p.requires_grad)

    @property
    def test(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The test examples and their labels."""
        return self.dataset.test_x, self.dataset.test_y

    def accuracy(self, weights: training.Weights, workers: Crew | None = None) -> float:
        """The accuracy of these weights on the test examples."""
        return training.accuracy(self.network, weights, *self.test, workers=workers)


def settings(args: argparse.Namespace) -> argparse.Namespace:
    """What `prepared` reads of the options, and nothing else: another process makes the same of it."""
    names = ("dataset", "data", "model", "clients", "skew", "uneven", "seed", "threads", "device")
    return argparse.Namespace(**{name: getattr(args, name) for name in names})


def prepared(args: argparse.Namespace, network: str) -> Federation:
    """The dataset, network and clients of the options, on their device."""
    args = settings(args)
    device = options.device(args.device)
    torch.set_num_threads(args.threads)
    model = own.network(network, args.seed) if args.model else networks.network(network, args.seed)
    dataset = own.named(args.data) if is_name(args.data) else data.load(args.dataset, args.data)
    parts = data.deal(dataset.train_y, args.clients, args.seed, skew=args.skew, uneven=args.uneven)
    moved = {name: getattr(dataset, name).to(device) for name in ("train_x", "train_y", "test_x", "test_y")}
    dataset = dataclasses.replace(dataset, **moved)
    clients = training.clients_of(dataset.train_x, dataset.train_y, parts, key(args.seed))
    return Federation(dataset, model.to(device), clients)


def local_of(args: argparse.Namespace) -> training.Local:
    """The clients' training, as the options have it."""
    epochs, batch, rate = (
        given if given is not None else default
        for given, default in zip((args.epochs, args.batch, args.rate), args.training, strict=True)
    )
    together = None if args.together is None else args.together == "yes"
    return training.Local(epochs, batch, rate, together, args.buffers)


@contextlib.contextmanager
def hired(args: argparse.Namespace, federation: Federation, local: training.Local, busy: int) -> Iterator[Crew | None]:
    """Workers for the clients, of whom so many are busy in a round; None where one process does as well.

    It does where all clients train in one tensor, which they do if they have equally many examples.
    """
    together = training.trains_together(federation.network, training.weights_of(federation.network), local)
    together = together and len({len(client.data[1]) for client in federation.clients}) == 1
    count = min(args.workers or workers.available(args.threads), busy)
    if together or count == 1 or options.device(args.device).type != "cpu":
        yield None
    else:
        with training.crew(federation.network, federation.clients, count, args.threads, federation.test) as crew:
            yield crew


def of_seed(seed: int) -> str:
    """What an epsilon of a run is worth, in words."""
    return f"A simulation: all noise follows from seed {seed}, and hides nothing from whoever knows it."


def draw_accuracy(path: str | Path, curves: Mapping[str, Sequence[float]], title: str) -> None:
    """Accuracy over rounds, one line for each name; what has no noise is grey."""
    figure, (axis,) = new_figure(1, 1, width=6.4, height=4)
    for (name, values), mark in zip(curves.items(), "os^", strict=False):
        rounds, percent = range(1, len(values) + 1), [100 * v for v in values]
        if name == "no noise":
            axis.plot(rounds, percent, label=name, ls="--", color="0.55", zorder=1)
        else:
            axis.plot(rounds, percent, label=name, marker=mark, ms=5)
    axis.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 102), title=title)
    axis.legend(frameon=False, loc="lower right")
    save(figure, path)
