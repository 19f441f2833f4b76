# SPDX-License-Identifier: Apache-2.0
"""A ledger for a training run: no round is released that the budget doesn't cover, and no crash forgets one.

The order is the guarantee. `spend` computes the new total, refuses it if it passes the budget, writes the intent,
makes it durable, and only then returns; the release comes after. A crash before the return has released nothing, and a
line torn by it is charged all the same, as the dearest release that the run has declared.
"""

import logging
import os
import threading
from pathlib import Path
from typing import Any

from ldpkernels.accounting import arguments
from ldpkernels.accounting.composition import METHODS, composed_epsilon
from ldpkernels.accounting.events import Event, Mechanism, event_from_dict, event_of
from ldpkernels.accounting.ledger_file import Appender, LedgerError, encode, read
from ldpkernels.accounting.records import PrivacyResult, rounded_up
from ldpkernels.accounting.views import adversary_of

__all__ = ["BudgetExceeded", "Ledger", "LedgerError"]

logger = logging.getLogger("ldpkernels.accounting")

FORMAT = 1


class BudgetExceeded(RuntimeError):
    """The release would pass the budget; nothing was spent.

    Attributes:
        spent: Epsilon so far.
        would_be: Epsilon with the refused release.
        budget: The budget.
    """

    def __init__(self, spent: float, would_be: float, budget: float, delta: float) -> None:
        self.spent, self.would_be, self.budget = spent, would_be, budget
        super().__init__(
            f"this release would bring epsilon from {rounded_up(spent)} to {rounded_up(would_be)} at delta ="
            f" {delta:g}, past the budget of {budget:g}: stop here, or report less (fewer weights, or a smaller eps"
            " a report). Nothing was spent"
        )


