# SPDX-License-Identifier: Apache-2.0
"""What misuse and malice do to a ledger and its file: whatever happens, no more than the budget is ever released."""

import copy
import itertools
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ldpkernels.accounting import (
    GaussianEvent,
    Ledger,
    LedgerError,
    MetricEvent,
    PureEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    composed_epsilon,
)
from ldpkernels.accounting.arguments import MOST
from ldpkernels.accounting.ledger_file import SHORTEST_PAIR, Chain
from ldpkernels.accounting.ledger_records import Declared, Header, Spent, Torn

pytest.importorskip("fcntl")


def opened(path: Path, epsilon: float = 100.0, expect: str | None = None) -> Ledger:
    return Ledger(path, epsilon=epsilon, delta=0.0, method="basic", expect=expect)


def filled(path: Path) -> float:
    """Write rounds of 0.5, then of 1, so that the last declaration stands just before its round."""
    with opened(path) as ledger:
        for eps in (0.5, 0.5, 1.0):
            ledger.spend(PureEvent(eps))
        return ledger.epsilon


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_ledger_is_not_copied() -> None:
    ledger = Ledger(None, epsilon=1.0)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="each would spend the whole remainder"):
            duplicate(ledger)  # type: ignore[operator]


def test_a_renamed_file_stops_its_ledger(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with opened(path, 1.0) as first:
        first.spend(PureEvent(0.1))
        path.rename(tmp_path / "moved.jsonl")
        with opened(path, 1.0) as second:
            second.spend(PureEvent(0.9))
            with pytest.raises(LedgerError, match="was renamed, deleted or replaced"):
                first.spend(PureEvent(0.9))
        with pytest.raises(LedgerError, match="in use by another ledger"):
            opened(tmp_path / "moved.jsonl", 1.0)
    with opened(tmp_path / "moved.jsonl", 1.0) as moved:
        assert moved.epsilon == 0.1


def test_a_deleted_or_replaced_file_stops_its_ledger(tmp_path: Path) -> None:
    for change in ("delete", "replace", "other directory"):
        path = tmp_path / change / "run.jsonl"
        path.parent.mkdir()
        with opened(path) as ledger:
            ledger.spend(PureEvent(0.1))
            before = path.read_bytes()
            path.unlink()
            if change == "replace":
                path.write_bytes(before)
            if change == "other directory":
                path.parent.rename(tmp_path / "elsewhere")
            with pytest.raises(LedgerError, match="was renamed, deleted or replaced"):
                ledger.spend(PureEvent(0.1))
            # and it stays stopped
            with pytest.raises(LedgerError, match="open the ledger again"):
                ledger.spend(PureEvent(0.1))
            if change == "replace":
                assert path.read_bytes() == before


def test_a_file_that_was_cut_or_written_to_stops_its_ledger(tmp_path: Path) -> None:
    for change in (b"", b"x"):
        path = tmp_path / f"run{len(change)}.jsonl"
        with opened(path) as ledger:
            ledger.spend(PureEvent(0.1))
            before = path.read_bytes()
            path.write_bytes(before + change if change else before[: before.rindex(b"\n", 0, -1) + 1])
            with pytest.raises(LedgerError, match=r"something else wrote to\s+it or cut it"):
                ledger.spend(PureEvent(0.1))


def test_another_writer_is_noticed_before_spend_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    with opened(path) as ledger:
        ledger.spend(PureEvent(0.1))
        fsync = os.fsync

        def meanwhile(descriptor: int) -> None:
            fsync(descriptor)
            with path.open("ab") as file:
                file.write(b"x")

        monkeypatch.setattr(os, "fsync", meanwhile)
        with pytest.raises(LedgerError, match="something else wrote"):
            ledger.spend(PureEvent(0.1))


def test_a_moved_working_directory_is_no_move_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with opened(Path("run.jsonl")) as ledger:
        monkeypatch.chdir(tmp_path / "other")
        assert ledger.spend(PureEvent(0.5)).epsilon == 0.5
    assert (tmp_path / "run.jsonl").stat().st_size > 0


def test_one_file_by_two_names_is_one_ledger(tmp_path: Path) -> None:
    path, hard, soft = (tmp_path / name for name in ("run.jsonl", "hard.jsonl", "soft.jsonl"))
    with opened(path) as ledger:
        ledger.spend(PureEvent(0.1))
        hard.hardlink_to(path)
        soft.symlink_to(path)
        for name in (hard, soft):
            with pytest.raises(LedgerError, match="in use by another ledger"):
                opened(name)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no regular file"):
        opened(Path("/dev/null"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LedgerError, match="no regular file"):
        opened(tmp_path / "pipe")


def test_a_forgotten_ledger_lets_go_of_its_file(tmp_path: Path) -> None:
    opened(tmp_path / "run.jsonl").spend(PureEvent(0.5))
    with opened(tmp_path / "run.jsonl") as ledger:
        assert ledger.epsilon == 0.5


def test_a_newline_that_was_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    spent = filled(path)
    whole = path.read_bytes()
    for at in (i for i, byte in enumerate(whole) if byte == ord("\n")):
        for byte in b" \x00\r{}":
            path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            with pytest.raises(LedgerError, match="corrupt at line"):
                opened(path)
    path.write_bytes(whole)
    with opened(path) as ledger:
        assert ledger.epsilon == spent


def test_no_byte_can_be_changed_to_pay_less(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    spent = filled(path)
    whole = path.read_bytes()
    random_ = random.Random(1)
    refused = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << random_.randrange(8)]) + whole[at + 1 :])
        try:
            with opened(path) as ledger:
                assert ledger.epsilon >= spent, at
        except LedgerError:
            refused += 1
    # only a damaged last line can pass for a torn one
    assert refused >= len(whole) * 3 // 4


