# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels demo` at work: LDP-FL on scikit-learn's digits, every upload one bit a weight.

The driver of `ldpkernels fl ldp-fl`, run with noise and without, and with the piecewise mechanism at the same eps.
"""

from __future__ import annotations

import argparse
import time

import torch

from ldpkernels.commands import federated_run
from ldpkernels.commands.federated_run import Federation
from ldpkernels.commands.program import Outcome
from ldpkernels.common.keys import key
from ldpkernels.federated import data, ldp_fl, networks, runs, training

RADII = {"1": 0.25, "3": 0.35}  # of the two layers: what their weights grow to, known beforehand


def compare(args: argparse.Namespace) -> Outcome:
    """Train in all three ways, print the table, draw the picture."""
    started = time.perf_counter()
    torch.set_num_threads(1)  # so small a network gains nothing from two, and loses much where cores are shared
    digits, network = data.load("digits"), networks.network("digits-mlp", args.seed)
    parts = data.deal(digits.train_y, args.clients, args.seed)
    clients = training.clients_of(digits.train_x, digits.train_y, parts, key(args.seed))
    federation = Federation(digits, network, clients)
    local = training.Local(epochs=4, batch=len(parts[0]), rate=0.5)
    ways = {
        f"eps={args.eps:g}, one bit a weight": ldp_fl.Config(args.eps, 0.0, RADII, local=local, seed=args.seed),
        f"eps={args.eps:g}, one byte (piecewise)": ldp_fl.Config(
            args.eps, 0.0, RADII, mechanism="piecewise", local=local, seed=args.seed
        ),
        "no noise": ldp_fl.Config(None, 0.0, RADII, local=local, seed=args.seed),
    }
    results = {name: rounds_of(federation, config, args.rounds, name) for name, config in ways.items()}
    curves = {name: [float(row["accuracy"] or 0) for row in rows] for name, rows in results.items()}
    table: list[runs.Row] = [
        {"round": i + 1, **{name: values[i] for name, values in curves.items()}} for i in range(args.rounds)
    ]
    weights, upload = federation.weights, next(iter(results.values()))[0]["upload_bytes"]
    print("\n" + runs.table(table, {"round": "d", **dict.fromkeys(curves, ".1%")}))
    print(f"\n{args.clients} clients, {weights:,} weights, {time.perf_counter() - started:.0f} seconds.")
    print(f"One upload is {upload} bytes with its header, instead of {4 * weights:,}.")
    print(
        f"eps={args.eps:g} is the privacy of each weight on its own. All {weights:,} weights of one upload together "
        f"are {weights:,} x {args.eps:g} = {weights * args.eps:,g} by basic composition: see docs/privacy.md. "
        f"{federated_run.of_seed(args.seed)}"
    )
    if args.out:
        federated_run.draw_accuracy(args.out, curves, f"LDP-FL on digits, {args.clients} clients")
        print(f"picture: {args.out}")
    facts = {"clients": args.clients, "eps": args.eps, "seed": args.seed, "weights": weights, "upload_bytes": upload}
    return Outcome({**facts, "rounds": table})


def rounds_of(federation: Federation, config: ldp_fl.Config, rounds: int, label: str) -> list[runs.Row]:
    """A row of figures for each round of one way."""

    def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
        after, row = ldp_fl.round_(state, federation.clients, federation.network, config)
        return after, {**row, "accuracy": federation.accuracy(after.weights)}

    return runs.run(step, ldp_fl.init(federation.network, config), rounds, label=label)[1]
