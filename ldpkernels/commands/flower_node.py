# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels flower-node`: in the place of Flower's `flwr-clientapp`, by what a node's owner allows."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ldpkernels.commands import options
from ldpkernels.commands.options import Commands
from ldpkernels.commands.program import Outcome
from ldpkernels.common.optional import require

_ADDRESS = "127.0.0.1:9094"  # where a SuperNode listens by default


def add_parser(commands: Commands) -> None:
    """Add the command line of `flower-node`."""
    parser = commands.add_parser(
        "flower-node",
        help="run the apps of a Flower SuperNode so that nothing leaves but what its owner's file allows",
        description="Takes the place of flower-superexec and flwr-clientapp next to `flower-supernode --isolation "
        "process`: each task's app trains in a process of its own, and what leaves is a report by the numbers of the "
        "owner's file. The log on stderr has the reasons of all refusals. Options of its own come before FILE.",
        epilog=f"{_flowers().format_usage()}example: ldpkernels flower-node /etc/ldp/privacy.toml -- --insecure",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the owner's TOML file (docs/flower_node.md)")
    parser.add_argument("--check", action="store_true", help="try the file and this machine, and end")
    parser.add_argument(
        "flower", nargs="*", metavar="-- OPTIONS", help="how the SuperNode is reached, as Flower has it"
    )
    options.add_json(parser)
    parser.set_defaults(main=main, command="flower-node")


def _flowers() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ldpkernels flower-node FILE --", add_help=False, allow_abbrev=False)
    parser.add_argument("--runtime-api-address", default=_ADDRESS, metavar="HOST:PORT")
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--root-certificates", metavar="FILE")
    parser.add_argument("--superexec-auth-secret-file", metavar="FILE")
    parser.add_argument("--token-file", metavar="FILE")  # of one task; "-" is standard input
    return parser


def main(args: argparse.Namespace) -> Outcome:
    """Answer tasks until this process is stopped, or the one that a token is for."""
    require("flwr", "flower", "flower-node")
    from ldpkernels.commands import flower_node_run

    flower = _flowers().parse_args(args.flower)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # of which a second has a line
    return Outcome({"tasks": flower_node_run.run(args.file, flower, check=args.check)})
