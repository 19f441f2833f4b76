# SPDX-License-Identifier: Apache-2.0
"""The file in which a client keeps what it has spent, whatever framework asks it for a round."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from ldpkernels.accounting import Ledger, LedgerError

_REHEARSED: ContextVar[dict[Path, Ledger] | None] = ContextVar("rehearsed", default=None)


@contextlib.contextmanager
def rehearsed() -> Iterator[dict[Path, Ledger]]:
    """Within the `with` statement every budget is a new one in memory: for an audit, whose answers go nowhere.

    No file is read or written. What is given are the ledgers by the path that they stand for. Other threads go on
    spending from their files.

    >>> with rehearsed() as ledgers, Budget("{site}.ledger", 8.0).opened({"site": "here"}) as ledger:
    ...     print([str(path) for path in ledgers])
    ['here.ledger']
    """
    ledgers: dict[Path, Ledger] = {}
    token = _REHEARSED.set(ledgers)
    try:
        yield ledgers
    finally:
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
            raise ValueError(
                "ledger and budget go together: the file in which a client's spending is kept, and its end"
            )
        if self.epsilon is not None:
            Ledger(None, epsilon=self.epsilon, delta=self.delta)  # it refuses what is no budget

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
                f"ledger={template!r} names {error}, which this client's configuration has not"
            ) from error
        ledgers = _REHEARSED.get()
        if ledgers is not None:
            yield ledgers.setdefault(path, Ledger(None, epsilon=self.epsilon, delta=self.delta))
            return
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with Ledger(path, epsilon=self.epsilon, delta=self.delta) as ledger:
            yield ledger
