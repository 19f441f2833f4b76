# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m ldpkernels COMMAND`."""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

from ldpkernels import __version__
from ldpkernels.commands import account as _account_cli
from ldpkernels.commands import audit as _audit_cli
from ldpkernels.commands import demo, verify
from ldpkernels.commands import fl as _fl_cli


def main(arguments: list[str] | None = None) -> int:
    """Parse and run; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m ldpkernels", description="Local differential privacy for model updates."
    )
    parser.add_argument("--version", action="version", version=f"ldpkernels {__version__}")
    # No abbreviations: a mistyped --d must not become --delta.
    exact = functools.partial(argparse.ArgumentParser, allow_abbrev=False)
    commands: Any = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=exact)  # type: ignore[call-overload]
    for command in (verify, _audit_cli, _account_cli, _fl_cli, demo):
        command.add_parser(commands)
    args = parser.parse_args(arguments)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
