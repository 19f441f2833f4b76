# SPDX-License-Identifier: Apache-2.0
"""The file of a ledger: JSON lines, only ever appended to, each bound to all before it.

A line is {"chain": c, "record": r}; c is a hash over the previous c and r, so a changed, missing or inserted line
shows. A crash can only tear the end of the file. Lines at the end that don't verify are torn; whoever opens the file
next writes a "torn" record after them, which says how many lines it stands for, and only so followed may a bad line
lie in the middle.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class LedgerError(RuntimeError):
    """The ledger can't be used as it is; the message says why, and what to do."""


@dataclass(frozen=True)
class Contents:
    """What a ledger's file holds: the verified records, the last chain value, and the torn lines at the end."""

    records: tuple[dict[str, Any], ...]
    chain: str
    torn: tuple[bytes, ...]
    ends_in_newline: bool


def link(chain: str, record: dict[str, Any]) -> str:
    """The chain value of a record that follows `chain`."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(f"{chain}\n{text}".encode()).hexdigest()[:32]


def encode(chain: str, record: dict[str, Any]) -> tuple[str, bytes]:
    """Return the record's chain value and its line."""
    value = link(chain, record)
    line = json.dumps({"chain": value, "record": record}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return value, line.encode() + b"\n"


def _verified(line: bytes, chain: str) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
        record = data["record"]
        good = isinstance(record, dict) and data["chain"] == link(chain, record)
    except (ValueError, KeyError, TypeError):
        return None
    return record if good else None


def read(path: Path) -> Contents:
    """Read and verify a ledger's file."""
    data = path.read_bytes()
    lines = data.split(b"\n")
    ends = lines.pop() == b"" if data.endswith(b"\n") else not data
    records: list[dict[str, Any]] = []
    chain, bad, first_bad = "", [], 0
    for number, line in enumerate(lines, start=1):
        record = _verified(line, chain)
        if record is None:
            first_bad = first_bad or number
            bad.append(line)
            continue
        if bad and not (record.get("type") == "torn" and record.get("lines") == len(bad)):
            _refuse(path, first_bad)
        if not bad and record.get("type") == "torn":
            _refuse(path, number)
        bad, first_bad = [], 0
        chain = link(chain, record)
        records.append(record)
    # a bad line takes all after it along, since the chain breaks there; a torn write leaves no whole line behind
    if any(_shaped(line) for line in bad):
        _refuse(path, first_bad)
    return Contents(tuple(records), chain, tuple(bad), ends)


def _shaped(line: bytes) -> bool:
    try:
        data = json.loads(line)
    except ValueError:
        return False
    return isinstance(data, dict) and set(data) == {"chain", "record"}


def _refuse(path: Path, number: int) -> None:
    raise LedgerError(
        f"{path} is corrupt at line {number}: the line was changed, or lines before it are missing, so what was"
        " spent is not known. Restore the file from a backup; if there is none, take the whole budget as spent"
    )


class Appender:
    """An open ledger's file: holds the lock, and makes every line durable before it returns."""

    def __init__(self, path: Path, *, create: bool) -> None:
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if create else 0)
        self.path = path
        self._descriptor = os.open(path, flags, 0o600)
        try:
            _lock(self._descriptor, path)
            if create:
                _sync_directory(path.parent)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.broken = False

    def append(self, data: bytes) -> None:
        """Write and fsync; after a failure the file may be torn, and this object refuses to go on."""
        if self.broken:
            raise LedgerError(f"an earlier write to {self.path} failed: open the ledger again")
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except BaseException:
            self.broken = True
            raise

    def close(self) -> None:
        """Release the file and its lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no advisory locks on this platform: one writer is then up to the caller
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LedgerError(f"{path} is in use by another ledger: close that one first") from error


def _sync_directory(directory: Path) -> None:
    """Make the new name durable; a platform that can't open directories makes names durable by itself."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