class Ledger:
    """What a run has spent, kept in a file that only grows.

    Opening an existing file resumes it; the budget, delta and method must then be the same. One process at a time.

    The basic figure stands however each round's event is chosen. The others take the sequence of events as fixed
    before the run; ending early is always allowed.

    Args:
        path: The file (JSON lines), or None for a ledger in memory, which a crash does forget.
        epsilon: The budget.
        delta: The probability that the bound excludes.
        method: How rounds are composed: "basic", "advanced", "rdp" or "exact".

    >>> from ldpkernels.accounting import PureEvent
    >>> ledger = Ledger(None, epsilon=2.0, delta=0.0, method="basic")
    >>> ledger.spend(PureEvent(0.25), times=4).epsilon
    1.0
    >>> ledger.rounds_left(PureEvent(0.25), times=4)
    1
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, *, epsilon: float, delta: float = 1e-5, method: str = "exact"
    ) -> None:
        self.budget = arguments.positive("epsilon", epsilon)
        self.delta = arguments.excluded(delta, zero=True)
        self.method = arguments.choice("method", method, METHODS)
        self._defined: list[tuple[Event, int]] = []
        self._spent: dict[int, int] = {}
        self._history: list[float] = []
        self._chain = ""
        self._mutex = threading.Lock()
        self._file: Appender | None = None
        self._closed = False
        if path is not None:
            self._open(Path(path))

    def _open(self, path: Path) -> None:
        header = {
            "type": "ledger",
            "format": FORMAT,
            "epsilon": self.budget,
            "delta": self.delta,
            "method": self.method,
        }
        try:
            self._file = Appender(path, create=True)
        except FileExistsError:
            self._file = Appender(path, create=False)
            try:
                self._resume(path, header)
            except BaseException:
                self.close()
                raise
        else:
            self._write(header)

    def _resume(self, path: Path, header: dict[str, Any]) -> None:
        contents = read(path)
        assert self._file is not None
        if not contents.records:
            raise LedgerError(
                f"{path} holds no whole header, so nothing was ever spent from it: delete it and start again"
            )
        if contents.records[0] != header:
            raise LedgerError(
                f"{path} was begun as {contents.records[0]}, and is now opened as {header}: give the values that it"
                " was begun with, or start a new ledger in another file"
            )
        for record in contents.records[1:]:
            self._apply(record)
        self._chain = contents.chain
        if not contents.ends_in_newline:
            self._file.append(b"\n")
        if contents.torn:
            torn = {"type": "torn", "lines": len(contents.torn), "charged": self._dearest()}
            logger.warning(
                "%s ends in %d torn line(s): charged as the dearest declared release", path, len(contents.torn)
            )
            self._write(torn)
            self._apply(torn)
        if self._history:
            logger.info("%s resumed: epsilon = %s of %g at delta = %g", path, self._text(), self.budget, self.delta)

    def _apply(self, record: dict[str, Any]) -> None:
        kind = record.get("type")
        if kind == "declare":
            self._defined.append((event_from_dict(record["event"]), int(record["times"])))
        elif kind == "spend":
            self._spent[record["declared"]] = self._spent.get(record["declared"], 0) + 1
            self._history.append(float(record["epsilon"]))
        elif kind == "torn":
            if record["charged"] is not None:
                self._spent[record["charged"]] = self._spent.get(record["charged"], 0) + int(record["lines"])
                self._history.append(self._epsilon(self._spent))
        else:
            raise LedgerError(
                f"record type {kind!r} is unknown: the ledger was written by a newer version; upgrade ldpkernels"
            )

    def _dearest(self) -> int | None:
        """The declared release that costs most: what a torn line stands for. None where none was declared."""
        costs = [composed_epsilon([term], self.delta, self.method) for term in self._defined]
        return max(range(len(costs)), key=costs.__getitem__, default=None)

    def _write(self, record: dict[str, Any]) -> None:
        chain, line = encode(self._chain, record)
        if self._file is not None:
            self._file.append(line)
        self._chain = chain

    def _epsilon(self, spent: dict[int, int]) -> float:
        terms = [(self._defined[i][0], self._defined[i][1] * often) for i, often in spent.items()]
        return composed_epsilon(terms, self.delta, self.method)

    def _with(self, term: tuple[Event, int], often: int) -> float:
        terms = [(self._defined[i][0], self._defined[i][1] * count) for i, count in self._spent.items()]
        return composed_epsilon([*terms, (term[0], term[1] * often)], self.delta, self.method)

    def _covers(self, epsilon: float) -> bool:
        """Ten rounds of 0.1 fit a budget of 1: sums of decimal fractions are off by less than 1e-12 of them."""
        return epsilon <= self.budget * (1 + 1e-12)

    def _text(self) -> str:
        return rounded_up(self.epsilon)

    @property
    def epsilon(self) -> float:
        """What has been spent, at the ledger's delta."""
        return self._history[-1] if self._history else 0.0

    @property
    def history(self) -> tuple[float, ...]:
        """Epsilon after each round."""
        return tuple(self._history)

    @property
    def result(self) -> PrivacyResult:
        """What has been spent, as a record."""
        adversary, neighbouring = adversary_of(self._defined[0][0]) if self._defined else ("anyone", "any two inputs")
        assumptions: tuple[str, ...] = (
            f"{len(self._history):,} rounds, all of them through this ledger",
            "every release came after `spend` returned",
        )
        if self.method != "basic":
            assumptions += ("the events of the rounds were fixed before the run",)
        delta = 0.0 if self.method == "basic" else self.delta
        return PrivacyResult(self.epsilon, delta, adversary, neighbouring, assumptions, f"{self.method} composition")

    def spend(self, source: Event | Mechanism, times: int = 1) -> PrivacyResult:
        """Take one round of `times` releases out of the budget; release only after this has returned.

        Raises:
            BudgetExceeded: If the round would pass the budget; nothing is spent then.
            LedgerError: If the ledger is closed, or an earlier write failed.
        """
        term = (event_of(source), arguments.count("times", times))
        with self._mutex:
            if self._closed:
                raise LedgerError("the ledger is closed: open it again")
            would_be = self._with(term, 1)
            if not self._covers(would_be):
                raise BudgetExceeded(self.epsilon, would_be, self.budget, self.delta)
            if term not in self._defined:
                self._write({"type": "declare", "event": term[0].to_dict(), "times": term[1]})
                self._defined.append(term)
            spend = {
                "type": "spend",
                "round": len(self._history) + 1,
                "declared": self._defined.index(term),
                "epsilon": would_be,
            }
            self._write(spend)
            self._apply(spend)
            logger.info(
                "round %d: epsilon = %s of %g at delta = %g", spend["round"], self._text(), self.budget, self.delta
            )
            return self.result

    def rounds_left(self, source: Event | Mechanism, times: int = 1) -> int:
        """Return how many more such rounds the budget covers, up to 2^40."""
        term = (event_of(source), arguments.count("times", times))
        low, high = 0, 1
        while high < 1 << 40 and self._covers(self._with(term, high)):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            if self._covers(self._with(term, middle)):
                low = middle
            else:
                high = middle
        return low

    def close(self) -> None:
        """Release the file; a closed ledger refuses to spend."""
        self._closed = True
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
