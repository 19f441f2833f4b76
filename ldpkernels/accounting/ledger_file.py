# SPDX-License-Identifier: Apache-2.0
"""The file of a ledger: JSON lines, only ever appended to, each bound to every byte before it.

A line is {"chain": c, "record": r}, in one exact form; c is a digest of all bytes of the file before the line, and of
r. So a byte that was changed, removed or inserted anywhere before the end shows, newlines and torn lines included.

Every line is durable before the next is written, so a crash tears one line at most, at the end. Whoever opens the file
next writes a "torn" record after it, and only so followed may a bad line lie in the middle. A torn end is shorter than
the shortest declaration with the shortest round after it: a longer one was damaged, and may hide a release that is
dearer than all that can still be read, so it is refused.

The chain has no key. Whoever can write the file can write all of it anew, or cut lines from its end, and it opens. What
guards against that is the last chain value, kept where they can't write (`Ledger.digest`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
import weakref
from dataclasses import dataclass
from pathlib import Path

from ldpkernels.accounting.events import PureEvent
from ldpkernels.accounting.ledger_records import FORMAT, Declared, Record, Spent, Torn, record_of, text_of


class LedgerError(RuntimeError):
    """The ledger can't be used as it is; the message says why, and what to do."""


class Chain:
    """The digest of every byte of the file so far."""

    def __init__(self, data: bytes = b"") -> None:
        self._seen = hashlib.sha256(data)

    def follow(self, data: bytes) -> None:
        """Take more bytes in."""
        self._seen.update(data)

    def copy(self) -> Chain:
        """The same digest, to go on from."""
        other = Chain()
        other._seen = self._seen.copy()
        return other

    def line(self, record: Record) -> tuple[str, bytes]:
        """The chain value of a record that follows, and its line."""
        text, seen = text_of(record), self._seen.copy()
        seen.update(text)
        value = seen.hexdigest()
        return value, b'{"chain":"%b","record":%b}\n' % (value.encode(), text)


def _length(record: Record) -> int:
    return len(Chain().line(record)[1])


# No line that a crash can tear is as long as the two together.
SHORTEST_ROUND = _length(Spent(1, 0, 0.0))
SHORTEST_PAIR = _length(Declared(PureEvent(0.0), 1)) + SHORTEST_ROUND
# So much of a line has 32 bits of its chain value, which no damage makes right.
TELLING = len(b'{"chain":"') + 8


@dataclass(frozen=True)
class Contents:
    """What a ledger's file holds.

    Attributes:
        records: The verified records.
        values: The chain value of each.
        chain: The digest of all bytes.
        torn: How many rounds the torn lines at the end may stand for.
        ends_in_newline: Whether the last line is whole.
    """

    records: tuple[Record, ...]
    values: tuple[str, ...]
    chain: Chain
    torn: int
    ends_in_newline: bool


def read(path: Path, data: bytes) -> Contents:
    """Verify a ledger's bytes."""
    lines = data.split(b"\n")
    ends = not lines[-1]
    if ends:
        lines.pop()
    records: list[Record] = []
    values: list[str] = []
    chain, before, bad = Chain(), Chain(), list[bytes]()
    for number, line in enumerate(lines, start=1):
        verified = _verified(line, chain)
        if verified is None:
            if not bad:
                before = chain.copy()
            bad.append(line)
        else:
            record, value = verified
            if bad or isinstance(record, Torn):
                rounds = _rounds(before, bad)
                if not bad or rounds is None or record != Torn(rounds):
                    raise _corrupt(path, lines, number - len(bad))
            bad = []
            records.append(record)
            values.append(value)
        chain.follow(line + b"\n" if number < len(lines) or ends else line)
    torn = _rounds(before, bad) if bad else 0
    if torn is None:
        raise _corrupt(path, lines, len(lines) - len(bad) + 1)
    return Contents(tuple(records), tuple(values), chain, torn, ends)


def _verified(line: bytes, chain: Chain) -> tuple[Record, str] | None:
    if len(line) >= SHORTEST_PAIR:
        return None
    try:
        record = record_of(json.loads(line)["record"])
        value, whole = chain.line(record)
    except (ValueError, KeyError, TypeError):
        return None
    return (record, value) if whole == line + b"\n" else None


