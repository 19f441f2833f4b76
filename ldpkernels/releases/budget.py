# SPDX-License-Identifier: Apache-2.0
"""The file in which a client keeps what it has spent, whatever framework asks it for a round."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ldpkernels.accounting import Event, Ledger, LedgerError, composed_epsilon
from ldpkernels.accounting.records import rounded_up
from ldpkernels.releases.release import Release
from ldpkernels.releases.summed import Summed

logger = logging.getLogger("ldpkernels.releases")


@dataclass
class _Rehearsal:
    ledgers: dict[Path, Ledger]
    over: bool = False  # tasks that were begun within it may outlive it


_REHEARSED: ContextVar[_Rehearsal | None] = ContextVar("rehearsed", default=None)


@contextlib.contextmanager
def rehearsed() -> Iterator[dict[Path, Ledger]]:
    """Within the `with` statement every budget is a new one in memory: for an audit, whose answers go nowhere.

    No file is read or written. What is given are the ledgers by the path that they stand for. Other threads go on
    spending from their files.

    >>> with rehearsed() as ledgers, Budget("{site}.ledger", 8.0).opened({"site": "here"}) as ledger:
    ...     print([str(path) for path in ledgers])
    ['here.ledger']
    """
    rehearsal = _Rehearsal({})
    token = _REHEARSED.set(rehearsal)
    try:
        yield rehearsal.ledgers
    finally:
        rehearsal.over = True
        _REHEARSED.reset(token)


@dataclass(frozen=True)
class Budget:
    """A client's ledger and its end; without a path there is none.

    Args:
        path: The file, in which names in braces are filled in when it is opened.
        epsilon: The total that no round may pass.
        delta: The delta of that total.

    >>> with Budget(None, None).opened({}) as ledger:
    ...     print(ledger)
    None
    """

    path: str | os.PathLike[str] | None
    epsilon: float | None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if (self.path is None) != (self.epsilon is None):
            raise ValueError("ledger and budget go together: the file that keeps a client's spending, and its limit")
        if self.epsilon is not None:
            Ledger(None, epsilon=self.epsilon, delta=self.delta)  # it refuses what is not a budget

    @contextlib.contextmanager
    def opened(self, names: Mapping[str, object]) -> Iterator[Ledger | None]:
        """The ledger of the client that has these names, if there is one."""
        if self.path is None or self.epsilon is None:
            yield None
            return
        template = os.fspath(self.path)
        try:
            path = Path(template.format_map(names))
        except (KeyError, IndexError, AttributeError) as error:
            raise LedgerError(
                f"ledger={template!r} names {error}, which this client's configuration does not have"
            ) from error
        rehearsal = _REHEARSED.get()
        if rehearsal is not None:
            if rehearsal.over:
                raise LedgerError("this task was begun in a rehearsal that is over: it has no ledger")
            yield rehearsal.ledgers.setdefault(path, Ledger(None, epsilon=self.epsilon, delta=self.delta))
            return
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            logger.warning("a new ledger is begun, and with it a new budget: %s", path.absolute())
        with Ledger(path, epsilon=self.epsilon, delta=self.delta) as ledger:
            yield ledger


def spent(ledger: Ledger, release: Release, sizes: Sequence[int], layout: str, limit: float | None = None) -> float:
    """Charge a ledger for a round, before anything of it is released: the epsilon in all. The log says whose it is."""
    event, times = release.event(sizes)
    epsilon = ledger.spend(event, times, layout=layout, limit=limit).epsilon
    text = f"epsilon = {rounded_up(epsilon)} at delta = {ledger.delta:g}, against {release.against}"
    if isinstance(release, Summed):
        alone = rounded_up(_once(*release.alone(sizes), ledger.delta))
        text += f". Against a server that invents all other clients, this round's upload alone is worth {alone}"
    logger.info("%s", text)
    return epsilon


def affords(ledger: Ledger, release: Release, sizes: Sequence[int]) -> bool:
    """Whether a ledger covers another round."""
    event, times = release.event(sizes)
    return ledger.rounds_left(event, times) > 0


@lru_cache(maxsize=16)
def _once(event: Event, times: int, delta: float) -> float:
    return composed_epsilon([(event, times)], delta)
