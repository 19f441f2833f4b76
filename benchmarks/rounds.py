# SPDX-License-Identifier: Apache-2.0
"""A round of LDP-FL on MNIST with different numbers of workers, in turn: `python benchmarks/rounds.py --data DIR`.

Prints the time of a round, the share of it that local training alone takes with as many workers, and the processor time
that the server's process spends on it: what a busy machine leaves unclear, this tells. Ratios are of rounds of one run;
the first round of each is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable

import torch

import ldpkernels
from ldpkernels.federated import data, ldp_fl, networks, training
from ldpkernels.federated.workers import available


def seconds(action: Callable[[], object]) -> tuple[float, float]:
    """Of the clock, and of the processor in this process."""
    clock, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", required=True, help="the folder that torchvision was given as root")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, available()], help="default: 1 and all cores")
    parser.add_argument("--rounds", type=int, default=2, help="rounds that count (default 2)")
    parser.add_argument("--clients", type=int, default=100, help="default 100")
    args = parser.parse_args()
    torch.set_num_threads(1)
    mnist, network = data.load("mnist", args.data), networks.network("ldp-fl-cnn", 0)
    parts = data.deal(mnist.train_y, args.clients, 0)
    clients = training.clients_of(mnist.train_x, mnist.train_y, parts, ldpkernels.key(0))
    config = ldp_fl.Config(eps=1.0, C=0.0, R=0.075)
    state = ldp_fl.init(network, config)
    rounds: dict[int, list[tuple[float, float]]] = {count: [] for count in args.workers}
    alone: dict[int, list[tuple[float, float]]] = {count: [] for count in args.workers}
    with contextlib.ExitStack() as stack:
        crews = {n: stack.enter_context(training.crew(network, clients, n)) for n in args.workers}
        for _ in range(args.rounds + 1):
            for n, crew in crews.items():
                rounds[n].append(seconds(lambda: ldp_fl.round_(state, clients, network, config, workers=crew)))  # noqa: B023
                local = training.train(network, state.weights, clients, config.local, 0, workers=crew)
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


if __name__ == "__main__":
    main()
