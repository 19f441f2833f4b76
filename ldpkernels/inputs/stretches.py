# SPDX-License-Identifier: Apache-2.0
"""NumPy on long vectors, a stretch at a time, which caches hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

STRETCH = 1 << 16  # of fp64, by measurement; threads made it two to three times slower, as they wait for Python's lock
Result = TypeVar("Result")


def in_stretches(n: int, work: Callable[[slice], Result]) -> list[Result]:
    """`work` of the stretches that make up the places below n. What it does to a number must depend on no other.

    >>> in_stretches(140_000, lambda part: part.stop - part.start)
    [65536, 65536, 8928]
    """
    return [work(slice(begin, min(begin + STRETCH, n))) for begin in range(0, n, STRETCH)]
