# SPDX-License-Identifier: Apache-2.0
"""`python -m ldpkernels fl ldp-fl`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ldpkernels.commands import federated_options

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")


def add_parser(algorithms: Any) -> None:
    """The command line of `fl ldp-fl`."""
    parser = algorithms.add_parser(
        "ldp-fl",
        help="LDP-FL: every weight perturbed by its client, averaged by the cloud",
        description="LDP-FL (Sun, Qian and Chen, IJCAI 2021), Algorithm 1. eps is the privacy of each weight of an "
        "upload on its own; the table's column of honest eps is what a client of every round loses in all.",
        epilog="example: python -m ldpkernels fl ldp-fl --data DIR --dataset mnist --clients 100 --eps 1 --radius .075",
    )
    federated_options.add_run(parser, datasets=DATASETS, clients=100, rounds=10)
    parser.add_argument("--fraction", type=float, default=1.0, help="fraction of clients in a round (default 1)")
    parser.add_argument("--network", help="one of ldpkernels.federated.networks (default: the dataset's)")
    mechanism = parser.add_argument_group("mechanism")
    mechanism.add_argument("--eps", type=float, default=4.0, help="privacy parameter of each weight (default 4)")
    mechanism.add_argument(
        "--mechanism", choices=("two-point", "piecewise", "hybrid"), default="two-point", help="default two-point"
    )
    mechanism.add_argument("--no-noise", action="store_true", help="send weights as they are: no privacy, to compare")
    mechanism.add_argument("--center", type=float, metavar="C", help="center of all ranges (default: by layer)")
    mechanism.add_argument("--radius", type=float, metavar="R", help="radius of all ranges (default: by layer)")
    mechanism.add_argument(
        "--upload",
        choices=("weights", "updates"),
        default="weights",
        help="what is perturbed: the weights (default, Algorithm 1) or their change, which needs --radius",
    )
    mechanism.add_argument("--adaptive", action="store_true", help="new ranges from the averaged weights every round")
    mechanism.add_argument(
        "--ranges",
        choices=("minmax", "quantile", "noise-subtracted"),
        default="minmax",
        help="how adaptive ranges are chosen (default minmax, the paper's)",
    )
    mechanism.add_argument("--growth", type=float, metavar="X", help="the most by which a radius grows in a round")
    federated_options.add_training(parser, epochs=1, batch=10, rate=0.03)
    federated_options.add_ledger(parser)
    shuffling = parser.add_argument_group("parameter shuffling")
    shuffling.add_argument(
        "--latency", type=float, metavar="T", help="simulate the shuffling with delays up to T seconds, and attack it"
    )
    parser.set_defaults(run=federated_options.guarded("fl ldp-fl", main))


def main(args: argparse.Namespace) -> int:
    """Run, print, draw; the exit status."""
    from ldpkernels.federated import networks, runs

    config = config_of(args)
    rows = federate(args, config, args.network or networks.LDP_FL[args.dataset])
    columns = {"round": "d", "clients": "d", "accuracy": ".2%", "upload_bytes": ",d", "honest_eps": ",.0f"}
    print(runs.table(rows, columns))
    if config.eps is not None:
        print(
            f"\neps={config.eps:g} is the privacy of each weight on its own. A client of all {len(rows)} rounds loses "
            f"eps={rows[-1]['honest_eps']:,.0f} at delta={args.delta:g} to whoever sees its uploads: docs/privacy.md."
        )
    if args.latency is not None:
        print_latency(args)
    if args.out:
        picture = Path(args.out) / "accuracy.png"
        name = "no noise" if config.eps is None else f"{config.mechanism}, eps={config.eps:g}"
        title = f"LDP-FL, {args.dataset}, {args.clients} clients"
        federated_options.draw_accuracy(picture, {name: [row["accuracy"] for row in rows]}, title)
        print(f"\nkept: {args.out}/metrics.csv, accuracy.png, checkpoint.pt")
    return 0


def config_of(args: argparse.Namespace) -> Any:
    """What the options say of the algorithm."""
    from ldpkernels.federated.ldp_fl import Config, RangeOptions

    ranges = RangeOptions(method=args.ranges)
    if args.growth is not None:
        ranges["growth"] = args.growth
    return Config(
        eps=None if args.no_noise else args.eps,
        C=0.0 if args.center is None and args.radius is not None else args.center,
        R=args.radius,
        upload=args.upload,
        adaptive=args.adaptive,
        ranges=ranges if args.adaptive else RangeOptions(),
        fraction=args.fraction,
        mechanism=args.mechanism,
        local=federated_options.local_of(args),
        seed=args.seed,
    )


def federate(args: argparse.Namespace, config: Any, network_name: str) -> list[dict[str, Any]]:
    """The run: a row of figures for each round."""
    from ldpkernels.federated import ldp_fl, runs, training

    dataset, network, clients = federated_options.prepared(args, network_name)
    weights = sum(p.numel() for p in network.parameters())
    ledger = federated_options.opened_ledger(args)

    def spend() -> None:
        if ledger is not None and config.eps is not None:
            ledger.spend(ldp_fl.event(config), times=weights)

    def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
        after, row = ldp_fl.round_(state, clients, network, config, before_upload=spend)
        honest = None if config.eps is None else ldp_fl.honest_epsilon(config, weights, after.round, args.delta)
        accuracy = training.accuracy(network, after.weights, dataset.test_x, dataset.test_y)
        return after, {**row, "accuracy": accuracy, "honest_eps": honest}

    described = {
        "algorithm": "ldp-fl",
        "config": config,
        "network": network_name,
        **{name: getattr(args, name) for name in ("dataset", "clients", "skew", "threads", "device")},
    }
    started = time.perf_counter()
    try:
        _, rows = runs.run(
            step,
            ldp_fl.init(network, config),
            args.rounds,
            folder=args.out,
            resume=args.resume,
            described=described,
            label="no noise" if config.eps is None else f"eps={config.eps:g}",
            progress=not args.quiet,
        )
    finally:
        if ledger is not None:
            ledger.close()
    print(f"{len(clients)} clients, {weights:,} weights, {time.perf_counter() - started:.0f} seconds.\n")
    return rows


def print_latency(args: argparse.Namespace) -> None:
    """What parameter shuffling hides, and what not."""
    import ldpkernels
    from ldpkernels.federated import latency, runs

    rows = latency.report(args.clients, 200, args.latency, ldpkernels.key(args.seed))
    print(f"\nParameter shuffling, simulated; a guess links {1 / args.clients:.2%}:")
    print(runs.table(rows, {"sending": "s", "T": "g", "linked": ".2%", "duration": ".0f"}))
