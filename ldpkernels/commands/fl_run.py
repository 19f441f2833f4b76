# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fl` and `ldpkernels fl ldp-fed` at work."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Iterator
from typing import TypedDict

from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import federated_run, options
from ldpkernels.commands.program import Outcome
from ldpkernels.federated import ldp_fed, ldp_fl, networks, runs
from ldpkernels.federated.training import Crew

LDP_FL_COLUMNS = {"round": "d", "clients": "d", "accuracy": ".2%", "upload_bytes": ",d", "honest_eps": "up"}
LDP_FED_COLUMNS = {"round": "d", "clients": "d", "layer": "s", "accuracy": ".2%", "upload_bytes": ",d"}


def run_ldp_fl(args: argparse.Namespace) -> Outcome:
    """Run LDP-FL: train, print the table and the privacy, draw the accuracy."""
    config, name = ldp_fl_config(args), federated_run.network_of(args, networks.LDP_FL)
    described = federated_run.described(args, "ldp-fl", config, name)
    federation = federated_run.prepared(args, name)
    label = "no noise" if config.eps is None else f"{config.mechanism}, eps={config.eps:g}"
    with federated_run.opened_ledger(args) as ledger, _trainers(args, federation, config, name) as trainers:

        def spend() -> None:
            if ledger is not None and config.eps is not None:
                ledger.spend(ldp_fl.event(config), times=federation.weights)

        def round_(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
            clients, network = federation.clients, federation.network
            return ldp_fl.round_(state, clients, network, config, before_upload=spend, **trainers)

        def honest(rounds: int) -> float | None:
            return None if config.eps is None else ldp_fl.honest_epsilon(config, federation.weights, rounds, args.delta)

        state, crew = ldp_fl.init(federation.network, config), trainers.get("workers")
        rows = federated_run.rounds_of(args, federation, state, round_, described, label, honest=honest, crew=crew)
    words = None
    if config.eps is not None:
        lost = rounded_up(float(rows[-1]["honest_eps"] or 0))
        words = (
            f"eps={config.eps:g} is the privacy of each weight on its own. A client of all {len(rows)} rounds loses "
            f"eps={lost} at delta={args.delta:g} to whoever sees its uploads: docs/privacy.md. "
            f"{federated_run.of_seed(args.seed)}"
        )
    federated_run.tell(args, rows, LDP_FL_COLUMNS, words, "LDP-FL", label)
    return Outcome({**described, "weights": federation.weights, "rounds": rows})


def ldp_fl_config(args: argparse.Namespace) -> ldp_fl.Config:
    """The configuration of LDP-FL, as the options have it."""
    ranges = ldp_fl.RangeOptions()
    if args.adaptive:
        ranges["method"] = args.ranges or "minmax"
        if args.growth is not None:
            ranges["growth"] = args.growth
    return options.taken(
        args,
        ldp_fl.Config,
        eps=None if args.no_noise else args.eps,
        C=0.0 if args.center is None and args.radius is not None else args.center,
        R=args.radius,
        ranges=ranges,
        local=federated_run.local_of(args),
    )


class _Trainers(TypedDict, total=False):
    """Where clients train: arguments of `ldp_fl.round_`."""

    workers: Crew | None
    uploads: ldp_fl.Uploads


@contextlib.contextmanager
def _trainers(
    args: argparse.Namespace, federation: federated_run.Federation, config: ldp_fl.Config, network: str
) -> Iterator[_Trainers]:
    if args.engine == "flower":
        from ldpkernels.commands import flower_run

        with flower_run.uploads(args, config, network) as uploads:
            yield {"uploads": uploads}
        return
    busy = max(1, round(config.fraction * len(federation.clients)))
    with federated_run.hired(args, federation, config.local, busy) as crew:
        yield {"workers": crew}


def run_ldp_fed(args: argparse.Namespace) -> Outcome:
    """Run LDP-Fed: train, print the table and the privacy, draw the accuracy."""
    config, name = ldp_fed_config(args), federated_run.network_of(args, networks.LDP_FED)
    described = federated_run.described(args, "ldp-fed", config, name)
    federation = federated_run.prepared(args, name)
    network, alpha = federation.network, config.largest_alpha
    turns = ldp_fed.plan(network, config)
    label = f"{args.method}, no noise" if args.no_noise else f"{args.method}, {args.mechanism}, alpha={args.alpha:g}"
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
    columns = LDP_FED_COLUMNS | ({} if alpha is None else {"alpha": ".4g"}) | {"honest_eps": "up"}
    words = "Nothing is randomised: eps is infinite to whoever sees the updates."
    if not args.no_noise:
        words = (
            f"alpha is the privacy of two inputs one step apart, 1e-{args.rho}. Two within [-{args.c:g}, {args.c:g}] "
            f"are told apart with up to eps={rounded_up(honest(len(rows)))}, by whoever collects the uploads: "
            f"docs/federated/ldp_fed.md. {federated_run.of_seed(args.seed)}"
        )
    federated_run.tell(args, rows, columns, words, "LDP-Fed", label)
    return Outcome({**described, "weights": federation.weights, "rounds": rows})


def ldp_fed_config(args: argparse.Namespace) -> ldp_fed.Config:
    """The configuration of LDP-Fed, as the options have it."""
    alpha = None if args.no_noise else args.alpha
    return options.taken(args, ldp_fed.Config, alpha=alpha, local=federated_run.local_of(args))
