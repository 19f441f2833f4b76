# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fl` at work."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TypedDict

from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import federated_run
from ldpkernels.commands.program import Outcome
from ldpkernels.federated import ldp_fl, networks, runs
from ldpkernels.federated.training import Crew

COLUMNS = {"round": "d", "clients": "d", "accuracy": ".2%", "upload_bytes": ",d", "honest_eps": "up"}


def federate(args: argparse.Namespace) -> Outcome:
    """Run the command: train, print the table and the privacy, draw the accuracy."""
    config, name = config_of(args), federated_run.network_of(args, networks.LDP_FL)
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
    print(runs.table(rows, COLUMNS))
    if config.eps is not None:
        lost = rounded_up(float(rows[-1]["honest_eps"] or 0))
        print(
            f"\neps={config.eps:g} is the privacy of each weight on its own. A client of all {len(rows)} rounds loses "
            f"eps={lost} at delta={args.delta:g} to whoever sees its uploads: docs/privacy.md. "
            f"{federated_run.of_seed(args.seed)}"
        )
    federated_run.draw_run(args, rows, "LDP-FL", label)
    return Outcome({**described, "weights": federation.weights, "rounds": rows})


def config_of(args: argparse.Namespace) -> ldp_fl.Config:
    """The algorithm's configuration, as the options have it."""
    ranges = ldp_fl.RangeOptions()
    if args.adaptive:
        ranges["method"] = args.ranges or "minmax"
        if args.growth is not None:
            ranges["growth"] = args.growth
    return ldp_fl.Config(
        eps=None if args.no_noise else args.eps,
        C=0.0 if args.center is None and args.radius is not None else args.center,
        R=args.radius,
        upload=args.upload,
        adaptive=args.adaptive,
        ranges=ranges,
        fraction=args.fraction,
        weigh=args.weigh,
        dropout=args.dropout,
        mechanism=args.mechanism,
        local=federated_run.local_of(args),
        seed=args.seed,
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
