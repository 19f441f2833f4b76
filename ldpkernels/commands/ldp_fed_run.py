# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fed` at work."""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import nn

from ldpkernels.accounting import Ledger
from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import federated_run
from ldpkernels.commands.federated_run import Federation
from ldpkernels.commands.ldp_fed import FED
from ldpkernels.commands.program import Outcome
from ldpkernels.federated import comparisons, ldp_fed, networks, private_sgd, runs
from ldpkernels.federated.ldp_fed import State
from ldpkernels.federated.training import Crew


class Driver(NamedTuple):
    """A method behind one interface."""

    state: State
    round_: Callable[[State, Ledger | None, Crew | None], tuple[State, runs.Row]]
    accuracy: Callable[[State, Crew | None], float]
    honest: Callable[[int], float]
    config: ldp_fed.Config | comparisons.Config
    network: nn.Module


def federate(args: argparse.Namespace) -> Outcome:
    """Run, print, draw."""
    network = federated_run.network_of(args, networks.LDP_FED)
    config = fed_config(args) if args.method in FED else other_config(args)
    federation = federated_run.prepared(args, network)
    if isinstance(config, ldp_fed.Config):
        driver = fed_driver(config, federation)
    else:
        driver = other_driver(config, federation, args.delta)
    described = federated_run.described(args, "ldp-fed", driver.config, network)
    started = time.perf_counter()
    rows = rounds_of(args, driver, federation, described)
    seconds = time.perf_counter() - started
    print(f"{len(federation.clients)} clients, {federation.weights:,} weights, {seconds:.0f} seconds.\n")
    columns = {"round": "d", "clients": "d", "layer": "s", "accuracy": ".2%", "upload_bytes": ",d", "alpha": ".4g"}
    shown = {name: form for name, form in columns.items() if any(name in row for row in rows)}
    print(runs.table(rows, {**shown, "honest_eps": "up"}))
    print("\n" + meaning(args, driver.honest(len(rows))))
    if args.out:
        title = f"LDP-Fed, {args.dataset}, {args.clients} clients"
        curve = {name_of(args): [float(row["accuracy"] or 0) for row in rows]}
        federated_run.draw_accuracy(Path(args.out) / "accuracy.png", curve, title)
        print(f"\nkept: {args.out}/metrics.csv, accuracy.png, checkpoint.pt")
    return Outcome({**described, "weights": federation.weights, "rounds": rows})


def rounds_of(
    args: argparse.Namespace, driver: Driver, federation: Federation, described: dict[str, object]
) -> list[runs.Row]:
    """A row of figures for each round."""
    busy = args.clients if args.method == "local" else args.select
    trained = dataclasses.replace(federation, network=driver.network)
    each = args.method in ("local", "dpsgd", "hybrid-one")  # whose clients train one by one
    with (
        federated_run.opened_ledger(args) as ledger,
        federated_run.hired(args, trained, driver.config.local, busy, each=each) as crew,
    ):

        def step(state: State) -> tuple[State, runs.Row]:
            after, row = driver.round_(state, ledger, crew)
            return after, {**row, "accuracy": driver.accuracy(after, crew), "honest_eps": driver.honest(after.round)}

        _, rows = runs.run(
            step,
            driver.state,
            args.rounds,
            folder=args.out,
            resume=args.resume,
            described=described | federated_run.begun_with(args, federation),
            label=name_of(args),
            progress=not args.quiet,
        )
    return rows


def fed_config(args: argparse.Namespace) -> ldp_fed.Config:
    """What the options say of LDP-Fed."""
    return ldp_fed.Config(
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
        local=federated_run.local_of(args),
        seed=args.seed,
        weigh=args.weigh,
        dropout=args.dropout,
    )


def other_config(args: argparse.Namespace) -> comparisons.Config:
    """What they say of the methods that LDP-Fed is compared with."""
    return comparisons.Config(
        method=args.method,
        select=args.select,
        selection=args.selection,
        rho=args.rho,
        C=args.norm,
        sigma=args.sigma,
        local=federated_run.local_of(args),
        seed=args.seed,
        weigh=args.weigh,
        dropout=args.dropout,
    )


def fed_driver(config: ldp_fed.Config, federation: Federation) -> Driver:
    """The methods of LDP-Fed."""
    network, clients = federation.network, federation.clients
    turns = ldp_fed.plan(network, config)

    def round_(state: State, ledger: Ledger | None, crew: Crew | None) -> tuple[State, runs.Row]:
        def spend(turn: ldp_fed.Turn) -> None:
            if ledger is not None:
                ledger.spend(turn.event(config))

        after, row = ldp_fed.round_(state, clients, network, config, before_upload=spend, workers=crew)
        if config.largest_alpha is None:
            return after, row
        return after, {**row, "alpha": config.largest_alpha * float(sum(t.share for t in turns[: after.round]))}

    return Driver(
        ldp_fed.init(network, config),
        round_,
        lambda state, crew: federation.accuracy(state.weights, crew),
        lambda rounds: math.inf if config.alpha is None else ldp_fed.honest_epsilon(network, config, rounds),
        config,
        network,
    )


def other_driver(config: comparisons.Config, federation: Federation, delta: float) -> Driver:
    """The methods that LDP-Fed is compared with."""
    network, clients, test = federation.network, federation.clients, federation.dataset
    if config.method in ("dpsgd", "hybrid-one"):
        network = private_sgd.group_normalised(network)
    return Driver(
        comparisons.init(network, config, clients),
        lambda state, ledger, crew: comparisons.round_(state, clients, network, config, workers=crew),
        lambda state, crew: comparisons.accuracy(network, state, config, test.test_x, test.test_y, crew),
        lambda rounds: comparisons.honest_epsilon(clients, config, rounds, delta),
        config,
        network,
    )


def alphas_of(args: argparse.Namespace) -> float | dict[int, float]:
    """One budget, or each client's own."""
    if args.alphas is None:
        return float(args.alpha)
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
            f"An example of the participant of most rounds loses eps={rounded_up(honest)} at delta={args.delta:g} to "
            f"whoever sees all uploads, for adding or removing it. {federated_run.of_seed(args.seed)}"
        )
    return (
        f"alpha is the privacy of two inputs one step apart, 1e-{args.rho}. Two within [-{args.c:g}, {args.c:g}] "
        f"are told apart with up to eps={rounded_up(honest)}, by whoever collects the uploads: "
        f"docs/federated/ldp_fed.md. {federated_run.of_seed(args.seed)}"
    )
