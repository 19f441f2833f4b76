# SPDX-License-Identifier: Apache-2.0
"""Locks of objects that several threads add to."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_of_the_set = threading.RLock()
_held_by_fork: list[threading.RLock] = []  # empty but while a fork goes on


def shared_lock() -> threading.RLock:
    """A lock that may be taken again by its holder, a signal's handler say, and that a fork waits for.

    So a child has what was added as a whole: no other thread is half-way, and none that stays behind holds the lock.
    Who takes several takes them by rising `id`.
    """
    lock = threading.RLock()
    with _of_the_set:
        _locks.add(lock)
    return lock


def _hold() -> None:
    _of_the_set.acquire()
    _held_by_fork.extend(sorted(_locks, key=id))
    for lock in _held_by_fork:
        lock.acquire()


def _let_go() -> None:
    while _held_by_fork:
        _held_by_fork.pop().release()
    _of_the_set.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
