# SPDX-License-Identifier: Apache-2.0
"""A ledger for a training run: no round is released that the budget doesn't cover, and no crash forgets one.

The order is the guarantee. `spend` computes the new total, refuses it if it passes the budget, writes the intent,
makes it durable, and only then returns; the release comes after. A crash before the return has released nothing, and a
line torn by it is charged all the same, as the dearest release that the run has declared.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ldpkernels.accounting import arguments
from ldpkernels.accounting.composition import METHODS, composed_epsilon
from ldpkernels.accounting.events import Event, Mechanism, event_from_dict, event_of
from ldpkernels.accounting.ledger_file import Appender, Chain, LedgerError, begin, read
from ldpkernels.accounting.ledger_records import Declared, Header, Record, Spent, Torn, dearest
from ldpkernels.accounting.records import PrivacyResult, rounded_up
from ldpkernels.accounting.views import adversary_of

__all__ = ["BudgetExceeded", "Ledger", "LedgerError"]

logger = logging.getLogger("ldpkernels.accounting")

MOST_ROUNDS_LEFT = 1 << 40


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

    Opening an existing file resumes it; the budget, delta and method must then be the same. One ledger at a time has
    the file, and one process has the ledger: threads may share it, and a forked child is refused. A file that was
    renamed, replaced, cut or written to meanwhile is refused before the next round is spent.

    A changed byte in the file is refused when it is opened. But the file's chain of digests has no key, so whoever can
    write the file can write it anew, cut it or put back an older copy, and it opens. Against that keep `digest`
    elsewhere after a round, and open with `expect=digest`: the file must then have been through that round.

    The basic figure stands however each round's event is chosen. The others take the sequence of events as fixed
    before the run; ending early is always allowed.

    Args:
        path: The file (JSON lines), or None for a ledger in memory, which a crash does forget.
        epsilon: The budget.
        delta: The probability that the bound excludes.
        method: How rounds are composed: "basic", "advanced", "rdp" or "exact".
        expect: An earlier `digest` of the file, which it must have been through; it must then exist.

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
        self._defined: list[Declared] = []
        self._spent: dict[int, int] = {}
        self._history: list[float] = []
        self._now = 0.0
        self._chain, self._digest = Chain(), ""
        self._mutex = threading.RLock()
        self._process = os.getpid()
        self._file: Appender | None = None
        self._closed = self._unsettled = False
        header = Header(self.budget, self.delta, self.method)
        if path is None:
            if expect is not None:
                raise ValueError(f"expect = {expect!r} is for a ledger in a file: give its path")
            self._write(header)
        else:
            self._open(Path(path), header, expect)

    def _open(self, path: Path, header: Header, expect: str | None) -> None:
        path = Path(os.path.abspath(path))
        if expect is None:
            begin(path, self._chain.line(header)[1])
        try:
            self._file = Appender(path)
        except FileNotFoundError as error:
            if expect is None:
                raise
            raise LedgerError(
                f"{path} is gone, and was expected with the digest {expect}: restore it, or take the whole budget as"
                " spent"
            ) from error
        try:
            self._resume(path, self._file, header, expect)
        except BaseException:
            self._file.close()
            raise

    def _resume(self, path: Path, file: Appender, header: Header, expect: str | None) -> None:
        contents = read(path, file.read())
        if not contents.records:
            raise LedgerError(
                f"{path} holds no whole header, so nothing was ever spent from it: delete it and start again"
            )
        if contents.records[0] != header:
            raise LedgerError(
                f"{path} was begun as {contents.records[0]}, and is now opened as {header}: give the values that it"
                " was begun with, or start a new ledger in another file"
            )
        if expect is not None and expect not in contents.values:
            raise LedgerError(
                f"{path} was never at the digest {expect}: it was cut, written anew, or an older copy was put back."
                " Restore the newest copy; if there is none, take the whole budget as spent"
            )
        self._chain, self._digest = contents.chain, contents.values[-1]
        newline = b"" if contents.ends_in_newline else b"\n"
        try:
            for record in contents.records[1:]:
                self._apply(record)
            # an older version may have found another figure for the same rounds: the larger one counts
            self._now = max(self._now, self._epsilon())
            if contents.torn:
                logger.warning("%s ends in torn lines: charged as %d round(s) at their dearest", path, contents.torn)
                self._write(Torn(contents.torn), after=newline)
                self._apply(Torn(contents.torn))
            elif newline:
                file.append(newline)
                self._chain.follow(newline)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise LedgerError(f"{path} holds what no ledger writes: {error}") from error
        if self._history:
            logger.info("%s resumed: epsilon = %s of %g at delta = %g", path, self._text(), self.budget, self.delta)

    def _apply(self, record: Record) -> None:
        if isinstance(record, Declared):
            self._defined.append(record)
        elif isinstance(record, Spent):
            if record.round != len(self._history) + 1 or record.declared >= len(self._defined):
                raise ValueError(f"{record} is out of order")
            self._spent[record.declared] = self._spent.get(record.declared, 0) + 1
            self._charge(record.epsilon)
        elif isinstance(record, Torn):
            charged = dearest(self._defined, self.method)
            for i in charged:
                self._spent[i] = self._spent.get(i, 0) + record.rounds
            if charged:
                self._charge(self._epsilon())
        else:
            raise ValueError("a second header")

    def _charge(self, epsilon: float) -> None:
        self._history.append(epsilon)
        self._now = max(self._now, epsilon)

    def _write(self, record: Record, after: bytes = b"") -> None:
        self._chain.follow(after)
        value, line = self._chain.line(record)
        if self._file is not None:
            self._file.append(after + line)
        self._chain.follow(line)
        self._digest = value

    def _epsilon(self, more: Declared | None = None, often: int = 1) -> float:
        """The epsilon of what was spent, and of so many more rounds."""
        terms = [(self._defined[i].event, self._defined[i].times * count) for i, count in self._spent.items()]
        if more is not None:
            terms.append((more.event, more.times * often))
        return composed_epsilon(terms, self.delta, self.method)

    def _covers(self, epsilon: float) -> bool:
        """Ten rounds of 0.1 fit a budget of 1: sums of decimal fractions are off by less than 1e-12 of them."""
        return epsilon <= self.budget * (1 + 1e-12)

    def _text(self) -> str:
        return rounded_up(self._now)

    @contextmanager
    def _held(self) -> Iterator[None]:
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
        """What has been spent, at the ledger's delta."""
        with self._held():
            return self._now

    @property
    def history(self) -> tuple[float, ...]:
        """Epsilon after each round."""
        with self._held():
            return tuple(self._history)

    @property
    def digest(self) -> str:
        """The chain value of the last line: it stands for every byte before. Keep it elsewhere, and `expect` it."""
        with self._held():
            return self._digest

    @property
    def result(self) -> PrivacyResult:
        """What has been spent, as a record."""
        with self._held():
            adversary, neighbouring = (
                adversary_of(self._defined[0].event) if self._defined else ("anyone", "any two inputs")
            )
            assumptions: tuple[str, ...] = (
                f"{len(self._history):,} rounds, all of them through this ledger",
                "every release came after `spend` returned",
            )
            if self.method != "basic":
                assumptions += ("the events of the rounds were fixed before the run",)
            delta = 0.0 if self.method == "basic" else self.delta
            return PrivacyResult(self._now, delta, adversary, neighbouring, assumptions, f"{self.method} composition")

    def spend(self, source: Event | Mechanism, times: int = 1) -> PrivacyResult:
        """Take one round of `times` releases out of the budget; release only after this has returned.

        Raises:
            BudgetExceeded: If the round would pass the budget; nothing is spent then.
            LedgerError: If the ledger is closed, an earlier write failed, the file is no longer the one that was
                opened, or this is a forked child.
        """
        release = Declared(_readable(event_of(source)), arguments.count("times", times))
        with self._held():
            if self._closed:
                raise LedgerError("the ledger is closed: open it again")
            if self._unsettled:
                raise LedgerError(
                    "an earlier write failed or was interrupted, or is under way, so what was spent is not known here: "
                    + ("begin a new ledger" if self._file is None else "open the ledger again")
                )
            self._unsettled = True  # until file and memory agree again; a signal's handler may spend too
            try:
                would_be = max(self._now, self._epsilon(release))
                if not self._covers(would_be):
                    raise BudgetExceeded(self._now, would_be, self.budget, self.delta)
            except BaseException:
                self._unsettled = False  # nothing was written yet
                raise
            if release not in self._defined:
                self._write(release)
                self._apply(release)
            spent = Spent(len(self._history) + 1, self._defined.index(release), would_be)
            self._write(spent)
            self._apply(spent)
            self._unsettled = False
            logger.info(
                "round %d: epsilon = %s of %g at delta = %g, digest %s",
                spent.round,
                self._text(),
                self.budget,
                self.delta,
                self._digest,
            )
            return self.result

    def rounds_left(self, source: Event | Mechanism, times: int = 1) -> int:
        """Return how many more such rounds the budget covers, up to 2^40."""
        release = Declared(event_of(source), arguments.count("times", times))
        with self._held():
            low, high = 0, 1
            most = min(MOST_ROUNDS_LEFT, arguments.MOST // release.times)
            while high < most and self._covers(self._epsilon(release, high)):
                low, high = high, high * 2
            high = min(high, most)
            while high - low > 1:
                middle = (low + high) // 2
                if self._covers(self._epsilon(release, middle)):
                    low = middle
                else:
                    high = middle
            return low

    def close(self) -> None:
        """Release the file; a closed ledger refuses to spend."""
        if os.getpid() == self._process:
            with self._mutex:
                self._closed = True
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ledger can't be copied nor sent to another process: each would spend the whole remainder")


def _readable(event: Event) -> Event:
    """The event, which the file must give back as it is."""
    if event_from_dict(event.to_dict()) != event:
        raise ValueError(f"{event!r} is not an event that a ledger can read again: use one of ldpkernels.accounting")
    return event
