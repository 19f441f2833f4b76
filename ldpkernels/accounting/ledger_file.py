# SPDX-License-Identifier: Apache-2.0
"""The file of a ledger: an SQLite database, in which every round is bound to all rounds before it.

SQLite does the writing: a round is in the file whole or not at all, one writer at a time, and durable before `COMMIT`
returns. `synchronous = EXTRA` and not FULL: a power loss could else bring a deleted journal back, which undoes a round
that was released. What stays ours is what a ledger's file has to be: a regular file with one name, the same one as
before, with these two tables and nothing else, in which each round's digest is of the digest before and of the round.

No connection outlives a transaction, and no fork happens within one, so no child holds a half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ldpkernels.accounting.events import Event, event_from_dict
from ldpkernels.common import arguments

if TYPE_CHECKING:
    import sqlite3

# SQLite's count of the rounds that were ever written (AUTOINCREMENT) shows rounds that are gone from the end.
TABLES = {
    "ledger": "CREATE TABLE ledger (epsilon REAL NOT NULL, delta REAL NOT NULL, method TEXT NOT NULL)",
    "rounds": "CREATE TABLE rounds (round INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL,"
    " times INTEGER NOT NULL, epsilon REAL NOT NULL, layout TEXT NOT NULL, digest TEXT NOT NULL)",
    "sqlite_sequence": "CREATE TABLE sqlite_sequence(name,seq)",
}
# fullfsync: on macOS a sync else ends in the drive's cache.
SETTINGS = (
    "journal_mode = DELETE",
    "synchronous = EXTRA",
    "fullfsync = ON",
    "trusted_schema = OFF",
    "cell_size_check = ON",
)
PATIENCE = 10.0  # seconds for another ledger on the same file to end its transaction
FORKING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=FORKING.acquire, after_in_parent=FORKING.release, after_in_child=FORKING.release)


class LedgerError(RuntimeError):
    """The ledger cannot be used as it is; the message says why, and what to do."""


def chained(*values: object) -> str:
    """Return the digest of plain values, of which the digest before is one."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


@dataclass(frozen=True)
class Header:
    """The budget, and how rounds are composed."""

    epsilon: float
    delta: float
    method: str

    @property
    def digest(self) -> str:
        """Where the rounds' digests begin."""
        return chained(self.epsilon, self.delta, self.method)


@dataclass(frozen=True)
class Round:
    """One round: `times` releases of an event, epsilon after it, and the digest of it and of all before.

    `layout` stands for what was released: its names, shapes and dtypes. It is empty where nobody said.
    """

    number: int
    event: Event
    times: int
    epsilon: float
    layout: str
    digest: str

    @classmethod
    def after(cls, before: str, number: int, event: Event, times: int, epsilon: float, layout: str = "") -> Round:
        """Return the round that follows the digest `before`."""
        digest = chained(before, number, event.to_dict(), times, epsilon, layout)
        return cls(number, event, times, epsilon, layout, digest)


