# SPDX-License-Identifier: Apache-2.0
"""What the owner of a node has set down for it: read from its configuration, and narrowed by a run's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomllib

from ldpkernels.common.arrays import Array
from ldpkernels.releases.written import law_of

FILE = "ldp"  # the key of a node's configuration that has the path; others begin with it and a dot
PREFIX = "ldp."
NARROWER = ("budget",)  # what a run may ask less of. An eps that runs choose one after another is in no composition.
PATHS = ("ledger", "claims")
_TEXT = ("mechanism", "ledger", "claims", "upload", "buffers", "unit")
_NUMBERS = ("eps", "norm", "bound", "budget", "delta", "answer_after")
_COUNTS = ("threshold", "colluders")
_FLAGS = ("adaptive",)
_TABLES = ("law", "central", "roster", "identity", "like", "app")
NODES = ("unit", "app")  # what no mod takes: they are for `hosting`, where the app is in a process of its own
KEYS = (*_NUMBERS, *_COUNTS, *_FLAGS, *_TEXT, "metrics", *_TABLES)


@dataclass(frozen=True)
class Settings:
    """Arguments of `LdpMod`, where they are from, a run's own end of the budget, and what else the owner says."""

    settings: dict[str, object]
    source: str
    limit: float | None
    more: dict[str, object]


def settings_of(node: Mapping[str, object], run: Mapping[str, object]) -> Settings:
    """What a node's configuration and a run's say together. An error names the file, the key, the value and the cure.

    >>> settings_of({"ldp.eps": 1.0, "ldp.budget": 4.0, "partition-id": 0}, {"ldp.budget": 2.0}).limit
    2.0
    >>> settings_of({"ldp.eps": 1.0, "ldp.budget": 4.0}, {"ldp.budget": 8.0})
    Traceback (most recent call last):
    ValueError: the run's configuration: ldp.budget = 8.0 is more than the node's 4.0: a run can ask for less, not more
    """
    found, source = _own({name.removeprefix(PREFIX): v for name, v in node.items() if name.startswith(PREFIX)}, node)
    asked = {name.removeprefix(PREFIX): value for name, value in run.items() if name.startswith(PREFIX)}
    limit = None
    for name, value in asked.items():
        where = f"the run's configuration: {PREFIX}{name} = {value!r}"
        if name not in NARROWER:
            raise ValueError(
                f"{where} cannot be set by a run: it may set only {' and '.join(NARROWER)}, and only lower"
            )
        if name not in found:
            raise ValueError(f"{where}, which {source} does not set: let the node's owner set it")
        number, most = _number(value, where), found[name]
        assert isinstance(most, float)
        if not 0 < number <= most:
            raise ValueError(f"{where} is more than the node's {most!r}: a run can ask for less, not more")
        limit = number  # the ledger's own stays what it was begun with
    return Settings(found, source, limit, {name: found.pop(name) for name in NODES if name in found})


def read(node: Mapping[str, object]) -> tuple[list[tuple[str, object]], str]:
    """A node's configuration, and the text of the file that it names."""
    if FILE not in node:
        return sorted(node.items()), ""
    try:
        return sorted(node.items()), Path(str(node[FILE])).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"{node[FILE]}, of the node's configuration {FILE}, can't be read: {error}") from error


def _own(given: dict[str, object], node: Mapping[str, object]) -> tuple[dict[str, object], str]:
    """The settings of a node's owner, and where they are from."""
    source, said = "the node's configuration", given
    if FILE in node:
        source = str(node[FILE])
        try:
            said = tomllib.loads(read(node)[1])
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{source}, of the node's configuration {FILE}, can't be read: {error}") from error
        if twice := sorted(said.keys() & given.keys()):
            raise ValueError(f"{source}: {twice[0]} is in the node's configuration too: set it in one of them")
        said = {**given, **said}
    if not said:
        raise ValueError(
            f"the node's configuration has no {FILE}: start the SuperNode with --node-config \"{FILE}='/path/of.toml'\""
        )
    return {name: _value(name, value, f"{source}: {name} = {value!r}") for name, value in said.items()}, source


def _value(name: str, value: object, where: str) -> object:
    """A value in the type that `LdpMod` takes."""
    if name in _NUMBERS:
        return _number(value, where)
    if name in _COUNTS:
        if type(value) is not int:
            raise ValueError(f"{where} is not a whole number")
        return value
    if name in _FLAGS:
        if type(value) is not bool:
            raise ValueError(f"{where} is neither true nor false")
        return value
    if name in _TEXT:
        if not isinstance(value, str):
            raise ValueError(f"{where} is not text: put it in quotes")
        if name in PATHS and not Path(value).is_absolute():
            raise ValueError(f"{where} is not an absolute path: from another folder it would be another file")
        return value
    if name == "metrics":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{where} is not a list of names")
        return value
    if name not in _TABLES:
        raise ValueError(f"{where} is unknown: keys are {', '.join(KEYS)}")
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a table: begin it with [{name}]")
    if name == "roster":
        return {_whole(number, where): _key(key, where) for number, key in value.items()}
    if name == "app":
        return value
    if name == "like":
        return {array: _like(form, where) for array, form in value.items()}
    if name == "identity":
        if value.keys() != {"number", "key"}:
            raise ValueError(f"{where} needs number and key: this client's number, and the file of its private key")
        return _whole(value["number"], where), _key(_read(str(value["key"]), where), where)
    try:
        return law_of(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _like(form: object, where: str) -> Array:
    """An array of this dtype and shape that takes no memory."""
    try:
        if not isinstance(form, list):
            raise TypeError("not a list")
        return np.broadcast_to(np.zeros((), np.dtype(form[0])), form[1:])
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f'{where}: {form!r} is not the dtype and shape of an array ({error}): write ["float32", 10, 784]'
        ) from None


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} is not a number: write it without quotes")
    return float(value)


def _whole(value: object, where: str) -> int:
    text = str(value)
    if not text.isdecimal():
        raise ValueError(f"{where}: {value!r} is not a client's number: write 0, 1, 2, ...")
    return int(text)


def _key(text: object, where: str) -> bytes:
    try:
        key = bytes.fromhex(str(text).strip())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ValueError(f"{where}: a key is 64 hexadecimal digits, those of secure_sums.new_identity")
    return key


def _read(path: str, where: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: the key can't be read: {error}") from error
