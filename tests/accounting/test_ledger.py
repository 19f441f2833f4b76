# SPDX-License-Identifier: Apache-2.0
"""The ledger: refuses before it spends, and remembers what was spent."""

import logging
import sqlite3
from pathlib import Path

import pytest

from ldpkernels.accounting import (
    LOCAL,
    BudgetExceeded,
    Event,
    GaussianEvent,
    Ledger,
    LedgerError,
    MetricEvent,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    SkellamEvent,
    local_epsilon,
)


def opened(path: Path | None, epsilon: float = 100.0, expect: str | None = None) -> Ledger:
    return Ledger(path, epsilon=epsilon, delta=0.0, method="basic", expect=expect)


def filled(path: Path, *rounds: float) -> list[float]:
    """Write a ledger of these rounds, of two releases each; the epsilons after each."""
    with opened(path) as ledger:
        for eps in rounds or (0.5, 0.5, 4.0, 0.5):
            ledger.spend(PureEvent(eps), times=2)
        return list(ledger.history)


def test_rounds_add_up_as_the_accountant_says(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.ledger", epsilon=50.0) as ledger:
        for round_ in range(1, 6):
            result = ledger.spend(RandomizedResponseEvent(0.1), times=100)
            assert result.epsilon == local_epsilon(RandomizedResponseEvent(0.1), d=100, rounds=round_).epsilon
        assert len(ledger.history) == 5
        assert "5 rounds, all of them through this ledger" in str(ledger.result)


@pytest.mark.parametrize("file", ["run.ledger", None])
def test_the_round_that_would_pass_is_refused_before_it_is_spent(tmp_path: Path, file: str | None) -> None:
    path = tmp_path / file if file else None
    with opened(path, 2.5) as ledger:
        assert ledger.rounds_left(PureEvent(0.5), times=2) == 2
        ledger.spend(PureEvent(0.5), times=2)
        ledger.spend(PureEvent(0.5), times=2)
        before = path and path.read_bytes()
        with pytest.raises(BudgetExceeded, match=r"from 2 to 3 at delta = 0, past the budget of 2\.5") as caught:
            ledger.spend(PureEvent(0.5), times=2)
        assert (caught.value.spent, caught.value.would_be, caught.value.budget) == (2.0, 3.0, 2.5)
        assert (path and path.read_bytes()) == before
        assert ledger.epsilon == 2.0
        assert ledger.rounds_left(PureEvent(0.5), times=2) == 0
        # a smaller round still fits
        assert ledger.spend(PureEvent(0.5)).epsilon == 2.5
    with pytest.raises(LedgerError, match="the ledger is closed"):
        ledger.spend(PureEvent(1e-9))


def test_ten_rounds_of_a_tenth_fit() -> None:
    ledger = opened(None, 1.0)
    for _ in range(10):
        ledger.spend(PureEvent(0.1))
    with pytest.raises(BudgetExceeded):
        ledger.spend(PureEvent(1e-9))


def test_a_ledger_resumes_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.ledger"
    history = filled(path)
    with caplog.at_level(logging.INFO, "ldpkernels.accounting"), opened(path) as ledger:
        assert list(ledger.history) == history == [1.0, 2.0, 10.0, 11.0]
        assert ledger.spend(PureEvent(1.0)).epsilon == 12.0
    assert "resumed: epsilon = 11 of 100" in caplog.text
    assert f"round 5: epsilon = 12 of 100 at delta = 0, digest {ledger.digest}" in caplog.text


def test_every_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    tiny = 2.2250738585072014e-308
    alone: list[list[Event]] = [
        [
            PureEvent(0.1 + 0.2),
            RandomizedResponseEvent(1e-9),
            MetricEvent(1 / 3, "linf", 3.0),
            GaussianEvent(7.7, scope=LOCAL),
        ],
        [ShuffledEvent(0.3, 2**53 + 1)],
        [SampledGaussianEvent(9.1, tiny)],
        [SkellamEvent(1e100, 1 / 3, 0.1)],
    ]
    for i, events in enumerate(alone):
        path = tmp_path / f"{i}.ledger"
        with Ledger(path, epsilon=1e300, method="rdp") as ledger:
            results = [ledger.spend(event, times=times).epsilon for event in events for times in (1, 2**40 + 1)]
        with Ledger(path, epsilon=1e300, method="rdp") as again:
            assert (list(again.history), again.digest) == (results, ledger.digest)


def test_the_file_says_what_was_spent(tmp_path: Path) -> None:
    filled(tmp_path / "run.ledger")
    with sqlite3.connect(tmp_path / "run.ledger") as db:
        rows = db.execute("SELECT round, event, times, epsilon FROM rounds").fetchall()
    assert rows[2] == (3, '{"kind": "pure", "eps": 4.0}', 2, 10.0)
    assert (tmp_path / "run.ledger").stat().st_mode & 0o777 == 0o600


def test_another_budget_or_method_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "run.ledger")
    for epsilon, delta, method in ((99.0, 0.0, "basic"), (100.0, 1e-6, "basic"), (100.0, 0.0, "exact")):
        with pytest.raises(LedgerError, match="give the values that it was begun with"):
            Ledger(tmp_path / "run.ledger", epsilon=epsilon, delta=delta, method=method)


def test_gaussians_and_dp_sgd_in_a_ledger(tmp_path: Path) -> None:
    ledger = Ledger(None, epsilon=3.0)
    assert ledger.epsilon == 0.0
    event = GaussianEvent(20.0, scope=LOCAL)
    for _ in range(4):
        ledger.spend(event, times=25)
    assert ledger.epsilon == local_epsilon(event, d=100).epsilon
    left = ledger.rounds_left(event, times=25)
    assert local_epsilon(event, d=100 + 25 * left).epsilon <= 3.0
    assert local_epsilon(event, d=125 + 25 * left).epsilon > 3.0
    with Ledger(tmp_path / "sgd.ledger", epsilon=2.0, method="rdp") as training:
        for _ in range(20):
            training.spend(SampledGaussianEvent(2.0, 0.01), times=10)
        assert 0 < training.epsilon < 2.0


def test_the_first_layout_is_pinned_over_every_opening(tmp_path):
    path, event = tmp_path / "a.ledger", PureEvent(0.1)
    with Ledger(path, epsilon=1.0) as ledger:
        ledger.spend(event)
        ledger.spend(event, layout="two heads")
        ledger.spend(event)
    with Ledger(path, epsilon=1.0) as ledger:
        ledger.spend(event, layout="two heads")
        with pytest.raises(ValueError, match="fixed"):
            ledger.spend(event, layout="three heads")
        assert len(ledger.history) == 4
        for wrong in (5, None, True):
            with pytest.raises(TypeError, match="pass text"):
                ledger.spend(event, layout=wrong)
        with pytest.raises(UnicodeEncodeError):
            ledger.spend(event, layout="\ud800")
    with Ledger(path, epsilon=1.0) as ledger:
        assert len(ledger.history) == 4
