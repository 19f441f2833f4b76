# SPDX-License-Identifier: Apache-2.0
"""Kernels take contiguous memory. A view is perturbed in a copy, in the order of its elements, and written back."""

from __future__ import annotations

import _thread
import contextvars
import threading
from collections.abc import Callable, Sequence

import numpy as np

from ldpkernels.arrays import Value
from ldpkernels.optional import is_tensor


def contiguous(values: Sequence[Value]) -> Sequence[Value]:
    """Each in contiguous memory: itself, or a copy. All of them where none had to be copied."""
    if all(map(_is_plain, values)):
        return values
    return [value if _is_plain(value) else _copy(value) for value in values]


def through(values: Sequence[Value], flat: Sequence[Value], run: Callable[[Sequence[Value]], None]) -> None:
    """Let `run` overwrite the contiguous memory of `values`, and write back what is a copy.

    Nothing is left half perturbed: an exception from a signal waits until the copies are written.
    """
    views = [(value, copy) for value, copy in zip(values, flat, strict=True) if copy is not value]

    def perturb() -> None:
        run(flat)
        for value, copy in views:
            _write(value, copy)

    first = values[0]
    if is_tensor(first) and first.is_cuda:
        try:
            run(flat)
        finally:  # harmless where nothing was run
            for value, copy in views:
                _write(value, copy)
    else:
        uninterrupted(perturb)


def uninterrupted(work: Callable[[], None]) -> None:
    """Run `work` to its end, whatever a signal's handler raises: handlers run in the main thread, so another works."""
    if threading.current_thread() is not threading.main_thread():
        work()
        return
    context, once, done = contextvars.copy_context(), threading.Lock(), threading.Lock()
    failed: list[BaseException] = []
    finished: list[bool] = []  # a handler may raise when the lock was just acquired: nobody would release it again
    done.acquire()

    def guarded() -> None:
        if once.acquire(blocking=False):
            try:
                context.run(work)
            except BaseException as error:
                failed.append(error)
            finally:
                finished.append(True)
                done.release()

    interrupted: BaseException | None = None
    try:
        _thread.start_new_thread(guarded, ())
    except BaseException as error:
        if "can't start new thread" in str(error):
            guarded()
        elif once.acquire(blocking=False):
            raise  # a handler raised before the thread ran: nothing was written, and nothing will be
        else:
            interrupted = error
    while not finished:
        try:
            try:
                done.acquire()
            except BaseException as error:
                interrupted = interrupted or error
                if not finished:
                    done.acquire()  # another handler may raise where a loop turns: here it is caught
        except BaseException as error:
            interrupted = interrupted or error
    if interrupted is not None:
        failed.append(interrupted)
    if failed:
        raise failed[0]


def _is_plain(value: Value) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.flags.c_contiguous)
    return value.is_contiguous() and not value.is_neg()


def _copy(value: Value) -> Value:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    return value.detach().contiguous().resolve_neg()


def _write(value: Value, copy: Value) -> None:
    if isinstance(value, np.ndarray):
        value[...] = copy
        return
    import torch

    with torch.inference_mode():  # inference tensors and leaves too: nothing may fail after the first write
        value.copy_(copy)
