# SPDX-License-Identifier: Apache-2.0
"""The command line: `ldpkernels COMMAND`, or `python -m ldpkernels COMMAND`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ldpkernels import __version__
from ldpkernels.commands import account, audit, demo, fl, flower_node, options, plan, program, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; its exit status."""
    parser = options.Parser(prog="ldpkernels", description="Local differential privacy for model updates.")
    parser.add_argument("--version", action="version", version=f"ldpkernels {__version__}")
    commands = options.add_commands(parser, "COMMAND")
    for command in (plan, verify, audit, account, fl, flower_node, demo):
        command.add_parser(commands)
    return program.carry_out(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