def _rounds(before: Chain, bad: list[bytes]) -> int | None:
    """How many rounds lines that don't verify may stand for; None where no crash leaves such lines."""
    chain, torn, size = before.copy(), 0, 0
    for line in bad:
        # what a crash left of the record about the torn lines stands for no round
        repair = torn > 0 and line != b"" and chain.line(Torn(_most(torn, size)))[1].startswith(line)
        torn += not repair
        if not (repair and len(line) >= TELLING):
            size += len(line) + 1
        if size >= SHORTEST_PAIR or (not repair and _begins_whole(line)):
            return None
        chain.follow(line + b"\n")
    return _most(torn, size)


def _most(lines: int, size: int) -> int:
    """One round a line, or more where newlines are gone."""
    return max(lines, size // SHORTEST_ROUND)


def _begins_whole(line: bytes) -> bool:
    """Whether a whole line stands at its start: a torn write leaves none."""
    try:
        data, _ = json.JSONDecoder().raw_decode(line.decode("utf-8", "replace"))
    except ValueError:
        return False
    return isinstance(data, dict) and set(data) == {"chain", "record"}


def _corrupt(path: Path, lines: list[bytes], number: int) -> LedgerError:
    try:
        format_ = json.loads(lines[0])["record"]["format"] if number == 1 else FORMAT
    except (ValueError, KeyError, TypeError, RecursionError):
        format_ = FORMAT
    if format_ != FORMAT:
        return LedgerError(
            f"{path} has format {format_!r}, and this version reads {FORMAT}: go on with the version that began it"
        )
    return LedgerError(
        f"{path} is corrupt at line {number}: the line was changed, or lines before it are missing, so what was"
        " spent is not known. Restore the file from a backup; if there is none, take the whole budget as spent"
    )


def begin(path: Path, line: bytes) -> None:
    """Create the file with its first line, whole or not at all; nothing happens where there is a file."""
    if os.path.lexists(path):
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_new(draft, line)
        os.link(draft, path)
    except FileExistsError:
        return  # by another ledger, which has the lock or leaves it
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        _write_new(path, line)  # a file system without links
    finally:
        draft.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _write_new(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _write(descriptor, line)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


class Appender:
    """An open ledger's file: holds the lock, and makes every line durable before it returns.

    Before and after each line it looks whether the file still is the one that was locked, where it was and as long as
    it has to be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._length = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        self.close = weakref.finalize(self, os.close, self._descriptor)  # once, also where it is forgotten
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise LedgerError(f"{path} is no regular file: give the ledger a file of its own")
            _lock(self._descriptor, path)
        except BaseException:
            self.close()
            raise
        _OPEN.add(self)

    def read(self) -> bytes:
        """The whole file."""
        parts = []
        while part := os.pread(self._descriptor, 1 << 20, self._length):
            parts.append(part)
            self._length += len(part)
        self._check()
        return b"".join(parts)

    def append(self, data: bytes) -> None:
        """Write and fsync; after a failure the file may be torn."""
        self._check()
        _write(self._descriptor, data)
        self._length += len(data)
        self._check()

    def _check(self) -> None:
        """Refuse a file that isn't the one that was locked, or that something else has written to."""
        held = os.fstat(self._descriptor)
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino):
            raise LedgerError(
                f"{self.path} was renamed, deleted or replaced while the ledger was open, so another ledger may be"
                " spending the same budget: put it back, and open it again"
            )
        if held.st_size != self._length:
            raise LedgerError(
                f"{self.path} has {held.st_size} bytes where this ledger left {self._length}: something else wrote to"
                " it or cut it. Let one ledger at a time write to the file, and open it again"
            )


_OPEN: weakref.WeakSet[Appender] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """A forked child lets go of its copies: kept, they would hold the lock when the parent has closed its own."""
    for appender in list(_OPEN):
        appender.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no advisory locks on this platform: a second writer is noticed by the file's length
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LedgerError(f"{path} is in use by another ledger: close that one first") from error
    except OSError as error:
        raise LedgerError(
            f"{path} can't be locked ({error}): keep the ledger on a file system that has locks"
        ) from error


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
