# SPDX-License-Identifier: Apache-2.0
"""The ledger: refuses before it spends, and no crash, wherever it tears the file, loses what was spent."""

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from ldpkernels.accounting import (
    BudgetExceeded,
    GaussianEvent,
    Ledger,
    LedgerError,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    local_epsilon,
)


def filled(path: Path) -> list[float]:
    """Write a ledger of four rounds, of which the third is the dearest; the epsilons after each."""
    with Ledger(path, epsilon=100.0, delta=1e-5, method="basic") as ledger:
        for eps in (0.5, 0.5, 4.0, 0.5):
            ledger.spend(PureEvent(eps), times=2)
        return list(ledger.history)


def test_rounds_add_up_as_the_accountant_says(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.jsonl", epsilon=50.0) as ledger:
        for round_ in range(1, 6):
            result = ledger.spend(RandomizedResponseEvent(0.1), times=100)
            assert result.epsilon == local_epsilon(RandomizedResponseEvent(0.1), d=100, rounds=round_).epsilon
        assert len(ledger.history) == 5
        assert "5 rounds, all of them through this ledger" in str(ledger.result)


def test_the_round_that_would_pass_is_refused_before_it_is_spent(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Ledger(path, epsilon=2.5, delta=0.0, method="basic") as ledger:
        assert ledger.rounds_left(PureEvent(0.5), times=2) == 2
        ledger.spend(PureEvent(0.5), times=2)
        ledger.spend(PureEvent(0.5), times=2)
        before = path.read_bytes()
        with pytest.raises(BudgetExceeded, match=r"from 2 to 3 at delta = 0, past the budget of 2\.5") as caught:
            ledger.spend(PureEvent(0.5), times=2)
        assert (caught.value.spent, caught.value.would_be, caught.value.budget) == (2.0, 3.0, 2.5)
        assert path.read_bytes() == before
        assert ledger.epsilon == 2.0
        assert ledger.rounds_left(PureEvent(0.5), times=2) == 0
        # a smaller round still fits
        assert ledger.spend(PureEvent(0.5)).epsilon == 2.5


def test_ten_rounds_of_a_tenth_fit() -> None:
    ledger = Ledger(None, epsilon=1.0, delta=0.0, method="basic")
    for _ in range(10):
        ledger.spend(PureEvent(0.1))
    with pytest.raises(BudgetExceeded):
        ledger.spend(PureEvent(1e-9))


def test_a_ledger_resumes_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.jsonl"
    history = filled(path)
    before = path.read_bytes()
    with (
        caplog.at_level(logging.INFO, "ldpkernels.accounting"),
        Ledger(path, epsilon=100.0, delta=1e-5, method="basic") as ledger,
    ):
        assert list(ledger.history) == history == [1.0, 2.0, 10.0, 11.0]
        assert ledger.spend(PureEvent(1.0)).epsilon == 12.0
    assert path.read_bytes().startswith(before)
    assert "resumed: epsilon = 11 of 100" in caplog.text
    assert "round 5: epsilon = 12 of 100 at delta = 1e-05" in caplog.text


def test_every_line_is_json_and_says_what_was_spent(tmp_path: Path) -> None:
    filled(tmp_path / "run.jsonl")
    records = [json.loads(line)["record"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [r["type"] for r in records] == ["ledger", "declare", "spend", "spend", "declare", "spend", "spend"]
    assert [r["epsilon"] for r in records if r["type"] == "spend"] == [1.0, 2.0, 10.0, 11.0]


def test_a_file_torn_anywhere_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    filled(path)
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(ends[0], len(whole)):
        path.write_bytes(whole[:cut])
        # the file has come as far as the line of its last byte, which may be torn: that line's spend counts too
        reached = [json.loads(line)["record"] for line in whole[: ends[sum(end < cut for end in ends)]].splitlines()]
        promised = max((r["epsilon"] for r in reached if r["type"] == "spend"), default=0.0)
        dearest = max((r["event"]["eps"] * r["times"] for r in reached if r["type"] == "declare"), default=0.0)
        with Ledger(path, epsilon=100.0, delta=1e-5, method="basic") as ledger:
            assert promised <= ledger.epsilon <= promised + dearest, cut
            after = ledger.epsilon + 0.25
            assert ledger.spend(PureEvent(0.25)).epsilon == after, cut
        with Ledger(path, epsilon=100.0, delta=1e-5, method="basic") as again:
            assert again.epsilon == after, cut


def test_a_file_torn_twice_is_charged_twice(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    filled(path)
    with path.open("ab") as file:
        file.write(b'{"chain": "0123\n\x00\x00\x00')
    with Ledger(path, epsilon=100.0, delta=1e-5, method="basic") as ledger:
        assert ledger.epsilon == 11.0 + 2 * 8.0
    with Ledger(path, epsilon=100.0, delta=1e-5, method="basic") as ledger:
        assert ledger.epsilon == 27.0


def test_a_torn_end_may_pass_the_budget_and_then_nothing_is_spent(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Ledger(path, epsilon=1.5, delta=0.0, method="basic") as ledger:
        ledger.spend(PureEvent(1.0))
    with path.open("ab") as file:
        file.write(b"{")
    with Ledger(path, epsilon=1.5, delta=0.0, method="basic") as ledger:
        assert ledger.epsilon == 2.0
        with pytest.raises(BudgetExceeded):
            ledger.spend(PureEvent(1e-9))


def test_corruption_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    filled(path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    changed = whole.replace(b'"epsilon":2.0', b'"epsilon":1.0')
    assert changed != whole
    for bad, number in (
        (changed, 4),
        (b"".join(lines[:3] + lines[4:]), 4),
        (b"".join([*lines[:2], b"garbage\n", *lines[3:]]), 3),
        (b"".join([*lines[:5], lines[4], *lines[5:]]), 6),
    ):
        path.write_bytes(bad)
        with pytest.raises(LedgerError, match=f"corrupt at line {number}: .*Restore the file from a backup"):
            Ledger(path, epsilon=100.0, delta=1e-5, method="basic")
        assert path.read_bytes() == bad


def test_a_changed_last_line_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    filled(path)
    path.write_bytes(path.read_bytes().replace(b'"epsilon":11.0', b'"epsilon":10.0'))
    with pytest.raises(LedgerError, match="corrupt at line 7"):
        Ledger(path, epsilon=100.0, delta=1e-5, method="basic")


def test_a_torn_header_was_never_spent_from(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    filled(path)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(LedgerError, match="nothing was ever spent from it: delete it"):
        Ledger(path, epsilon=100.0, delta=1e-5, method="basic")


def test_another_budget_or_method_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    filled(path)
    for epsilon, delta, method in ((99.0, 1e-5, "basic"), (100.0, 1e-6, "basic"), (100.0, 1e-5, "exact")):
        with pytest.raises(LedgerError, match="give the values that it was begun with"):
            Ledger(path, epsilon=epsilon, delta=delta, method=method)


def test_one_ledger_a_file(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with Ledger(tmp_path / "run.jsonl", epsilon=1.0), pytest.raises(LedgerError, match="in use by another ledger"):
        Ledger(tmp_path / "run.jsonl", epsilon=1.0)


def test_a_failed_write_stops_the_ledger_and_is_charged_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    ledger = Ledger(path, epsilon=10.0, delta=0.0, method="basic")
    ledger.spend(PureEvent(1.0))
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) <= 20:
            raise OSError(errno.ENOSPC, "no space left")
        return write(descriptor, data[:20])

    with monkeypatch.context() as context:
        context.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space left"):
            ledger.spend(PureEvent(1.0))
    with pytest.raises(LedgerError, match="an earlier write"):
        ledger.spend(PureEvent(1.0))
    ledger.close()
    with Ledger(path, epsilon=10.0, delta=0.0, method="basic") as resumed:
        assert resumed.epsilon == 2.0


def test_the_intent_is_durable_before_spend_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    ledger = Ledger(path, epsilon=10.0, delta=0.0, method="basic")
    sizes = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        sizes.append(path.stat().st_size)

    monkeypatch.setattr(os, "fsync", recorded)
    ledger.spend(PureEvent(1.0))
    assert sizes[-1] == path.stat().st_size
    assert len(sizes) == 2
    ledger.close()
    with pytest.raises(LedgerError, match="the ledger is closed"):
        ledger.spend(PureEvent(1.0))


def test_gaussians_and_dp_sgd_in_a_ledger(tmp_path: Path) -> None:
    ledger = Ledger(None, epsilon=3.0)
    assert ledger.epsilon == 0.0
    for _ in range(4):
        ledger.spend(GaussianEvent(20.0), times=25)
    assert ledger.epsilon == local_epsilon(GaussianEvent(20.0), d=100).epsilon
    left = ledger.rounds_left(GaussianEvent(20.0), times=25)
    assert local_epsilon(GaussianEvent(20.0), d=100 + 25 * left).epsilon <= 3.0
    assert local_epsilon(GaussianEvent(20.0), d=125 + 25 * left).epsilon > 3.0
    with pytest.raises(ValueError, match="different views"):
        ledger.spend(SampledGaussianEvent(1.0, 0.01))
    training = Ledger(tmp_path / "sgd.jsonl", epsilon=2.0, method="rdp")
    for _ in range(20):
        training.spend(SampledGaussianEvent(2.0, 0.01), times=10)
    assert 0 < training.epsilon < 2.0
    training.close()
