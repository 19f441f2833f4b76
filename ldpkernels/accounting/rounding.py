# SPDX-License-Identifier: Apache-2.0
"""What lets every figure be an upper bound: the size of a rounding error, and roots that err upward."""

from __future__ import annotations

from collections.abc import Callable

UNIT = 2.0**-53
# A bracket that was halved so often is narrower than anything that a caller could tell apart.
HALVINGS = 200


class TooLarge(ArithmeticError):
    """The computation would need more points than are worth it; a weaker bound takes its place."""


def bisect_upper(exceeds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the upper end of a bracket of the point where `exceeds` turns false; it must be false at high.

    Callers write `not delta(x) <= target`, so that a NaN can't pass for a small delta.
    """
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if high - low <= 1e-12 * high or not low < middle < high:
            break
        if exceeds(middle):
            low = middle
        else:
            high = middle
    return high
