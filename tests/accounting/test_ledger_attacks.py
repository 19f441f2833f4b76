# SPDX-License-Identifier: Apache-2.0
"""What misuse and malice do to a ledger and its file: whatever happens, no more than the budget is ever released."""

import copy
import os
import pickle
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from ldpkernels.accounting import Ledger, LedgerError, PureEvent, ShuffledEvent
from ldpkernels.accounting.ledger_file import Header, LedgerFile, Round
from ldpkernels.common.arguments import MOST
from tests.accounting.test_ledger import filled, opened


def test_a_ledger_is_not_copied() -> None:
    ledger = Ledger(None, epsilon=1.0)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="each would spend the whole remainder"):
            duplicate(ledger)  # type: ignore[operator]


def test_a_renamed_file_stops_its_ledger(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with opened(path, 1.0) as first:
        first.spend(PureEvent(0.1))
        path.rename(tmp_path / "moved.ledger")
        with opened(path, 1.0) as second:
            second.spend(PureEvent(0.9))
            with pytest.raises(LedgerError, match="was renamed, deleted or replaced"):
                first.spend(PureEvent(0.9))
    with opened(tmp_path / "moved.ledger", 1.0) as moved:
        assert moved.epsilon == 0.1


@pytest.mark.parametrize("change", ["delete", "replace", "other directory"])
def test_a_deleted_or_replaced_file_stops_its_ledger(tmp_path: Path, change: str) -> None:
    path = tmp_path / "place" / "run.ledger"
    path.parent.mkdir()
    with opened(path) as ledger:
        ledger.spend(PureEvent(0.1))
        before = path.read_bytes()
        if change == "replace":
            (tmp_path / "copy").write_bytes(before)
            (tmp_path / "copy").rename(path)
        elif change == "delete":
            path.unlink()
        else:
            path.parent.rename(tmp_path / "elsewhere")
        for _ in range(2):  # and it stays stopped
            with pytest.raises(LedgerError, match="was renamed, deleted or replaced"):
                ledger.spend(PureEvent(0.1))
        assert change != "replace" or path.read_bytes() == before


def test_a_file_renamed_while_a_round_is_written_releases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.ledger"
    with opened(path) as ledger:
        write = LedgerFile.write

        def moving(file: LedgerFile, db: sqlite3.Connection, one: Round) -> None:
            write(file, db, one)
            path.rename(tmp_path / "moved.ledger")

        monkeypatch.setattr(LedgerFile, "write", moving)
        with pytest.raises(LedgerError, match="was renamed, deleted or replaced"):
            ledger.spend(PureEvent(0.1))


def test_an_older_copy_put_back_in_place_stops_its_ledger(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with opened(path) as ledger:
        copies = [path.read_bytes()]
        for _ in range(3):
            ledger.spend(PureEvent(0.1))
            copies.append(path.read_bytes())
        for older in (*copies[:-1], b""):
            path.write_bytes(older)
            with pytest.raises(LedgerError, match=r"no longer what this ledger left|holds no ledger|can't be used"):
                ledger.spend(PureEvent(0.1))
        path.write_bytes(copies[-1])
        assert ledger.spend(PureEvent(0.1)).epsilon == 0.4


def test_one_file_by_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is followed once, as is the working directory. A hard link is refused: a crash is repaired by name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "soft.ledger").symlink_to("run.ledger")
    with opened(Path("run.ledger"), 1.0) as ledger, opened(Path("soft.ledger"), 1.0) as soft:
        monkeypatch.chdir(tmp_path / "other")
        ledger.spend(PureEvent(0.5))
        assert soft.spend(PureEvent(0.5)).epsilon == 1.0
        (tmp_path / "hard.ledger").hardlink_to(tmp_path / "run.ledger")
        with pytest.raises(LedgerError, match="has 2 names"):
            ledger.spend(PureEvent(0.1))
        with pytest.raises(LedgerError, match="has 2 names"):
            opened(tmp_path / "hard.ledger", 1.0)


def text_ledger(path: Path) -> None:
    path.write_bytes(b'{"chain":"00","record":{"format":2,"type":"ledger"}}\n')


def other_database(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE rounds (round)")


def with_a_trigger(path: Path) -> None:
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TRIGGER forget AFTER INSERT ON rounds BEGIN DELETE FROM rounds; END")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to("/dev/null"), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (text_ledger, "lines of text, which this version doesn't read: end that run"),
        (other_database, "no ledger of this version"),
        (with_a_trigger, "no ledger of this version"),
        (lambda path: path.write_bytes(b"\n" * 10**5), "corrupt"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(10**5)), "corrupt"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / "run.ledger")
    with pytest.raises(LedgerError, match=message):
        opened(tmp_path / "run.ledger")


def test_no_byte_can_be_changed_to_pay_less(tmp_path: Path) -> None:
    """What opens all the same was changed where it says nothing: what was spent stands, and rounds are still kept."""
    path, random_ = tmp_path / "run.ledger", random.Random(1)
    history = filled(path)
    whole = path.read_bytes()
    said = random_.sample([i for i, byte in enumerate(whole) if byte], 300)
    refused = 0
    for at in [*said, *random_.sample(range(len(whole)), 60)]:
        changed = bytearray(whole)
        changed[at] ^= 1 << random_.randrange(8)
        path.write_bytes(changed)
        try:
            with opened(path) as ledger:
                assert list(ledger.history) == history, at
                ledger.spend(PureEvent(0.25))
            with opened(path) as ledger:
                assert list(ledger.history) == [*history, history[-1] + 0.25], at
        except LedgerError:
            refused += 1
    assert refused > len(said) * 0.8


def test_pages_cut_or_mixed_from_two_times_never_pay_less(tmp_path: Path) -> None:
    path, random_, page = tmp_path / "run.ledger", random.Random(2), 4096
    times, digests = [], []
    with opened(path, 1e6) as ledger:
        for _ in range(60):
            ledger.spend(PureEvent(1.0))
            times.append(path.read_bytes())
            digests.append(ledger.digest)
    newest = times[-1]
    for _ in range(100):
        older = random_.choice(times)
        pages = [random_.choice((newest, older))[i : i + page] for i in range(0, len(newest), page)]
        path.write_bytes(b"".join(pages)[: random_.choice((None, random_.randrange(1, len(newest))))])
        try:
            with opened(path, 1e6) as ledger:  # all of an older copy, which only `expect` shows
                assert ledger.epsilon == 1 + digests.index(ledger.digest)
        except LedgerError:
            pass


def test_a_kept_digest_shows_what_the_chain_cannot(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    digests, copies = [], []
    with opened(path) as ledger:
        for eps in (0.5, 0.5, 1.0):
            ledger.spend(PureEvent(eps))
            digests.append(ledger.digest)
            copies.append(path.read_bytes())
    for digest in digests:  # a file that has been through it opens, also where it has grown since
        opened(path, expect=digest).close()
    filled(tmp_path / "anew.ledger", 0.25)
    for content in (*copies[:-1], (tmp_path / "anew.ledger").read_bytes()):
        path.write_bytes(content)
        opened(path).close()
        with pytest.raises(LedgerError, match="never had the digest"):
            opened(path, expect=digests[-1])
        assert path.read_bytes() == content
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="holds no ledger"):
        opened(path, expect=digests[-1])
    path.unlink()
    with pytest.raises(LedgerError, match="is not there: restore it"):
        opened(path, expect=digests[-1])
    assert not path.exists()
    with pytest.raises(ValueError, match="for a ledger in a file"):
        Ledger(None, epsilon=1.0, expect=digests[-1])


def forged(path: Path, *rounds: tuple[object, object, object]) -> None:
    """A ledger of 10 with rounds of any events, times and epsilons, whose digests fit."""
    header = Header(10.0, 0.0, "basic")
    file = LedgerFile(path, begin=True)
    with file.transaction() as db:
        file.begin(db, header)
        digest = header.digest
        for number, (event, times, epsilon) in enumerate(rounds, start=1):
            one = Round.after(digest, number, event, times, epsilon)  # type: ignore[arg-type]
            file.write(db, one)
            digest = one.digest


def test_a_written_figure_below_the_rounds_is_not_believed(tmp_path: Path) -> None:
    forged(tmp_path / "run.ledger", (PureEvent(1.0), 3, 0.25))
    with opened(tmp_path / "run.ledger", 10.0) as ledger:
        assert ledger.epsilon == 3.0


@pytest.mark.parametrize(
    "rounds",
    [
        [(PureEvent(1.0), 0, 1.0)],
        [(PureEvent(1.0), 1, -1.0)],
        [(PureEvent(1.0), 1, float("inf"))],
        [(PureEvent(1.0), MOST, 1.0), (PureEvent(1.0), 1, 2.0)],
        [(PureEvent(1.0), 1, 1.0), (ShuffledEvent(1.0, 9), 1, 2.0)],
    ],
)
def test_what_no_ledger_writes_is_refused(tmp_path: Path, rounds: list[tuple[object, object, object]]) -> None:
    forged(tmp_path / "run.ledger", *rounds)
    with pytest.raises(LedgerError, match=r"data that no ledger writes|corrupt"):
        opened(tmp_path / "run.ledger", 10.0)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM rounds WHERE round = 4",
        "DELETE FROM rounds",
        "DELETE FROM sqlite_sequence",
        "UPDATE rounds SET round = 9 WHERE round = 4",
        "INSERT INTO ledger VALUES (1e9, 0.0, 'basic')",
        "UPDATE ledger SET epsilon = 101.0",
        "DELETE FROM ledger",
        "INSERT INTO rounds VALUES (NULL, '{}', 1, 12.0, '', '')",
        # these no open ledger notices, which doesn't read again what it has read
        "DELETE FROM rounds WHERE round = 2",
        "UPDATE rounds SET epsilon = 0.5 WHERE round = 4",
        "UPDATE rounds SET times = 1 WHERE round = 1",
        "UPDATE rounds SET event = '[[' WHERE round = 1",
        "UPDATE rounds SET event = x'ff' WHERE round = 1",
    ],
)
def test_what_others_wrote_is_refused(tmp_path: Path, statement: str) -> None:
    filled(tmp_path / "run.ledger")
    with opened(tmp_path / "run.ledger") as ledger:
        with sqlite3.connect(tmp_path / "run.ledger") as db:
            db.execute(statement)
        with pytest.raises(LedgerError):
            opened(tmp_path / "run.ledger")
        try:
            assert ledger.spend(PureEvent(0.5)).epsilon == 11.5
            assert "WHERE" in statement
        except LedgerError:
            pass


def test_a_journal_that_was_left_is_not_taken_for_another_file_s(tmp_path: Path) -> None:
    path, journal = tmp_path / "run.ledger", tmp_path / "run.ledger-journal"
    filled(path)
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("PRAGMA cache_size = 1")
        db.executemany("INSERT INTO rounds VALUES (NULL, ?, 1, 1.0, '', '')", [("x" * 4000,)] * 40)
        shutil.copy(journal, tmp_path / "kept")
        db.execute("ROLLBACK")
    path.unlink()
    shutil.copy(tmp_path / "kept", journal)
    with opened(path) as ledger:
        assert ledger.spend(PureEvent(1.0)).epsilon == 1.0
    with opened(path) as ledger:
        assert ledger.epsilon == 1.0
