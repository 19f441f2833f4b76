# SPDX-License-Identifier: Apache-2.0
"""The frame around every command: --json, messages instead of tracebacks, exit statuses.

Status 0: done; 1: the command found what it looks for (a leak, a wrong mean); 2: it could not do what was asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ldpkernels.accounting import PrivacyResult
from ldpkernels.common.plot import make_folder


@dataclass(frozen=True)
class Outcome:
    """What a command found: plain data, as --json gives it, and the exit status."""

    found: object
    status: int = 0


class Refusal(SystemExit):
    """The end of a command that cannot do what was asked for: its message, and status 2."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.code = status


def carry_out(args: argparse.Namespace) -> int:
    """Run the command that the arguments name; the exit status."""
    try:
        with contextlib.redirect_stdout(sys.stderr) if args.json == "-" else contextlib.nullcontext():
            outcome: Outcome = args.main(args)
        _write_json(args.json, outcome.found)
    except BrokenPipeError:  # whoever read the text, `head` say, has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except KeyboardInterrupt:
        raise _refused(args, "interrupted", 130) from None
    except (ValueError, ArithmeticError, OSError, ImportError, RuntimeError, MemoryError) as error:
        raise _refused(args, str(error) or type(error).__name__) from error
    return outcome.status


def plain(value: object) -> object:
    """The value as JSON has it: dataclasses and rows are objects, and infinity, which JSON has not, is the word."""
    if isinstance(value, PrivacyResult):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return value


# Arguments of functions, whose options have another name.
_OPTIONS = {"R": "radius", "C": "center", "eps0": "eps", "epsilon": "eps"}


def _as_written(args: argparse.Namespace, message: str) -> str:
    """The message with "--radius -1" where the function that refused says "R = -1"."""

    def option(found: re.Match[str]) -> str:
        name = found[1] if hasattr(args, found[1]) else _OPTIONS.get(found[1], "")
        return "--" + name.replace("_", "-") + " " if hasattr(args, name) else found[0]

    return re.sub(r"(?<![\w.-])(\w+) ?= ?(?=[\w.'\"-])", option, message)


def _refused(args: argparse.Namespace, message: str, status: int = 2) -> Refusal:
    message = _as_written(args, message)
    words = f"ldpkernels {args.command}: {message}"
    print(words, file=sys.stderr)
    return Refusal(words, status)


def _write_json(target: str | None, found: object) -> None:
    if target is None:
        return
    text = json.dumps(plain(found), indent=1, allow_nan=False)
    if target == "-":
        print(text)
    else:
        make_folder(Path(target).absolute().parent)
        Path(target).write_text(text + "\n")
