# SPDX-License-Identifier: Apache-2.0
"""A ledger for a training run: no round is released that the budget doesn't cover, and no crash forgets one.

The order is the guarantee. `spend` takes the file for itself, learns what it holds, computes the new total, refuses it
if it passes the budget, makes the round durable, and only then returns; the release comes after. A crash before the
return has released nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from ldpkernels.accounting.composition import METHODS, composed_epsilon
from ldpkernels.accounting.events import EARLIER, Event, Mechanism, event_from_dict, event_of, scope_of
from ldpkernels.accounting.ledger_file import Header, LedgerError, LedgerFile, Round
from ldpkernels.accounting.neighbours import LOCAL
from ldpkernels.accounting.records import PrivacyResult, rounded_up
from ldpkernels.common import arguments

__all__ = ["BudgetExceeded", "Ledger", "LedgerError"]

logger = logging.getLogger("ldpkernels.accounting")

MOST_ROUNDS_LEFT = 1 << 40


class BudgetExceeded(RuntimeError):
    """The release would pass the budget of a ledger (its scope says against whom); nothing was spent.

    Attributes:
        spent: The epsilon so far.
        would_be: The epsilon with the refused release.
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

    Opening an existing file resumes it; the budget, delta and method must then be the same. Threads and processes may
    each open a ledger on the same file. They spend one after another, and each first reads what the others have spent,
    so that together they keep the budget. A forked child is refused. A file that was renamed, replaced or cut in the
    meantime is refused before the next round is spent.

    A changed byte is noticed when the file is opened. But the digests in the file have no key: whoever can write it can
    also rewrite it, cut it or restore an older copy. Against that, store `digest` elsewhere after a round, and open the
    file with `expect=digest`. It is then refused unless it contains that round.

    The first round fixes the scope: who sees what, and whether neighbours are any two inputs, an input and zeros, or
    added and removed. A round of another scope is refused, and so is one without a scope (`GaussianEvent`).

    The basic figure holds however each round's event is chosen. The other methods assume that the sequence of events
    was fixed before the run. Ending early is always allowed.

    Args:
        path: The file (an SQLite database), or None for a ledger in memory, which a crash loses.
        epsilon: The budget.
        delta: The probability that the bound excludes.
        method: How rounds are composed: "basic", "advanced", "rdp" or "exact".
        expect: An earlier `digest` of the file, which must then exist.

    >>> from ldpkernels.accounting import PureEvent
    >>> ledger = Ledger(None, epsilon=2.0, delta=0.0, method="basic")
    >>> ledger.spend(PureEvent(0.25), times=4).epsilon
    1.0
    >>> ledger.rounds_left(PureEvent(0.25), times=4)
    1
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        epsilon: float,
        delta: float = 1e-5,
        method: str = "exact",
        expect: str | None = None,
    ) -> None:
        self.budget = arguments.positive("epsilon", epsilon)
        self.delta = arguments.excluded(delta, zero=True)
        self.method = arguments.choice("method", method, METHODS)
        self._header = Header(self.budget, self.delta, self.method)
        self._rounds: list[Round] = []
        self._spent: dict[Event, int] = {}
        self._now = 0.0
        self._mutex = threading.RLock()
        self._process = os.getpid()
        self._closed = self._spending = False
        self._file: LedgerFile | None = None
        if path is None:
            if expect is not None:
                raise ValueError(f"expect = {expect!r} is for a ledger in a file: give its path")
            return
        self._file = LedgerFile(path, begin=expect is None)
        with self._file.transaction() as db:
            if expect is None:
                self._file.begin(db, self._header)
            self._file.check(db)
            self._resume(*self._file.read(db), expect)
        if self._rounds:
            logger.info("%s resumed: %s", self._file.path, self._text())

    def _resume(self, header: Header, rounds: list[Round], expect: str | None = None) -> None:
        assert self._file is not None
        if header != self._header:
            raise LedgerError(
                f"{self._file.path} was begun as {header}, and is now opened as {self._header}: give the values that"
                " it was begun with, or start a new ledger in another file"
            )
        if expect is not None and expect not in {header.digest, *(one.digest for one in rounds)}:
            raise LedgerError(
                f"{self._file.path} never had the digest {expect}: it was cut, rewritten, or replaced by an older "
                "copy. Restore the newest copy; if there is none, take the whole budget as spent"
            )
        for one in rounds:
            self._take(one)
        try:
            # another version may have found another figure for the same rounds: the larger one counts
            self._now = max(self._now, self._epsilon() if rounds else 0.0)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise LedgerError(f"{self._file.path} holds data that no ledger writes: {error}") from error

    def _take(self, one: Round) -> None:
        """Count a round. An interruption before the last line counts it twice in memory, and never not at all."""
        self._spent[one.event] = self._spent.get(one.event, 0) + one.times
        self._now = max(self._now, one.epsilon)
        self._rounds.append(one)

    def _epsilon(self, event: Event | None = None, times: int = 0) -> float:
        """The epsilon of what was spent, and of so many more releases."""
        terms = list(self._spent.items()) + ([] if event is None else [(event, times)])
        return composed_epsilon(terms, self.delta, self.method)

    def _covers(self, epsilon: float) -> bool:
        return _within(epsilon, self.budget)

    def _text(self) -> str:
        return f"epsilon = {rounded_up(self._now)} of {self.budget:g} at delta = {self.delta:g}, digest {self.digest}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread of the one process. A forked child would find a lock that nobody lets go, so it isn't tried."""
        if os.getpid() != self._process:
            raise LedgerError(
                f"this ledger belongs to process {self._process}, and process {os.getpid()} was forked from it: each"
                " would spend the whole remainder. Spend in the parent, or open a ledger of its own in the child"
            )
        with self._mutex:
            yield

    @property
    def epsilon(self) -> float:
        """What has been spent, at the ledger's delta, as of this ledger's last round."""
        return self._now

    @property
    def history(self) -> tuple[float, ...]:
        """Epsilon after each round, in the scope of `result`."""
        return tuple(one.epsilon for one in self._rounds)

    @property
    def digest(self) -> str:
        """The digest of the last round, which stands for all rounds so far. Keep it elsewhere, and `expect` it."""
        return self._rounds[-1].digest if self._rounds else self._header.digest

    @property
    def result(self) -> PrivacyResult:
        """What has been spent, as a record."""
        with self._alone():
            scope = scope_of(self._spent) or LOCAL.composed  # nothing is spent between any two inputs
            assumptions: tuple[str, ...] = (
                f"{len(self._rounds):,} rounds, all of them through this ledger",
                "every release came after `spend` returned",
            )
            if self.method != "basic":
                assumptions += ("the events of the rounds were fixed before the run",)
            if any(event.slack == EARLIER for event in self._spent):
                assumptions += (
                    "a round whose record says no distance from its law was written by an earlier version: it released"
                    " 2^32 numbers of noise at most, and a Gaussian's was `perturb_vector`'s",
                )
            delta = self.delta if self.method != "basic" or any(event.slack for event in self._spent) else 0.0
            return PrivacyResult(self._now, delta, scope, assumptions, f"{self.method} composition")

    def spend(
        self, source: Event | Mechanism, times: int = 1, *, layout: str = "", limit: float | None = None
    ) -> PrivacyResult:
        """Take one round of `times` releases out of the budget; release only after this has returned.

        Args:
            source: A mechanism, or its event.
            times: How many releases of it the round has.
            layout: Any text that describes what is released. The first round's text is kept, and rounds with another
                are refused.
            limit: A total epsilon below the budget that this round may not pass, in the ledger's scope.

        Raises:
            ValueError: If the ledger's rounds have another layout; nothing is spent then.
            BudgetExceeded: If the round would pass the budget or the limit; nothing is spent then.
            LedgerError: If the ledger is closed, if the file cannot be written or is no longer the one that was opened,
                or if this is a forked child.
        """
        event, times = _spendable(source), arguments.count("times", times)
        if not isinstance(layout, str):
            raise TypeError(f"layout is a {type(layout).__name__}: pass text")
        most = self.budget if limit is None else min(arguments.positive("limit", limit), self.budget)
        layout.encode()  # a lone surrogate is refused before anything is spent
        with self._alone():
            if self._closed:
                raise LedgerError("the ledger is closed: open it again")
            if self._spending:  # by a signal's handler
                raise LedgerError("another round of this ledger is under way in this thread: spend after it has ended")
            self._spending = True
            try:
                find = self._spent_in_file if self._file else self._next
                self._take(find(event, times, layout, most))
            finally:
                self._spending = False
            logger.info("round %d: %s", len(self._rounds), self._text())
            return self.result

    def _spent_in_file(self, event: Event, times: int, layout: str, most: float) -> Round:
        """The round, which is durable when this returns. What an exception hides is read from the file next time."""
        assert self._file is not None
        with self._file.transaction() as db:
            self._resume(*self._file.read(db, len(self._rounds), self.digest))
            one = self._next(event, times, layout, most)
            self._file.write(db, one)
        return one

    def _next(self, event: Event, times: int, layout: str, most: float) -> Round:
        """The next round, if it stays within `most`, of the layout that is pinned."""
        pinned = next((one.layout for one in self._rounds if one.layout), layout)
        if layout and layout != pinned:
            raise ValueError(
                "the arrays differ from those of this ledger's first round, whose names, shapes and dtypes are fixed: "
                "use another ledger for another model"
            )
        would_be = max(self._now, self._epsilon(event, times))
        if not _within(would_be, most):
            raise BudgetExceeded(self._now, would_be, most, self.delta)
        return Round.after(self.digest, len(self._rounds) + 1, event, times, would_be, layout)

    def rounds_left(self, source: Event | Mechanism, times: int = 1) -> int:
        """Return how many more such rounds the budget covers, up to 2^40, as of this ledger's last round."""
        event, times = _spendable(source), arguments.count("times", times)
        with self._alone():
            low, high = 0, 1
            most = min(MOST_ROUNDS_LEFT, arguments.MOST // times)
            while high < most and self._covers(self._epsilon(event, times * high)):
                low, high = high, high * 2
            high = min(high, most)
            while high - low > 1:
                middle = (low + high) // 2
                if self._covers(self._epsilon(event, times * middle)):
                    low = middle
                else:
                    high = middle
            return low

    def close(self) -> None:
        """End it: a closed ledger refuses to spend."""
        if os.getpid() == self._process:
            self._closed = True

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ledger can't be copied nor sent to another process: each would spend the whole remainder")


def recorded(path: str | os.PathLike[str]) -> tuple[Ledger, list[Round]]:
    """Return what a file says, and change nothing: a closed ledger that can be asked, and its rounds."""
    file = LedgerFile(path)
    with file.transaction(write=False) as db:
        file.check(db)
        header, rounds = file.read(db)
    ledger = Ledger(None, epsilon=header.epsilon, delta=header.delta, method=header.method)
    ledger._file = file
    ledger._resume(header, rounds)
    ledger.close()
    return ledger, rounds


def _within(epsilon: float, most: float) -> bool:
    """Ten rounds of 0.1 fit a budget of 1: sums of decimal fractions are off by less than 1e-12 of them."""
    return epsilon <= most * (1 + 1e-12)


def _spendable(source: Event | Mechanism) -> Event:
    """The event, which says whom it holds off, and which the file must give back as it is."""
    event = event_of(source)
    if event.scope is None:
        raise ValueError(
            f"{event!r} does not say which neighbours it compares: give scope=LOCAL (noise over the distance of any two"
            " inputs, which the server sees) or scope=CENTRAL (over the norm of one client, by a trusted server)"
        )
    if event_from_dict(event.to_dict()) != event:
        raise ValueError(f"{event!r} is not an event that a ledger can read back: use one of ldpkernels.accounting")
    return event
