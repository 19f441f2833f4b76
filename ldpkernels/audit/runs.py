# SPDX-License-Identifier: Apache-2.0
"""A client's runs, as an audit records them: what left, what its ledgers charged, how long it took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ldpkernels.audit.observed import Answer, Field, Raised, observed
from ldpkernels.releases.budget import rehearsed

Data = TypeVar("Data")
Fields = Sequence["Field | None"]  # one field in many runs; None where it was not there
Draws = tuple[Fields, Fields]  # under either input


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        answer: What left.
        failed: The first error, where nothing but errors left.
        epsilon: What its ledgers say of the run; None without one.
        delta: Of that epsilon.
        seconds: How long it took.
    """

    answer: Answer
    failed: str | None
    epsilon: float | None
    delta: float
    seconds: float


def run(client: Callable[[Data], object], data: Data) -> Run:
    """One run, with new ledgers."""
    with rehearsed() as ledgers:
        start = time.perf_counter()
        left: object
        try:
            left = client(data)
            if isinstance(left, Iterator):
                left = _messages(left)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what Rust's panics raise is no Exception, and leaves too
            left = Raised.of(error)
        seconds = time.perf_counter() - start
    spent = [ledger for ledger in ledgers.values() if ledger.history]
    epsilon = sum(ledger.epsilon for ledger in spent) if spent else None
    messages = left if isinstance(left, list) else [left]
    errors = [message.text for message in messages if isinstance(message, Raised)]
    failed = errors[0] if errors and len(errors) == len(messages) else None
    return Run(observed(left), failed, epsilon, sum(ledger.delta for ledger in spent), seconds)


def recorded(
    client: Callable[[Data], object], inputs: tuple[Data, Data], runs: int, seed: int
) -> tuple[list[Run], list[Run]]:
    """So many runs under each input, in a random order, so that nothing that drifts looks like a difference."""
    seen: tuple[list[Run], list[Run]] = ([], [])
    with _quiet():
        failed = [run(client, data).failed for data in inputs]
        if None not in failed:
            raise ValueError(f"the client fails under both inputs, so that there is nothing to audit: {failed[0]}")
        for which in np.random.default_rng(seed).permutation(np.arange(2 * runs) % 2):
            seen[which].append(run(client, inputs[which]))
    return seen


def fields_of(seen: tuple[list[Run], list[Run]]) -> dict[str, Draws]:
    """By field, what each run had there."""
    paths = dict.fromkeys(path for runs in seen for one in runs for path in one.answer.fields)
    return {path: (_of(seen[0], path), _of(seen[1], path)) for path in paths}


def _of(runs: list[Run], path: str) -> list[Field | None]:
    return [one.answer.fields.get(path) for one in runs]


def _messages(answers: Iterator[object]) -> list[object]:
    """What was sent, and the error that ended it."""
    sent: list[object] = []
    try:
        for answer in answers:
            sent.append(answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sent.append(Raised.of(error))
    return sent


@contextmanager
def _quiet() -> Iterator[None]:
    """Logs stay with a client, and would be thousands here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
