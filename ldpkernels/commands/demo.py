# SPDX-License-Identifier: Apache-2.0
"""`python -m ldpkernels demo`: LDP-FL on scikit-learn's digits, every upload one bit a weight.

The driver of `python -m ldpkernels fl ldp-fl`, run with noise and without, and with the piecewise mechanism at the same
eps.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ldpkernels.commands import federated_options

RADII = {"1": 0.25, "3": 0.35}  # of the two layers: what their weights grow to, known beforehand


def add_parser(commands: Any) -> None:
    """The command line of `demo`."""
    parser = commands.add_parser(
        "demo",
        help="LDP-FL on scikit-learn's digits: a table and a picture",
        description="Trains one small network over many clients by LDP-FL: with every weight reported under eps-local "
        "differential privacy as one bit, as one byte of the piecewise mechanism, and without noise. Ends with a table "
        "and, with --out, a picture.",
        epilog="example: python -m ldpkernels demo --eps 2 --clients 200 --out demo.png",
    )
    parser.add_argument("--clients", type=int, default=100, help="clients, all in every round (default 100)")
    parser.add_argument(
        "--eps", type=float, default=4.0, help="privacy parameter of each weight in a round (default 4)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="communication rounds (default 15)")
    parser.add_argument("--seed", type=int, default=0, help="seed of data split, weights and noise (default 0)")
    parser.add_argument("--out", metavar="FILE", help="draw the picture (.png, .svg, .pdf)")
    parser.set_defaults(run=federated_options.guarded("demo", main))


def main(args: argparse.Namespace) -> int:
    """Train, print, draw; the exit status."""
    from ldpkernels.federated import runs

    started = time.perf_counter()
    ways = {
        f"eps={args.eps:g}, one bit a weight": ("two-point", args.eps),
        f"eps={args.eps:g}, one byte (piecewise)": ("piecewise", args.eps),
        "no noise": ("two-point", None),
    }
    results = {name: _federate(args, mechanism, eps, name) for name, (mechanism, eps) in ways.items()}
    curves = {name: [row["accuracy"] for row in rows] for name, (rows, _) in results.items()}
    rows, weights = next(iter(results.values()))
    table = [{"round": i + 1, **{name: values[i] for name, values in curves.items()}} for i in range(args.rounds)]
    print("\n" + runs.table(table, {"round": "d", **dict.fromkeys(curves, ".1%")}))
    print(f"\n{args.clients} clients, {weights:,} weights, {time.perf_counter() - started:.0f} seconds.")
    print(f"One upload is {rows[0]['upload_bytes']} bytes with its header, instead of {4 * weights:,}.")
    print(
        f"eps={args.eps:g} is the privacy of each weight on its own. All {weights:,} weights of one upload together "
        f"are {weights:,} x {args.eps:g} = {weights * args.eps:,g} by basic composition: see docs/privacy.md."
    )
    if args.out:
        federated_options.draw_accuracy(Path(args.out), curves, f"LDP-FL on digits, {args.clients} clients")
        print(f"picture: {args.out}")
    return 0


def _federate(args: argparse.Namespace, mechanism: Any, eps: float | None, label: str) -> tuple[list[Any], int]:
    """The rows of one run, and the size of the model."""
    import torch

    import ldpkernels
    from ldpkernels.federated import data, ldp_fl, networks, runs, training

    torch.set_num_threads(1)  # so small a network gains nothing from two, and loses much where cores are shared
    digits, network = data.load("digits"), networks.network("digits-mlp", args.seed)
    parts = data.deal(digits.train_y, args.clients, args.seed)
    clients = training.clients_of(digits.train_x, digits.train_y, parts, ldpkernels.key(args.seed))
    local = training.Local(epochs=4, batch=len(parts[0]), rate=0.5)
    config = ldp_fl.Config(eps=eps, C=0.0, R=RADII, mechanism=mechanism, local=local, seed=args.seed)

    def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
        after, row = ldp_fl.round_(state, clients, network, config)
        return after, {**row, "accuracy": training.accuracy(network, after.weights, digits.test_x, digits.test_y)}

    _, rows = runs.run(step, ldp_fl.init(network, config), args.rounds, label=label)
    return rows, sum(p.numel() for p in network.parameters())
