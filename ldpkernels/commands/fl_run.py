# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fl` and `ldpkernels fl ldp-fed` at work."""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypedDict, TypeVar

import torch

from ldpkernels.accounting import Event, Ledger
from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import federated_run, options
from ldpkernels.commands.federated_run import Federation
from ldpkernels.commands.program import Outcome
from ldpkernels.common.arguments import is_name
from ldpkernels.federated import ldp_fed, ldp_fl, networks, own, runs, training
from ldpkernels.federated.training import Crew


class _HasWeights(runs.HasRound, Protocol):
    """The state of a driver: the weights after so many rounds."""

    @property
    def weights(self) -> training.Weights:
        """The weights that have been trained so far."""


State = TypeVar("State", bound=_HasWeights)
Config = TypeVar("Config", ldp_fl.Config, ldp_fed.Config)
Spend = Callable[[Event, int], None]  # an event, so many times


class _Trainers(TypedDict, total=False):
    """Where clients train: arguments of a driver's `round_`."""

    workers: Crew | None
    uploads: ldp_fl.Uploads


@dataclass(frozen=True)
class Algorithm(Generic[State]):
    """What the two differ in, for one run: `told` says what the privacy of all rounds comes to, in words."""

    name: str
    label: str
    columns: Mapping[str, str]
    busy: int  # clients that train in a round
    start: State
    round_: Callable[[State, Spend, _Trainers], tuple[State, runs.Row]]
    honest: Callable[[int], float | None]
    told: Callable[[float, int], str | None]


def run_ldp_fl(args: argparse.Namespace) -> Outcome:
    """Run LDP-FL: train, print the table and the privacy, draw the accuracy."""
    return _run(args, "ldp-fl", networks.LDP_FL, ldp_fl_config(args), _ldp_fl)


def run_ldp_fed(args: argparse.Namespace) -> Outcome:
    """Run LDP-Fed: train, print the table and the privacy, draw the accuracy."""
    alpha = None if args.no_noise else args.alpha
    config = options.taken(args, ldp_fed.Config, alpha=alpha, local=federated_run.local_of(args))
    return _run(args, "ldp-fed", networks.LDP_FED, config, _ldp_fed)


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


def _ldp_fl(args: argparse.Namespace, config: ldp_fl.Config, federation: Federation) -> Algorithm[ldp_fl.State]:
    clients, network, weights = federation.clients, federation.network, federation.weights

    def round_(state: ldp_fl.State, spend: Spend, trainers: _Trainers) -> tuple[ldp_fl.State, runs.Row]:
        def before_upload() -> None:
            if config.eps is not None:
                spend(ldp_fl.event(config), weights)

        return ldp_fl.round_(state, clients, network, config, before_upload=before_upload, **trainers)

    def honest(rounds: int) -> float | None:
        return None if config.eps is None else ldp_fl.honest_epsilon(config, weights, rounds, args.delta)

    def told(epsilon: float, rounds: int) -> str | None:
        if config.eps is None:
            return None
        return (
            f"eps={config.eps:g} is the privacy of each weight on its own. A client of all {rounds} rounds loses "
            f"eps={rounded_up(epsilon)} at delta={args.delta:g} to whoever sees its uploads: docs/privacy.md. "
            f"{federated_run.of_seed(args.seed)}"
        )

    label = "no noise" if config.eps is None else f"{config.mechanism}, eps={config.eps:g}"
    columns = {"round": "d", "clients": "d", "accuracy": ".2%", "upload_bytes": ",d", "honest_eps": "up"}
    busy, start = max(1, round(config.fraction * len(clients))), ldp_fl.init(network, config)
    return Algorithm("LDP-FL", label, columns, busy, start, round_, honest, told)


