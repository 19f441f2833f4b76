# SPDX-License-Identifier: Apache-2.0
"""The command line of `ldpkernels demo`."""

from __future__ import annotations

import argparse

from ldpkernels.commands import federated_options, options
from ldpkernels.commands.options import Commands
from ldpkernels.commands.program import Outcome


def add_parser(commands: Commands) -> None:
    """Add the command line of `demo`."""
    parser = commands.add_parser(
        "demo",
        help="LDP-FL on scikit-learn's digits: a table and a picture",
        description="Trains one small network over many clients by LDP-FL: with every weight reported under eps-local "
        "differential privacy as one bit, as one byte of the piecewise mechanism, and without noise. Ends with a table "
        "and, with --out, a picture.",
        epilog="example: ldpkernels demo --eps 2 --clients 200 --out demo.png",
    )
    whole = options.integer(1)
    parser.add_argument("--clients", type=whole, default=100, help="clients, all in every round (default 100)")
    options.add_epsilon(parser, default=4.0, help="privacy parameter of each weight in a round (default 4)")
    parser.add_argument("--rounds", type=whole, default=15, help="communication rounds (default 15)")
    parser.add_argument(
        "--seed", type=options.seed, default=0, help="decides data split, weights and noise (default 0)"
    )
    parser.add_argument("--out", type=options.picture, metavar="FILE", help="draw the picture (.png, .svg, .pdf)")
    options.add_json(parser)
    parser.set_defaults(main=main, command="demo", resume=False)


def main(args: argparse.Namespace) -> Outcome:
    """Check what can be checked without torch, then run."""
    federated_options.check(args)
    from ldpkernels.commands import demo_run

    return demo_run.compare(args)
