# SPDX-License-Identifier: Apache-2.0
"""A round on MNIST by this package's driver, by Flower's simulation or by pfl-research, on the same clients and steps.

    python -m benchmarks.rounds --data DIR                  # LDP-FL with different numbers of workers
    python -m benchmarks.rounds --data DIR --by flower      # needs `pip install ldpkernels[flower]`
    torchrun --nproc-per-node 4 -m benchmarks.rounds --data DIR --by pfl    # in an environment with `pip install pfl`

By the driver: the time of a round, the share of it that local training alone takes with as many workers, and the
processor time that the server's process spends on it: what a busy machine leaves unclear, this tells. By Flower: the
driver, the driver with torch's own steps, a client as Flower's tutorials write one (a DataLoader, torch.optim.SGD,
FedAvg, nothing randomised), and this package's client, whose uploads are reports. By pfl: FedAvg, nothing randomised;
it spreads a round's users over torchrun's processes. Ways take turns, and the first round of each turn is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ldpkernels
from ldpkernels.federated import data, ldp_fl, networks, training
from ldpkernels.federated.workers import available

CONFIG = ldp_fl.Config(eps=1.0, C=0.0, R=0.075)


def made(folder: str, count: int) -> tuple[nn.Module, list[training.Client]]:
    """The network and the clients."""
    mnist = data.load("mnist", folder)
    parts = data.deal(mnist.train_y, count, 0)
    clients = training.clients_of(mnist.train_x, mnist.train_y, parts, ldpkernels.key(0))
    return networks.network("ldp-fl-cnn", 0), clients


def seconds(action: Callable[[], object]) -> tuple[float, float]:
    """What an action takes: of the clock, and of the processor in this process."""
    clock, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - clock, time.process_time() - processor


def with_workers(args: argparse.Namespace) -> None:
    """LDP-FL's round with each number of workers, in turn."""
    network, clients = made(args.data, args.clients)
    state = ldp_fl.init(network, CONFIG)
    rounds: dict[int, list[tuple[float, float]]] = {count: [] for count in args.workers}
    alone: dict[int, list[tuple[float, float]]] = {count: [] for count in args.workers}
    with contextlib.ExitStack() as stack:
        crews = {n: stack.enter_context(training.crew(network, clients, n)) for n in args.workers}
        for _ in range(args.rounds + 1):
            for n, crew in crews.items():
                rounds[n].append(seconds(lambda: ldp_fl.round_(state, clients, network, CONFIG, workers=crew)))  # noqa: B023
                local = training.train(network, state.weights, clients, CONFIG.local, 0, workers=crew)
                alone[n].append(seconds(lambda: list(local)))  # noqa: B023
    for n in args.workers:
        first, whole, local_alone = (
            statistics.median(clock for clock, _ in times[1:])
            for times in (rounds[args.workers[0]], rounds[n], alone[n])
        )
        server = statistics.median(processor for _, processor in rounds[n][1:])
        print(
            f"{n:3d} workers: {whole:6.2f} s a round, {first / whole:4.2f} times as fast, training alone "
            f"{local_alone:6.2f} s ({local_alone / whole:.0%}), server's processor time {server:4.2f} s"
        )


def by_driver(cast: Any, count: int, workers: int, rounds: int, *, config: ldp_fl.Config = CONFIG) -> list[float]:
    """Seconds of each round of the driver alone."""
    network, clients = cast.at_hand()
    state = ldp_fl.init(network, config)
    with training.crew(network, clients, workers) as crew:
        return [seconds(lambda: ldp_fl.round_(state, clients, network, config, workers=crew))[0] for _ in range(rounds)]


def by_flower(cast: Any, count: int, workers: int, rounds: int) -> list[float]:
    """Seconds of each round of Flower's own strategy, which calls `evaluate_fn` before the first and after each."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from ldpkernels.flower import engine

    network, _ = cast.at_hand()
    app, ends = ClientApp(), list[float]()

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

    def tick(number: int, arrays: ArrayRecord) -> MetricRecord:
        ends.append(time.perf_counter())
        return MetricRecord()

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
    with engine.simulated(app, count, workers=workers) as grid:
        strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=rounds, evaluate_fn=tick)
    return [end - begin for begin, end in itertools.pairwise(ends)]


def by_both(cast: Any, count: int, workers: int, rounds: int) -> list[float]:
    """Seconds of each round of the driver with its clients on Flower's nodes."""
    from ldpkernels.flower import engine

    network, clients = cast.at_hand()
    state = ldp_fl.init(network, CONFIG)
    with engine.simulated(engine.client_app(CONFIG, cast), count, workers=workers) as grid:
        uploads = engine.uploads(grid, CONFIG, count)
        return [
            seconds(lambda: ldp_fl.round_(state, clients, network, CONFIG, uploads=uploads))[0] for _ in range(rounds)
        ]


def beside_flower(args: argparse.Namespace) -> None:
    """The driver and Flower in turn, three times."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ldpkernels.flower import engine

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
    for _ in range(3):
        for name, way in ways.items():
            found[name] += way(cast, args.clients, args.workers[-1], args.rounds + 1)[1:]
    usual = statistics.median(found["Flower, its usual client"])
    for name, times in found.items():
        print(f"{told(name, times)}, {usual / statistics.median(times):5.2f} times Flower's speed")


def by_pfl(args: argparse.Namespace) -> None:
    """FedAvg by pfl-research."""
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import get_framework_module, set_framework_module
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.budget.peers import Model

    class Clock(TrainingProcessCallback):
        """When each round ended."""

        ends: list[float] = []  # noqa: RUF012

        def after_central_iteration(self, aggregate: Metrics, model: object, *, central_iteration: int) -> Any:
            self.ends.append(time.perf_counter())
            return False, Metrics()

    set_framework_module(pytorch_ops)
    network, clients = made(args.data, args.clients)
    users = {str(i): client.data for i, client in enumerate(clients)}

    def user(name: str) -> Dataset:
        x, y = users[name]
        order = torch.randperm(len(y))
        return Dataset(raw_data=[x[order], y[order]], user_id=name)

    np.random.seed(0)  # noqa: NPY002  # pfl's samplers draw from it, alike in every process
    sampled = FederatedDataset(user, get_user_sampler("minimize_reuse", list(users)))
    module = Model(network)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(args.rounds + 1, 10**9, args.clients, None),
        SimulatedBackend(sampled, None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.03, local_batch_size=10),
        callbacks=[Clock()],
    )
    context = get_framework_module().distributed
    if context.global_rank == 0:
        times = [end - begin for begin, end in itertools.pairwise(Clock.ends)]
        print(told(f"pfl-research, {context.world_size} processes", times))


def told(name: str, times: list[float]) -> str:
    """A line of rounds."""
    span = f"{min(times):.2f} to {max(times):.2f}, {len(times)} rounds"
    return f"{name:25s} {statistics.median(times):6.2f} s a round ({span})"


WAYS = {"driver": with_workers, "flower": beside_flower, "pfl": by_pfl}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", required=True, help="the folder that torchvision was given as root")
    parser.add_argument("--by", choices=WAYS, default="driver", help="default: %(default)s")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, available()], help="default: 1 and all cores")
    parser.add_argument("--rounds", type=int, default=2, help="rounds that count (default 2)")
    parser.add_argument("--clients", type=int, default=100, help="default 100")
    args = parser.parse_args()
    torch.set_num_threads(1)
    WAYS[args.by](args)


if __name__ == "__main__":
    main()
