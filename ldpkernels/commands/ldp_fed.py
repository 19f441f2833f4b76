# SPDX-License-Identifier: Apache-2.0
"""`python -m ldpkernels fl ldp-fed`."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ldpkernels.commands import federated_options

DATASETS = ("digits", "mnist", "fashion-mnist")
FED = ("basic", "single-layer", "alpha-cldp-fed")
OTHERS = ("non-private", "local", "smc", "dpsgd", "hybrid-one")


def add_parser(algorithms: Any) -> None:
    """The command line of `fl ldp-fed`."""
    parser = algorithms.add_parser(
        "ldp-fed",
        help="LDP-Fed: updates under alpha-CLDP, layer by layer, and what it is compared with",
        description="LDP-Fed (Truex and others, EdgeSys 2020). alpha is the privacy of one step of 10^-rho, added up "
        "over all rounds; the table's column of honest eps is what a client has lost in the worst case, alpha 2c "
        "10^rho. Other methods of --method are those that the paper compares with.",
        epilog="example: python -m ldpkernels fl ldp-fed --data DIR --dataset fashion-mnist --clients 50 --select 9 "
        "--rounds 80 --alpha 1 --c 1 --rho 10 --method alpha-cldp-fed --cycles 5",
    )
    federated_options.add_run(parser, datasets=DATASETS, clients=50, rounds=80)
    parser.add_argument("--network", help="one of ldpkernels.federated.networks (default: the dataset's)")
    parser.add_argument("--method", choices=FED + OTHERS, default="alpha-cldp-fed", help="default alpha-cldp-fed")
    selection = parser.add_argument_group("selection")
    selection.add_argument("--select", type=int, default=9, metavar="K", help="uploads that a round takes (default 9)")
    selection.add_argument(
        "--selection",
        choices=("fixed", "poisson"),
        default="fixed",
        help="exactly K, or each upload with probability K / N (default fixed)",
    )
    module = parser.add_argument_group("LDP module")
    module.add_argument("--alpha", type=float, default=1.0, help="each client's budget for all rounds (default 1)")
    module.add_argument(
        "--alphas",
        metavar="FILE",
        help="each client's own budget instead, a number a line, in the order of the clients",
    )
    module.add_argument("--no-noise", action="store_true", help="send updates as they are: no privacy, to compare")
    module.add_argument("--c", type=float, default=1.0, help="updates are clipped to [-c, c] (default 1)")
    module.add_argument("--rho", type=int, default=10, help="digits that are kept after the point (default 10)")
    module.add_argument("--cycles", type=int, default=5, help="of alpha-cldp-fed (default 5)")
    module.add_argument(
        "--mechanism",
        choices=("exponential", "laplace"),
        default="exponential",
        help="the paper's, or discrete laplace: unbiased, a quarter of the variance (default exponential)",
    )
    module.add_argument(
        "--metric",
        choices=("linf", "l1"),
        default="linf",
        help="of the guarantee: linf splits a round's budget over its values, l1 does not and promises less",
    )
    module.add_argument(
        "--trains", choices=("layer", "all"), default="layer", help="what a client trains in a round (default layer)"
    )
    private = parser.add_argument_group("DP-SGD (dpsgd, hybrid-one)")
    private.add_argument("--sigma", type=float, default=2.0, help="noise multiplier (default 2)")
    private.add_argument("--norm", type=float, default=1.0, help="gradients of samples are clipped to it (default 1)")
    federated_options.add_training(parser, epochs=1, batch=10, rate=0.1)
    federated_options.add_ledger(parser)
    parser.set_defaults(run=federated_options.guarded("fl ldp-fed", main))


class Driver(NamedTuple):
    """A method behind one interface."""

    state: Any
    round_: Callable[[Any], tuple[Any, dict[str, Any]]]
    accuracy: Callable[[Any], float]
    honest: Callable[[int], float]
    config: Any


def main(args: argparse.Namespace) -> int:
    """Run, print, draw; the exit status."""
    from ldpkernels.federated import runs

    rows = federate(args)
    columns = {"round": "d", "clients": "d", "layer": "s", "accuracy": ".2%", "upload_bytes": ",d", "alpha": ".4g"}
    shown = {name: form for name, form in columns.items() if any(name in row for row in rows)}
    print(runs.table(rows, {**shown, "honest_eps": ",.4g"}))
    print("\n" + meaning(args, rows[-1]["honest_eps"]))
    if args.out:
        title = f"LDP-Fed, {args.dataset}, {args.clients} clients"
        federated_options.draw_accuracy(
            Path(args.out) / "accuracy.png", {name_of(args): [r["accuracy"] for r in rows]}, title
        )
        print(f"\nkept: {args.out}/metrics.csv, accuracy.png, checkpoint.pt")
    return 0


def federate(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The run: a row of figures for each round."""
    from ldpkernels.federated import networks, runs

    if args.ledger is not None and (args.method not in FED or args.no_noise):
        raise ValueError("--ledger accounts for uploads under alpha-CLDP: leave it out for other methods")
    network_name = args.network or networks.LDP_FED[args.dataset]
    dataset, network, clients = federated_options.prepared(args, network_name)
    ledger = federated_options.opened_ledger(args)
    make = fed_driver if args.method in FED else other_driver
    driver = make(args, network, clients, dataset, ledger)

    def step(state: Any) -> tuple[Any, dict[str, Any]]:
        after, row = driver.round_(state)
        honest = driver.honest(after.round)
        return after, {**row, "accuracy": driver.accuracy(after), "honest_eps": honest}

    described = {
        "algorithm": "ldp-fed",
        "config": driver.config,
        "network": network_name,
        **{name: getattr(args, name) for name in ("dataset", "clients", "skew", "threads", "device")},
    }
    started = time.perf_counter()
    try:
        _, rows = runs.run(
            step,
            driver.state,
            args.rounds,
            folder=args.out,
            resume=args.resume,
            described=described,
            label=name_of(args),
            progress=not args.quiet,
        )
    finally:
        if ledger is not None:
            ledger.close()
    weights = sum(p.numel() for p in network.parameters())
    print(f"{len(clients)} clients, {weights:,} weights, {time.perf_counter() - started:.0f} seconds.\n")
    return rows