def _ldp_fed(args: argparse.Namespace, config: ldp_fed.Config, federation: Federation) -> Algorithm[ldp_fed.State]:
    clients, network, alpha = federation.clients, federation.network, config.largest_alpha
    turns = ldp_fed.plan(network, config)

    def round_(state: ldp_fed.State, spend: Spend, trainers: _Trainers) -> tuple[ldp_fed.State, runs.Row]:
        def before_upload(turn: ldp_fed.Turn) -> None:
            if alpha is not None:
                spend(turn.event(config), 1)

        crew = trainers.get("workers")
        after, row = ldp_fed.round_(state, clients, network, config, before_upload=before_upload, workers=crew)
        if alpha is not None:
            row["alpha"] = alpha * float(sum(turn.share for turn in turns[: after.round]))
        return after, row

    def honest(rounds: int) -> float:
        return math.inf if alpha is None else ldp_fed.honest_epsilon(network, config, rounds)

    def told(epsilon: float, rounds: int) -> str:
        if args.no_noise:
            return "Nothing is randomised: eps is infinite to whoever sees the updates."
        return (
            f"alpha is the privacy of two inputs one step apart, 1e-{args.rho}. Two within [-{args.c:g}, {args.c:g}] "
            f"are told apart with up to eps={rounded_up(epsilon)}, by whoever collects the uploads: "
            f"docs/federated/ldp_fed.md. {federated_run.of_seed(args.seed)}"
        )

    label = f"{args.method}, no noise" if args.no_noise else f"{args.method}, {args.mechanism}, alpha={args.alpha:g}"
    columns = {"round": "d", "clients": "d", "layer": "s", "accuracy": ".2%", "upload_bytes": ",d"}
    columns |= ({} if alpha is None else {"alpha": ".4g"}) | {"honest_eps": "up"}
    return Algorithm("LDP-Fed", label, columns, args.select, ldp_fed.init(network, config), round_, honest, told)


def _run(
    args: argparse.Namespace,
    command: str,
    usual: Mapping[str, str],
    config: Config,
    algorithm_of: Callable[[argparse.Namespace, Config, Federation], Algorithm[State]],
) -> Outcome:
    network = str(args.model or args.network or usual[args.dataset])
    names = ("dataset", "clients", "skew", "uneven", "threads", "device")
    described = {"algorithm": command, "config": config, "network": network, **{n: getattr(args, n) for n in names}}
    federation = federated_run.prepared(args, network)
    begun = dict(described)  # and what things of the user's own depend on beside their names
    if args.model is not None or is_name(args.data):
        begun["fingerprint"] = own.fingerprint(federation.dataset, federation.network)
    algorithm = algorithm_of(args, config, federation)
    ledger = Ledger(args.ledger, epsilon=args.budget, delta=args.delta) if args.ledger else contextlib.nullcontext()
    with ledger as kept, _trainers(args, federation, config, network, algorithm.busy) as trainers:
        _check_figures(args, federation, algorithm)
        started = time.perf_counter()

        def spend(event: Event, times: int) -> None:
            if kept is not None:
                kept.spend(event, times=times)

        def step(before: State) -> tuple[State, runs.Row]:
            after, row = algorithm.round_(before, spend, trainers)
            accuracy = federation.accuracy(after.weights, trainers.get("workers"))
            return after, {**row, "accuracy": accuracy, "honest_eps": algorithm.honest(after.round)}

        _, rows = runs.run(
            step,
            algorithm.start,
            args.rounds,
            folder=args.out,
            resume=args.resume,
            described=begun,
            label=algorithm.label,
            progress=not args.quiet,
        )
    seconds = time.perf_counter() - started
    print(f"{len(federation.clients)} clients, {federation.weights:,} weights, {seconds:.0f} seconds.\n")
    print(runs.table(rows, algorithm.columns))
    if words := algorithm.told(float(rows[-1]["honest_eps"] or 0), len(rows)):
        print("\n" + words)
    if args.out:
        curve = {algorithm.label: [float(row["accuracy"] or 0) for row in rows]}
        title = f"{algorithm.name}, {args.dataset}, {args.clients} clients"
        federated_run.draw_accuracy(Path(args.out) / "accuracy.png", curve, title)
        print(f"\nkept: {args.out}/metrics.csv, accuracy.png, checkpoint.pt")
    return Outcome({**described, "weights": federation.weights, "rounds": rows})


def _check_figures(args: argparse.Namespace, federation: Federation, algorithm: Algorithm[State]) -> None:
    """Make every kind of figure once before a round is paid for: whatever refuses the run does so here."""
    x, y = federation.test
    some = torch.stack([y.argmin(), y.argmax()])  # a label may have no output
    training.accuracy(federation.network, algorithm.start.weights, x[some], y[some])
    algorithm.honest(args.rounds)


@contextlib.contextmanager
def _trainers(
    args: argparse.Namespace,
    federation: Federation,
    config: ldp_fl.Config | ldp_fed.Config,
    network: str,
    busy: int,
) -> Iterator[_Trainers]:
    if isinstance(config, ldp_fl.Config) and args.engine == "flower":
        from ldpkernels.commands import flower_run

        with flower_run.uploads(args, config, network) as uploads:
            yield {"uploads": uploads}
        return
    with federated_run.hired(args, federation, config.local, busy) as crew:
        yield {"workers": crew}
