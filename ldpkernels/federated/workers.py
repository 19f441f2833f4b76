# SPDX-License-Identifier: Apache-2.0
"""Processes that work on independent clients, parties or runs at once, and give the bits of one process.

A worker is a fresh interpreter: spawned, never forked, with a number of torch threads of its own. What all tasks share
(a network, the clients' data) reaches it once, by a file that every worker maps and that is unlinked before the first
task. A task is a function of a module, of what is shared, of what is common to one call of `map`, and of its item, so
that neither the number of workers nor their order is in any result.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar, cast

import torch

Shared = TypeVar("Shared")
Common = TypeVar("Common")
Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4  # results that a worker may be ahead of the one that is waited for: they wait in memory


class WorkerError(RuntimeError):
    """A worker could not start, or ended before its work was done."""


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection


class _Call(NamedTuple):
    """What a worker is sent before the items of a call."""

    task: Callable[..., object]
    common: object


class _Failure(NamedTuple):
    """What a worker answers instead of a result."""

    error: Exception
    trace: str


class Workers(Generic[Shared]):
    """So many processes, started once and kept until `close`, or for the length of a `with` statement.

    Args:
        count: How many.
        shared: What every task gets; it must be picklable, so its classes are those of modules.
        threads: Of torch in each. Results depend on it as they do in one process, and on `count` not at all.
    """

    def __init__(self, count: int, shared: Shared, *, threads: int = 1) -> None:
        if count < 1 or threads < 1:
            raise ValueError(f"workers={count} of threads={threads}: use at least 1 of each")
        self.shared = shared
        self._workers: list[_Worker] = []
        self._owed: dict[Connection, int] = {}  # the item that a worker has not answered yet
        with tempfile.TemporaryDirectory(prefix="ldpkernels-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "shared"
            try:
                torch.save(shared, path)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"workers cannot be handed this ({error}): define classes and functions at the top of a module, "
                    "or do without workers"
                ) from error
            try:
                self._start(count, path, threads)
            except BaseException:
                self.close()
                raise

    def _start(self, count: int, path: Path, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, str(path), threads), daemon=True)
            process.start()
            there.close()
            self._workers.append(_Worker(process, here))
        for worker in self._workers:  # each says that it has mapped the file, which may go then
            self._answer(worker.connection)

    def map(
        self, task: Callable[[Shared, Common, Item], Result], common: Common, items: Sequence[Item]
    ) -> Iterator[Result]:
        """task(shared, common, item) for each item, in the order of the items; what a task raises is raised here."""
        for connection in list(self._owed):  # of a call that was given up: nobody wants the answer
            with contextlib.suppress(Exception):
                self._answer(connection)
        if not self._workers:
            raise WorkerError("these workers were closed: start new ones")
        beginning = _packed(_Call(task, common))
        for worker in self._workers:
            self._send(worker.connection, beginning)
        idle = [worker.connection for worker in self._workers]
        found: dict[int, object] = {}
        handed = 0
        for i in range(len(items)):
            while True:
                while idle and handed < min(len(items), i + _AHEAD * len(self._workers)):  # before anyone uses a result
                    connection = idle.pop()
                    self._send(connection, _packed(items[handed]))
                    self._owed[connection] = handed
                    handed += 1
                if i in found:
                    break
                for connection in self._ready():
                    place = self._owed[connection]
                    found[place] = self._answer(connection)
                    idle.append(connection)
            yield cast(Result, found.pop(i))

    def _ready(self) -> list[Connection]:
        return [c for c in wait(list(self._owed)) if isinstance(c, Connection)]

    def _answer(self, connection: Connection) -> object:
        try:
            answer = _unpacked(connection.recv_bytes())
        except (EOFError, OSError):
            raise self._death(connection) from None
        finally:
            self._owed.pop(connection, None)
        if isinstance(answer, _Failure):
            raise answer.error from WorkerError(f"in a worker:\n{answer.trace}")
        return answer

    def _send(self, connection: Connection, message: bytes) -> None:
        try:
            connection.send_bytes(message)
        except OSError:
            raise self._death(connection) from None

    def _death(self, connection: Connection) -> WorkerError:
        process = next(worker.process for worker in self._workers if worker.connection is connection)
        process.join(5)
        self.close()
        if (process.exitcode or 0) < 0:
            cure = "it was killed, for want of memory perhaps: use fewer workers. What was kept can be resumed"
        else:
            cure = "it says why on stderr. A script that starts workers needs `if __name__ == '__main__':`"
        return WorkerError(f"worker process {process.pid} ended with exit code {process.exitcode}: {cure}")

    def close(self) -> None:
        """End the processes, whatever they do."""
        for worker in self._workers:
            worker.process.terminate()
            worker.connection.close()
        for worker in self._workers:
            worker.process.join()
        self._workers, self._owed = [], {}

    def __enter__(self) -> Workers[Shared]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def available(threads: int = 1) -> int:
    """How many workers of so many threads this machine has cores for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // threads)


def _serve(connection: Connection, path: str, threads: int) -> None:
    """A worker's life: it ends when its parent does, or closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    torch.set_num_threads(threads)
    shared = _attempt(functools.partial(torch.load, path, mmap=True, weights_only=False))
    call: _Call | None = None
    answer: object = shared if isinstance(shared, _Failure) else None
    while True:
        try:
            connection.send_bytes(_packed(answer))
            message = _unpacked(connection.recv_bytes())
            while isinstance(message, _Call):
                call = message
                message = _unpacked(connection.recv_bytes())
        except (EOFError, OSError):
            return
        assert call is not None
        answer = _attempt(functools.partial(call.task, shared, call.common, message))


def _attempt(action: Callable[[], object]) -> object:
    """Its result, or how it failed, in a form that travels."""
    try:
        return action()
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return _Failure(RuntimeError(f"{type(error).__name__}: {error}"), trace)
        return _Failure(error, trace)


class _Packer(pickle.Pickler):
    """Plain tensors as NumPy's bytes: torch's own format takes four times as long for some kilobytes."""

    def reducer_override(self, value: object) -> tuple[Callable[..., object], tuple[object]]:
        if isinstance(value, torch.Tensor) and _is_plain(value):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented  # type: ignore[no-any-return]  # the rest as ever


def _is_plain(value: torch.Tensor) -> bool:
    on_cpu = (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.dtype is not torch.bfloat16
    )
    return on_cpu and value.is_contiguous() and not (value.requires_grad or value.is_neg() or value.is_complex())


def _packed(value: object) -> bytes:
    """Tensors by value: torch would have processes share them, which costs more than a copy of some kilobytes."""
    buffer = io.BytesIO()
    _Packer(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _unpacked(message: bytes) -> object:
    value: object = pickle.loads(message)  # of one of our own processes
    return value