def test_a_damaged_pair_of_declaration_and_round_is_refused(tmp_path: Path) -> None:
    """Charged as what can still be read, the dearer release would be forgotten."""
    path = tmp_path / "run.jsonl"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for first, second in itertools.product((0, 30, -2), repeat=2):
        damaged = [bytearray(line) for line in lines]
        damaged[-2][first] ^= 0x80
        damaged[-1][second] ^= 0x80
        path.write_bytes(b"".join(map(bytes, damaged)))
        with pytest.raises(LedgerError, match="corrupt at line 5"):
            opened(path)


def test_a_newline_in_a_damaged_pair_does_not_shorten_it(tmp_path: Path) -> None:
    """The beginning of a line is also what a crash in the repair of a torn one leaves, and that stands for nothing."""
    path = tmp_path / "run.jsonl"
    with opened(path) as ledger:
        ledger.spend(PureEvent(2.0))
    header, declared, spent = path.read_bytes().splitlines(keepends=True)
    for at in range(1, 12):
        damaged = declared.replace(b'","record', b'},"record') + spent[:at] + b"\n" + spent[at + 1 :]
        path.write_bytes(header + damaged)
        with pytest.raises(LedgerError, match="corrupt at line 2"):
            opened(path)


def test_no_single_line_is_as_long_as_that_pair() -> None:
    longest = 2.2250738585072014e-308
    for record in (
        Declared(MetricEvent(longest, "linf", longest), MOST),
        Declared(ShuffledEvent(longest, MOST, "randomized_response"), MOST),
        Declared(RandomizedResponseEvent(longest), MOST),
        Header(longest, longest, "advanced"),
        Spent(MOST, MOST, longest),
        Torn(MOST),
    ):
        assert len(Chain().line(record)[1]) < SHORTEST_PAIR


def test_a_crash_in_the_repair_of_a_crash(tmp_path: Path) -> None:
    """Cut the file anywhere, open it, cut what that wrote anywhere, and open it again."""
    path = tmp_path / "run.jsonl"
    filled(path)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in (last + 1, last + 17, len(whole) - 1):
        path.write_bytes(whole[:cut])
        opened(path).close()
        repaired = path.read_bytes()
        for second in range(cut, len(repaired)):
            path.write_bytes(repaired[:second])
            with opened(path) as ledger:
                assert ledger.epsilon == 2.0, (cut, second)
                assert ledger.spend(PureEvent(0.5)).epsilon == 2.5
            with opened(path) as ledger:
                assert ledger.epsilon == 2.5


