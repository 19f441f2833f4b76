# SPDX-License-Identifier: Apache-2.0
"""NumPy on long vectors: a stretch at a time, which caches hold, and in threads, which NumPy lets run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ldpkernels import capabilities

STRETCH = 1 << 14  # of fp64, with as much again for what is computed on the way: the second-level cache
SMALL = 1 << 17  # numbers below which a thread costs more than it saves
Result = TypeVar("Result")


def in_stretches(n: int, work: Callable[[slice], Result]) -> list[Result]:
    """`work` of the stretches that make up the places below n. What it does to a number must depend on no other.

    >>> in_stretches(40_000, lambda part: part.stop - part.start)
    [16384, 16384, 7232]
    """
    parts = [slice(begin, min(begin + STRETCH, n)) for begin in range(0, n, STRETCH)]
    threads = min(capabilities.threads(), n // SMALL)
    if threads <= 1:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:  # ends with the call, like every thread here
        return list(pool.map(work, parts))
