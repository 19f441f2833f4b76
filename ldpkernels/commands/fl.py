# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl`: the papers' federated algorithms, each a command of its own."""

from __future__ import annotations

from ldpkernels.commands import han_xue, ldp_fed, ldp_fl, options
from ldpkernels.commands.options import Commands


def add_parser(commands: Commands) -> None:
    """Add the command line of `fl`."""
    parser = commands.add_parser(
        "fl",
        help="the papers' federated algorithms on their datasets",
        description="Simulates all the clients of a federated algorithm on this machine.",
        epilog="example: ldpkernels fl ldp-fl --data DIR --dataset mnist --clients 100 --eps 1",
    )
    algorithms = options.add_commands(parser, "ALGORITHM")
    for algorithm in (ldp_fl, ldp_fed, han_xue):
        algorithm.add_parser(algorithms)