def test_a_torn_line_is_charged_so_that_no_release_costs_more(tmp_path: Path) -> None:
    """One round of the Gaussian costs more than one of the other, and a hundred cost less."""
    path = tmp_path / "run.jsonl"
    with Ledger(path, epsilon=1000.0) as ledger:
        ledger.spend(PureEvent(1.0))
        ledger.spend(GaussianEvent(3.5))
    with path.open("ab") as file:
        file.write(b'{"chain":"01')
    with Ledger(path, epsilon=1000.0) as ledger:
        for source in (PureEvent(1.0), GaussianEvent(3.5)):
            for _ in range(3):
                ledger.spend(source)
        for torn in (PureEvent(1.0), GaussianEvent(3.5)):
            assert ledger.epsilon >= composed_epsilon([(PureEvent(1.0), 4), (GaussianEvent(3.5), 4), (torn, 1)], 1e-5)


def test_a_kept_digest_shows_what_the_chain_cannot(tmp_path: Path) -> None:
    path, copied = tmp_path / "run.jsonl", tmp_path / "copy.jsonl"
    digests = []
    with opened(path) as ledger:
        for eps in (0.5, 0.5, 1.0):
            ledger.spend(PureEvent(eps))
            digests.append(ledger.digest)
            if eps == 1.0:
                break
            shutil.copy(path, copied)
    # a file that has been through it opens, also where it has grown since
    for digest in digests:
        opened(path, expect=digest).close()
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    with opened(tmp_path / "anew.jsonl") as anew:
        anew.spend(PureEvent(0.5))
    for content in (b"".join(lines[:-1]), copied.read_bytes(), (tmp_path / "anew.jsonl").read_bytes()):
        path.write_bytes(content)
        opened(path).close()
        path.write_bytes(content)
        with pytest.raises(LedgerError, match="was never at the digest"):
            opened(path, expect=digests[-1])
        assert path.read_bytes() == content
    path.unlink()
    with pytest.raises(LedgerError, match=r"is gone, and was\s+expected"):
        opened(path, expect=digests[-1])
    assert not path.exists()
    with pytest.raises(ValueError, match="for a ledger in a file"):
        Ledger(None, epsilon=1.0, expect=digests[-1])


def test_a_written_figure_below_the_rounds_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    chain = Chain()
    with path.open("wb") as file:
        for record in (Header(10.0, 0.0, "basic"), Declared(PureEvent(1.0), 3), Spent(1, 0, 0.25)):
            line = chain.line(record)[1]
            chain.follow(line)
            file.write(line)
    with opened(path, 10.0) as ledger:
        assert ledger.epsilon == 3.0


@pytest.mark.parametrize(
    "records",
    [
        [Header(10.0, 0.0, "basic")],
        [Spent(1, 0, 1.0)],
        [Declared(PureEvent(1.0), 1), Spent(2, 0, 1.0)],
        [Declared(PureEvent(1.0), 1), Spent(1, 1, 1.0)],
        [Declared(PureEvent(1.0), MOST), Spent(1, 0, 1.0), Spent(2, 0, 2.0)],
        [Declared(PureEvent(1.0), 1), Spent(1, 0, 1.0), Declared(ShuffledEvent(1.0, 9), 1), Spent(2, 1, 2.0)],
    ],
)
def test_what_no_ledger_writes_is_refused(tmp_path: Path, records: list[Header | Declared | Spent]) -> None:
    path = tmp_path / "run.jsonl"
    chain = Chain()
    with path.open("wb") as file:
        for record in [Header(10.0, 0.0, "basic"), *records]:
            line = chain.line(record)[1]
            chain.follow(line)
            file.write(line)
    with pytest.raises(LedgerError, match="what no ledger writes"):
        opened(path, 10.0)


def test_a_file_of_another_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"chain": "00", "record": {"type": "ledger", "format": 1}}\n')
    with pytest.raises(LedgerError, match="has format 1, and this version reads 2"):
        opened(path)
