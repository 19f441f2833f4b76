# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fl` at work."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import ldpkernels
from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import federated_run
from ldpkernels.commands.program import Outcome
from ldpkernels.federated import latency, ldp_fl, networks, runs
from ldpkernels.federated.training import Crew

MOST_ARRIVALS = 10_000_000  # that a simulated shuffling keeps in memory; of larger models it sends the first weights


def federate(args: argparse.Namespace) -> Outcome:
    """Run, print, draw."""
    config, network = config_of(args), federated_run.network_of(args, networks.LDP_FL)
    described = federated_run.described(args, "ldp-fl", config, network)
    rows, weights = rounds_of(args, config, described)
    columns = {"round": "d", "clients": "d", "accuracy": ".2%", "upload_bytes": ",d", "honest_eps": "up"}
    print(runs.table(rows, columns))
    if config.eps is not None:
        lost = rounded_up(float(rows[-1]["honest_eps"] or 0))
        print(
            f"\neps={config.eps:g} is the privacy of each weight on its own. A client of all {len(rows)} rounds loses "
            f"eps={lost} at delta={args.delta:g} to whoever sees its uploads: docs/privacy.md. "
            f"{federated_run.of_seed(args.seed)}"
        )
    found = {**described, "weights": weights, "rounds": rows}
    if args.latency is not None:
        sent = min(weights, MOST_ARRIVALS // args.clients)
        found["latency"] = links = latency.report(args.clients, sent, args.latency, ldpkernels.key(args.seed))
        print(f"\nParameter shuffling of {sent:,} weights, simulated; a guess links {1 / args.clients:.2%}:")
        print(runs.table(links, {"sending": "s", "T": "g", "linked": ".2%", "duration": ".0f"}))
    if args.out:
        title = f"LDP-FL, {args.dataset}, {args.clients} clients"
        curve = {name_of(config): [float(row["accuracy"] or 0) for row in rows]}
        federated_run.draw_accuracy(Path(args.out) / "accuracy.png", curve, title)
        print(f"\nkept: {args.out}/metrics.csv, accuracy.png, checkpoint.pt")
    return Outcome(found)


def config_of(args: argparse.Namespace) -> ldp_fl.Config:
    """What the options say of the algorithm."""
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


def name_of(config: ldp_fl.Config) -> str:
    """The run in a few words."""
    return "no noise" if config.eps is None else f"{config.mechanism}, eps={config.eps:g}"


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


def rounds_of(
    args: argparse.Namespace, config: ldp_fl.Config, described: dict[str, object]
) -> tuple[list[runs.Row], int]:
    """A row of figures for each round, and how many weights the network has."""
    federation = federated_run.prepared(args, str(described["network"]))
    network, clients, weights = federation.network, federation.clients, federation.weights
    started = time.perf_counter()
    with (
        federated_run.opened_ledger(args) as ledger,
        _trainers(args, federation, config, str(described["network"])) as trainers,
    ):

        def spend() -> None:
            if ledger is not None and config.eps is not None:
                ledger.spend(ldp_fl.event(config), times=weights)

        def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
            after, row = ldp_fl.round_(state, clients, network, config, before_upload=spend, **trainers)
            honest = None if config.eps is None else ldp_fl.honest_epsilon(config, weights, after.round, args.delta)
            return after, {
                **row,
                "accuracy": federation.accuracy(after.weights, trainers.get("workers")),
                "honest_eps": honest,
            }

        _, rows = runs.run(
            step,
            ldp_fl.init(network, config),
            args.rounds,
            folder=args.out,
            resume=args.resume,
            described=described | federated_run.begun_with(args, federation),
            label=name_of(config),
            progress=not args.quiet,
        )
    print(f"{len(clients)} clients, {weights:,} weights, {time.perf_counter() - started:.0f} seconds.\n")
    return rows, weights
