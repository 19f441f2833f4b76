# SPDX-License-Identifier: Apache-2.0
"""A round of LDP-FL on MNIST by this package's driver and by Flower's simulation: `python -m benchmarks.rounds_flower`.

The same clients, network and steps (E = 1, B = 10, rate .03), on as many processes of one thread: by the driver, and by
the driver with torch's own steps; by Flower with a client as its tutorials write one (a DataLoader, torch.optim.SGD,
FedAvg, nothing randomised), and by Flower with this package's client, whose uploads are reports. Each in turn, several
times; the first round of each turn is not counted. Needs `pip install ldpkernels[flower]`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import logging
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import ldpkernels
from ldpkernels.federated import data, ldp_fl, networks, training
from ldpkernels.federated.workers import available

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from ldpkernels.flower import engine

CONFIG = ldp_fl.Config(eps=1.0, C=0.0, R=0.075)


def made(folder: str, count: int) -> tuple[nn.Module, list[training.Client]]:
    """The network and the clients."""
    mnist = data.load("mnist", folder)
    parts = data.deal(mnist.train_y, count, 0)
    clients = training.clients_of(mnist.train_x, mnist.train_y, parts, ldpkernels.key(0))
    return networks.network("ldp-fl-cnn", 0), clients


def usual_app(cast: engine.Cast) -> ClientApp:
    """A client as Flower's tutorials have it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, clients = cast.at_hand()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        examples = torch.utils.data.TensorDataset(*clients[int(context.node_config["partition-id"])].data)
        loader = torch.utils.data.DataLoader(examples, batch_size=CONFIG.local.batch, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=CONFIG.local.rate)
        model.train()
        for _ in range(CONFIG.local.epochs):
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        metrics = MetricRecord({"num-examples": len(examples)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def by_driver(
    cast: engine.Cast, count: int, workers: int, rounds: int, *, config: ldp_fl.Config = CONFIG
) -> list[float]:
    """Seconds of each round."""
    network, clients = cast.at_hand()
    state = ldp_fl.init(network, config)
    with training.crew(network, clients, workers) as crew:
        return timed(rounds, lambda: ldp_fl.round_(state, clients, network, config, workers=crew))


def by_flower(cast: engine.Cast, count: int, workers: int, rounds: int) -> list[float]:
    """Flower's own strategy, which calls `evaluate_fn` before the first round and after each."""
    network, _ = cast.at_hand()
    ends: list[float] = []

    def tick(number: int, arrays: ArrayRecord) -> MetricRecord:
        ends.append(time.perf_counter())
        return MetricRecord()

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
    with engine.simulated(usual_app(cast), count, workers=workers) as grid:
        strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=rounds, evaluate_fn=tick)
    return [end - begin for begin, end in itertools.pairwise(ends)]


def by_both(cast: engine.Cast, count: int, workers: int, rounds: int) -> list[float]:
    """The driver with its clients on Flower's nodes."""
    network, clients = cast.at_hand()
    state = ldp_fl.init(network, CONFIG)
    with engine.simulated(engine.client_app(CONFIG, cast), count, workers=workers) as grid:
        uploads = engine.uploads(grid, CONFIG, count)
        return timed(rounds, lambda: ldp_fl.round_(state, clients, network, CONFIG, uploads=uploads))


def timed(rounds: int, action: Callable[[], object]) -> list[float]:
    ends = [time.perf_counter()]
    for _ in range(rounds):
        action()
        ends.append(time.perf_counter())
    return [end - begin for begin, end in itertools.pairwise(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", required=True, help="the folder that torchvision was given as root")
    parser.add_argument("--workers", type=int, default=available(), help="processes of one thread (default: all cores)")
    parser.add_argument("--clients", type=int, default=100, help="default 100")
    parser.add_argument("--turns", type=int, default=3, help="default 3")
    parser.add_argument("--rounds", type=int, default=2, help="that count, of a turn (default 2)")
    args = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    cast = engine.Cast("rounds", functools.partial(made, os.path.abspath(args.data), args.clients))
    torchs = dataclasses.replace(CONFIG, local=dataclasses.replace(CONFIG.local, together=False))
    ways: dict[str, Callable[..., list[float]]] = {
        "the driver": by_driver,
        "the driver, torch's steps": functools.partial(by_driver, config=torchs),
        "Flower, its usual client": by_flower,
        "Flower, this client": by_both,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.turns):
        for name, way in ways.items():
            found[name] += way(cast, args.clients, args.workers, args.rounds + 1)[1:]
    usual = statistics.median(found["Flower, its usual client"])
    for name, seconds in found.items():
        median = statistics.median(seconds)
        print(
            f"{name:25s} {median:6.2f} s a round ({min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)} rounds), "
            f"{usual / median:5.2f} times Flower's speed"
        )


if __name__ == "__main__":
    main()
