# SPDX-License-Identifier: Apache-2.0
"""`python -m ldpkernels fl`: the papers' federated algorithms, each a command of its own."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from ldpkernels.commands import han_xue as _han_xue_cli
from ldpkernels.commands import ldp_fed as _ldp_fed_cli
from ldpkernels.commands import ldp_fl as _ldp_fl_cli

ALGORITHMS = (_ldp_fl_cli, _ldp_fed_cli, _han_xue_cli)


def add_parser(commands: Any) -> None:
    """The command line of `fl`."""
    parser = commands.add_parser(
        "fl",
        help="the papers' federated algorithms on their datasets",
        description="Simulates all the clients of a federated algorithm on this machine.",
        epilog="example: python -m ldpkernels fl ldp-fl --data DIR --dataset mnist --clients 100 --eps 1",
    )
    exact = functools.partial(argparse.ArgumentParser, allow_abbrev=False)
    algorithms = parser.add_subparsers(metavar="ALGORITHM", required=True, parser_class=exact)
    for algorithm in ALGORITHMS:
        algorithm.add_parser(algorithms)
