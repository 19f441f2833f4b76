# SPDX-License-Identifier: Apache-2.0
"""The command line of `ldpkernels fl ldp-fed`."""

from __future__ import annotations

import argparse

from ldpkernels.commands import federated_options, options
from ldpkernels.commands.options import Commands
from ldpkernels.commands.program import Outcome
from ldpkernels.laws.ordinal_cldp_thresholds import LARGEST_RHO

DATASETS = ("digits", "mnist", "fashion-mnist")
METHODS = ("basic", "single-layer", "alpha-cldp-fed")


def add_parser(algorithms: Commands) -> None:
    """Add the command line of `fl ldp-fed`."""
    parser = algorithms.add_parser(
        "ldp-fed",
        help="LDP-Fed: updates under alpha-CLDP, layer by layer",
        description="LDP-Fed (Truex and others, EdgeSys 2020). alpha is the privacy of one step of 10^-rho, added up "
        "over all rounds; the table's column of honest eps is what a client has lost in the worst case: "
        "alpha 2c 10^rho.",
        epilog="example: ldpkernels fl ldp-fed --data DIR --dataset fashion-mnist --clients 50 --select 9 "
        "--rounds 80 --alpha 1 --c 1 --rho 10 --method alpha-cldp-fed --cycles 5",
    )
    federated_options.add_run(parser, datasets=DATASETS, clients=50, rounds=80)
    parser.add_argument("--network", help="one of ldpkernels.federated.networks (default: the dataset's)")
    parser.add_argument("--method", choices=METHODS, default="alpha-cldp-fed", help="default alpha-cldp-fed")
    selection = parser.add_argument_group("selection")
    selection.add_argument(
        "--select", type=options.integer(1), default=9, metavar="K", help="uploads that a round takes (default 9)"
    )
    selection.add_argument(
        "--selection",
        choices=("fixed", "poisson"),
        default="fixed",
        help="exactly K, or each upload with probability K / N (default fixed)",
    )
    federated_options.add_mean(selection)
    module = parser.add_argument_group("LDP module")
    positive = options.number(above=0)
    module.add_argument("--alpha", type=positive, default=1.0, help="each client's budget for all rounds (default 1)")
    module.add_argument("--no-noise", action="store_true", help="send updates as they are: no privacy, to compare")
    module.add_argument("--c", type=positive, default=1.0, help="updates are clipped to [-c, c] (default 1)")
    module.add_argument(
        "--rho",
        type=options.integer(0, LARGEST_RHO),
        default=10,
        help="digits that are kept after the point (default 10)",
    )
    module.add_argument("--cycles", type=options.integer(1), default=5, help="of alpha-cldp-fed (default 5)")
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
    federated_options.add_training(parser, defaults=(1, 10, 0.1))
    federated_options.add_ledger(parser)
    parser.set_defaults(main=main, command="fl ldp-fed")


def main(args: argparse.Namespace) -> Outcome:
    """Check what can be checked without torch, then run."""
    federated_options.check(args)
    if args.ledger is not None and args.no_noise:
        raise ValueError("--ledger accounts for uploads under alpha-CLDP: leave it out with --no-noise")
    federated_options.check_ledger(args)
    if args.select > args.clients:
        raise ValueError(f"--select {args.select} of --clients {args.clients}: select at most as many")
    federated_options.take_own_data(args)
    from ldpkernels.commands import fl_run

    return fl_run.run_ldp_fed(args)