class LedgerFile:
    """A place where a ledger is, or where one is to begin."""

    def __init__(self, path: str | os.PathLike[str], *, begin: bool = False) -> None:
        self.path = Path(os.path.realpath(path))
        if begin:
            with FORKING, suppress(FileExistsError):  # an empty file is an empty database
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self._place: tuple[int, int] | None = None
        self._place = self._found()

    def _found(self) -> tuple[int, int]:
        """Where the file is on its disk; refuses one that isn't the one that was opened, under its only name."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            found = None
        place = None if found is None else (found.st_dev, found.st_ino)
        if self._place is not None and place != self._place:
            raise LedgerError(
                f"{self.path} was renamed, deleted or replaced while the ledger was open, so another ledger may be"
                " spending the same budget: put it back, and open it again"
            )
        if found is None or place is None:
            raise LedgerError(f"{self.path} is not there: restore it, or take the whole budget as spent")
        if not stat.S_ISREG(found.st_mode):
            raise LedgerError(f"{self.path} is not a regular file: give the ledger a file of its own")
        if found.st_nlink > 1:
            raise LedgerError(
                f"{self.path} has {found.st_nlink} names (hard links), and a crash can be repaired under one only: "
                "remove the others"
            )
        return place

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a block alone in the file. What it wrote is durable when it ends, or undone where it raises."""
        import sqlite3  # here, for `import ldpkernels` need not have it

        address = f"{self.path.as_uri()}?mode={'rw' if write else 'ro'}"
        with FORKING:
            self._found()
            try:
                db = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
                try:
                    for setting in SETTINGS[not write :]:
                        db.execute(f"PRAGMA {setting}")
                    db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                    yield db
                    self._found()
                    db.execute("COMMIT")
                    self._found()
                finally:
                    db.close()
            except sqlite3.OperationalError as error:
                raise LedgerError(
                    f"{self.path} can't be used, and nothing is released: {error}. Check its locks, its permissions "
                    "and the disk, then try again"
                ) from error
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._corrupt(str(error)) from error

    def begin(self, db: sqlite3.Connection, header: Header) -> None:
        """Make an empty file a ledger."""
        if db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            db.execute(TABLES["ledger"])
            db.execute(TABLES["rounds"])
            db.execute("INSERT INTO ledger VALUES (?, ?, ?)", (header.epsilon, header.delta, header.method))

    def check(self, db: sqlite3.Connection) -> None:
        """Refuse a file that is damaged, or no ledger."""
        if dict(db.execute("SELECT name, sql FROM sqlite_master")) != TABLES:
            raise LedgerError(f"{self.path} holds no ledger of this version: give the ledger a file of its own")
        answer = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if answer != "ok":
            raise self._corrupt(answer)

    def read(self, db: sqlite3.Connection, number: int = 0, digest: str = "") -> tuple[Header, list[Round]]:
        """Return the header, and all rounds after round `number`, whose digest is known to be `digest`."""
        headers = db.execute("SELECT epsilon, delta, method FROM ledger LIMIT 2").fetchall()
        if len(headers) != 1:
            raise self._corrupt(f"{len(headers)} headers")
        header = Header(*headers[0])
        at = header.digest
        if number:
            at = next((row[0] for row in db.execute("SELECT digest FROM rounds WHERE round = ?", (number,))), "")
        if digest and at != digest:
            raise LedgerError(
                f"{self.path} is no longer what this ledger left: it was cut, rewritten, or replaced by an older copy. "
                "Restore the newest copy; if there is none, take the whole budget as spent"
            )
        rounds: list[Round] = []
        rows = "SELECT round, event, times, epsilon, layout, digest FROM rounds WHERE round > ? ORDER BY round"
        for found, event, times, epsilon, layout, kept in db.execute(rows, (number,)):
            number += 1
            try:
                epsilon = arguments.non_negative("epsilon", epsilon)
                event, times = event_from_dict(json.loads(event)), arguments.count("times", times)
                rounds.append(Round.after(at, number, event, times, epsilon, layout))
            except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
                raise self._corrupt(f"round {number}: {error}") from error
            at = rounds[-1].digest
            if (found, kept) != (number, at):
                raise self._corrupt(f"round {number} was changed, or rounds before it are missing")
        sequence = db.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
        if sequence != [("rounds", number)] * (number > 0):
            raise self._corrupt(f"it ends after round {number}, but SQLite has counted {sequence}")
        return header, rounds

    def write(self, db: sqlite3.Connection, one: Round) -> None:
        """Put a round at the end."""
        values = (one.number, json.dumps(one.event.to_dict()), one.times, one.epsilon, one.layout, one.digest)
        db.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", values)

    def _corrupt(self, why: str) -> LedgerError:
        with suppress(OSError), self.path.open("rb") as file:
            if file.read(9) == b'{"chain":':
                return LedgerError(
                    f"{self.path} is a ledger of lines of text, which this version doesn't read: end that run with the"
                    " version that began it, or take its whole budget as spent"
                )
        return LedgerError(
            f"{self.path} is not a ledger, or corrupt, so what was spent is not known ({why}). Restore the file from a"
            " backup; if there is none, take the whole budget as spent"
        )