def fed_driver(args: argparse.Namespace, network: Any, clients: Any, dataset: Any, ledger: Any) -> Driver:
    """The methods of LDP-Fed."""
    from ldpkernels.federated import ldp_fed, training

    config = ldp_fed.Config(
        alpha=None if args.no_noise else alphas_of(args),
        rounds=args.rounds,
        method=args.method,
        cycles=args.cycles,
        c=args.c,
        rho=args.rho,
        mechanism=args.mechanism,
        metric=args.metric,
        select=args.select,
        selection=args.selection,
        trains=args.trains,
        local=federated_options.local_of(args),
        seed=args.seed,
    )
    turns = ldp_fed.plan(network, config)

    def spend(turn: Any) -> None:
        if ledger is not None:
            ledger.spend(turn.event(config))

    def round_(state: Any) -> tuple[Any, dict[str, Any]]:
        after, row = ldp_fed.round_(state, clients, network, config, before_upload=spend)
        if config.largest_alpha is None:
            return after, row
        return after, {**row, "alpha": config.largest_alpha * float(sum(t.share for t in turns[: after.round]))}

    return Driver(
        ldp_fed.init(network, config),
        round_,
        lambda state: training.accuracy(network, state.weights, dataset.test_x, dataset.test_y),
        lambda rounds: math.inf if args.no_noise else ldp_fed.honest_epsilon(network, config, rounds),
        config,
    )


def other_driver(args: argparse.Namespace, network: Any, clients: Any, dataset: Any, ledger: Any) -> Driver:
    """The methods that LDP-Fed is compared with."""
    from ldpkernels.federated import comparisons, private_sgd

    config = comparisons.Config(
        method=args.method,
        select=args.select,
        selection=args.selection,
        rho=args.rho,
        C=args.norm,
        sigma=args.sigma,
        local=federated_options.local_of(args),
        seed=args.seed,
    )
    if args.method in ("dpsgd", "hybrid-one"):
        network = private_sgd.group_normalised(network)
    return Driver(
        comparisons.init(network, config, clients),
        lambda state: comparisons.round_(state, clients, network, config),
        lambda state: comparisons.accuracy(network, state, config, dataset.test_x, dataset.test_y),
        lambda rounds: comparisons.honest_epsilon(clients, config, rounds, args.delta),
        config,
    )


def alphas_of(args: argparse.Namespace) -> Any:
    """One budget, or each client's own."""
    if args.alphas is None:
        return args.alpha
    numbers = [float(line) for line in Path(args.alphas).read_text().split()]
    if len(numbers) != args.clients:
        raise ValueError(
            f"--alphas {args.alphas} has {len(numbers)} budgets: give one to each of {args.clients} clients"
        )
    return dict(enumerate(numbers))


def name_of(args: argparse.Namespace) -> str:
    """The run in a few words."""
    if args.method not in FED:
        return str(args.method)
    budget = f"alpha={args.alpha:g}" if args.alphas is None else "own alphas"
    return f"{args.method}, no noise" if args.no_noise else f"{args.method}, {args.mechanism}, {budget}"


def meaning(args: argparse.Namespace, honest: float) -> str:
    """What the run's privacy comes to, in words."""
    if args.method == "local":
        return "Nothing leaves a participant: eps=0 to everyone else."
    if args.no_noise or args.method in ("non-private", "smc"):
        return "Nothing is randomised: eps is infinite to whoever sees " + (
            "the sum." if args.method == "smc" else "the updates."
        )
    if args.method in ("dpsgd", "hybrid-one"):
        return (
            f"An example of the participant of most rounds loses eps={honest:,.4g} at delta={args.delta:g} to whoever "
            "sees all uploads, for adding or removing it."
        )
    return (
        f"alpha is the privacy of two inputs one step apart, 1e-{args.rho}. Any two within [-{args.c:g}, {args.c:g}] "
        f"are told apart with up to eps={honest:,.4g}, by whoever collects the uploads: docs/federated/ldp_fed.md."
    )
