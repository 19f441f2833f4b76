# SPDX-License-Identifier: Apache-2.0
"""Processes that work on independent clients, parties or runs at once, and give the bits of one process.

They are a `concurrent.futures.ProcessPoolExecutor` of processes that have nothing of this one's state, with a number of
torch threads of their own. On Linux they are forks of a server that has imported torch and no more; elsewhere they are
spawned. What all tasks share (a network, the clients' data) reaches a worker once, by a file that every worker maps and
that is gone before the first task. Everything else travels as bytes of `pickle`, since torch would otherwise share each
tensor by a file descriptor. Neither the number of workers nor their order is in any result.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from threading import Barrier
from types import TracebackType
from typing import Generic, TypeVar, cast

import torch

Shared = TypeVar("Shared")
Common = TypeVar("Common")
Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4  # tasks for each worker that may be handed out before the one that is waited for: results wait in memory


class WorkerError(RuntimeError):
    """A worker could not start, or ended before its work was done."""


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
        self._count = count
        context = _context()
        there, self._lifeline = context.Pipe(duplex=False)
        with tempfile.TemporaryDirectory(prefix="ldpkernels-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "shared"
            try:
                torch.save(shared, path)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"workers cannot be handed this ({error}): define classes and functions at the top of a module, "
                    "or leave workers out"
                ) from error
            everyone = context.Barrier(count)
            self._pool = ProcessPoolExecutor(count, context, _begin, (str(path), threads, there, everyone))
            try:
                for started in [self._pool.submit(_meet) for _ in range(count)]:
                    started.result()
            except BrokenProcessPool as error:
                self.close()
                cure = "it says why on stderr. A script that starts workers needs `if __name__ == '__main__':`"
                raise WorkerError(f"a worker process ended before its first task: {cure}") from error
            except BaseException:
                self.close()
                raise
            finally:
                there.close()

    def map(
        self, task: Callable[[Shared, Common, Item], Result], common: Common, items: Sequence[Item]
    ) -> Iterator[Result]:
        """task(shared, common, item) for each item, in the order of the items; what a task raises is raised here.

        The call refuses what it can; the first task is handed out when the first result is asked for.
        """
        if self._lifeline.closed:
            raise WorkerError("these workers were closed: start new ones")
        return self._results(pickle.dumps((task, common)), items)

    def _results(self, beginning: bytes, items: Sequence[Item]) -> Iterator[Result]:
        waiting: deque[Future[bytes]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(_work, beginning, pickle.dumps(item)))
                if len(waiting) == _AHEAD * self._count:
                    yield cast(Result, pickle.loads(waiting.popleft().result()))
            while waiting:
                yield cast(Result, pickle.loads(waiting.popleft().result()))
        except BrokenProcessPool as error:
            self.close()
            cure = "it was killed, for want of memory perhaps: use fewer workers. What was kept can be resumed"
            raise WorkerError(f"a worker process ended in the middle of its work: {cure}") from error
        finally:
            for future in waiting:  # of a call that was given up, or that failed: nobody wants the result
                future.cancel()

    def close(self) -> None:
        """End the processes, whatever they do."""
        self._lifeline.close()
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Workers[Shared]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _context() -> BaseContext:
    """How processes begin: as forks of a server where that is safe, since a new one would import torch for seconds."""
    if sys.platform != "linux":  # Apple's libraries may not be forked once loaded, and Windows has no fork
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # not this package, which the server may find elsewhere
    return context


def available(threads: int = 1) -> int:
    """How many workers of so many threads this machine has cores for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // threads)


_shared: object = None  # what the tasks of this worker share
_everyone: Barrier


def _begin(path: str, threads: int, lifeline: Connection, everyone: Barrier) -> None:
    """Make a worker of this process. It ends when the other end of the lifeline closes, as it does when the parent is
    killed: an executor's own workers would wait for a parent that is gone."""
    global _shared, _everyone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(threads)
    _shared, _everyone = torch.load(path, mmap=True, weights_only=False), everyone


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)
    os._exit(1)


def _meet() -> None:
    """Wait for all workers: one that is here cannot take a second of these tasks, so that everyone has begun."""
    _everyone.wait()


@functools.lru_cache(maxsize=1)
def _read(beginning: bytes) -> tuple[Callable[..., object], object]:
    """The task of a call, and what its items have in common: the same objects for all items that this worker gets."""
    found: tuple[Callable[..., object], object] = pickle.loads(beginning)  # of our own parent
    return found


def _work(beginning: bytes, item: bytes) -> bytes:
    task, common = _read(beginning)
    try:
        return pickle.dumps(task(_shared, common, pickle.loads(item)))
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an exception that cannot travel would take the pool with it
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise
