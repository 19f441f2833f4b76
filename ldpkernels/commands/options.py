# SPDX-License-Identifier: Apache-2.0
"""Types of arguments, which argparse checks before any work, and the options that every command has."""

from __future__ import annotations

import argparse
import dataclasses
import decimal
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from ldpkernels.common import plot

if TYPE_CHECKING:
    import torch

LARGEST = 2**63
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """A parser whose refusal is one line. Options are not abbreviated: a mistyped --d must not become --delta."""

    __init__ = partialmethod(argparse.ArgumentParser.__init__, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse."""
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what the command does not know by the command's own name; argparse would leave it to the program's."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


def add_commands(parser: Parser, metavar: str) -> Commands:
    """Add commands, one of which must be given."""
    return parser.add_subparsers(metavar=metavar, required=True)


def taken(args: argparse.Namespace, kind: Callable[..., T], **other: object) -> T:
    """Make a dataclass of the options that have its fields' names, and of what else is given."""
    named = {field.name for field in dataclasses.fields(kind)} & vars(args).keys()  # type: ignore[arg-type]
    return kind(**({name: getattr(args, name) for name in named} | other))


def add_json(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --json, which means the same for every command."""
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        type=json_file,
        metavar="FILE",
        help="also give the result as JSON: to FILE.json, or without FILE on stdout (other text: stderr)",
    )


def add_epsilon(parser: argparse.ArgumentParser | argparse._ArgumentGroup, **told: Any) -> None:
    """Add --eps, for which --epsilon is another word, everywhere."""
    parser.add_argument("--eps", "--epsilon", type=number(above=0), **told)


def count(text: str) -> int:
    """A whole number, as people write it: 1000000, 1,000,000, 1_000_000 or 1e6."""
    grouped = re.fullmatch(r"-?\d{1,3}(,\d{3})+", text)
    try:
        value = decimal.Decimal(text.replace(",", "") if grouped else text)
        if value == value.to_integral_value() and abs(value) < LARGEST:
            return int(value)
    except decimal.InvalidOperation:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number below 2^63")


def integer(least: int, most: int = LARGEST - 1) -> Callable[[str], int]:
    """A whole number from the least to the most."""

    def read(text: str) -> int:
        value = count(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small: use at least {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{value} is too large: use at most {most}")
        return value

    return read


seed = integer(0)  # of `ldpkernels.key` and torch


def number(
    *, above: float = -float("inf"), least: float = -float("inf"), below: float = float("inf")
) -> Callable[[str], float]:
    """A finite number within bounds, of which `least` is allowed and the others are not."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (above < value < below and value >= least):
            bounds = [f"above {above:g}"] * (above > -float("inf")) + [f"at least {least:g}"] * (least > -float("inf"))
            bounds += [f"below {below:g}"] if below < float("inf") else ["finite"]
            raise argparse.ArgumentTypeError(f"{text} must be {' and '.join(bounds)}")
        return value

    return read


def picture(text: str) -> str:
    """A file that matplotlib can write."""
    try:
        plot.check_format(text)
    except (ImportError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return writable(text)


def json_file(text: str) -> str:
    """A file for JSON; the suffix keeps an argument that follows from being taken for its name."""
    if text == "-":
        return text
    if Path(text).suffix != ".json":
        raise argparse.ArgumentTypeError(f"{text!r} is not a file for JSON: end its name in .json")
    return writable(text)


def run_folder(text: str) -> str:
    """A folder that exists or can be made, for figures and a picture."""
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file: give a folder")
    picture(str(Path(text) / "accuracy.png"))
    return text


def writable(text: str) -> str:
    """A file that can be written, which is tried: permissions do not tell of file systems that take no files."""
    path = Path(text)
    try:
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r} is a folder: give a file")
        place = next(parent for parent in path.absolute().parents if parent.exists())
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            tempfile.TemporaryFile(dir=place).close()
    except NotADirectoryError:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {str(place)!r} is not a folder") from None
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None
    return text


def found(option: str, path: str) -> object:
    """What a user's MODULE:NAME names, from the working folder or wherever Python finds it."""
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"{option} {path}: write it as MODULE:NAME")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: object = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a module of the user's raises
        raise ValueError(f"{option} {path}: {error}") from error
    return value


def device(name: str) -> torch.device:
    """The device, if this machine has it and the kernels reach it."""
    import torch

    try:
        found = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name} is unknown to torch: use cpu or cuda") from None
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {name}: the kernels reach cpu and cuda only")
    count = torch.cuda.device_count() if found.type == "cuda" else 1
    if (found.index or 0) >= count:
        raise ValueError(f"--device {name}: torch finds {count} CUDA devices here: use --device cpu")
    return found
