# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fed` at work."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import federated_run
from ldpkernels.commands.program import Outcome
from ldpkernels.federated import ldp_fed, networks, runs

COLUMNS = {"round": "d", "clients": "d", "layer": "s", "accuracy": ".2%", "upload_bytes": ",d"}


def federate(args: argparse.Namespace) -> Outcome:
    """Run the command: train, print the table and the privacy, draw the accuracy."""
    config, name = config_of(args), federated_run.network_of(args, networks.LDP_FED)
    described = federated_run.described(args, "ldp-fed", config, name)
    federation = federated_run.prepared(args, name)
    network, alpha = federation.network, config.largest_alpha
    turns = ldp_fed.plan(network, config)
    budget = f"alpha={args.alpha:g}" if args.alphas is None else "own alphas"
    label = f"{args.method}, no noise" if args.no_noise else f"{args.method}, {args.mechanism}, {budget}"
    with (
        federated_run.opened_ledger(args) as ledger,
        federated_run.hired(args, federation, config.local, args.select) as crew,
    ):

        def spend(turn: ldp_fed.Turn) -> None:
            if ledger is not None:
                ledger.spend(turn.event(config))

        def round_(state: ldp_fed.State) -> tuple[ldp_fed.State, runs.Row]:
            clients = federation.clients
            after, row = ldp_fed.round_(state, clients, network, config, before_upload=spend, workers=crew)
            if alpha is not None:
                row["alpha"] = alpha * float(sum(turn.share for turn in turns[: after.round]))
            return after, row

        def honest(rounds: int) -> float:
            return math.inf if alpha is None else ldp_fed.honest_epsilon(network, config, rounds)

        state = ldp_fed.init(network, config)
        rows = federated_run.rounds_of(args, federation, state, round_, described, label, honest=honest, crew=crew)
    print(runs.table(rows, COLUMNS | ({} if alpha is None else {"alpha": ".4g"}) | {"honest_eps": "up"}))
    print("\n" + meaning(args, honest(len(rows))))
    federated_run.draw_run(args, rows, "LDP-Fed", label)
    return Outcome({**described, "weights": federation.weights, "rounds": rows})


def config_of(args: argparse.Namespace) -> ldp_fed.Config:
    """The algorithm's configuration, as the options have it."""
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


def alphas_of(args: argparse.Namespace) -> float | dict[int, float]:
    """The budget of all clients, or each client's own."""
    if args.alphas is None:
        return float(args.alpha)
    numbers = [float(line) for line in Path(args.alphas).read_text().split()]
    if len(numbers) != args.clients:
        raise ValueError(
            f"--alphas {args.alphas} has {len(numbers)} budgets: give one to each of {args.clients} clients"
        )
    return dict(enumerate(numbers))


def meaning(args: argparse.Namespace, honest: float) -> str:
    """What the run's privacy comes to, in words."""
    if args.no_noise:
        return "Nothing is randomised: eps is infinite to whoever sees the updates."
    return (
        f"alpha is the privacy of two inputs one step apart, 1e-{args.rho}. Two within [-{args.c:g}, {args.c:g}] "
        f"are told apart with up to eps={rounded_up(honest)}, by whoever collects the uploads: "
        f"docs/federated/ldp_fed.md. {federated_run.of_seed(args.seed)}"
    )
