# SPDX-License-Identifier: Apache-2.0
"""What `measure` is given of whole updates: one number for each draw, by which two inputs are told apart best.

Each function takes a law and returns `draw(x, n)`, where x times the norm is the update's only coordinate: 1 and 0 for
what only a sum shows (a client or none), 1 and -1 for what a client sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ldpkernels.common.arrays import Floats
from ldpkernels.common.keys import Key
from ldpkernels.laws.adaptive_clipping import AdaptiveClipping
from ldpkernels.laws.distributed import Shares
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.updates import encode, mean_of_codes, report_code, rotate_

Draw = Callable[[float, int], Floats]


def sums(law: Shares, keys: Iterator[Key], rotation: Key) -> Draw:
    """The sum of `law.clients` clients' integers along the first one's update; the others have zeros."""
    axis = np.eye(1, law.dimension)[0]
    along = rotate_(np.pad(axis, (0, law.padded - law.dimension)).astype(np.float32), rotation).astype(np.float64)
    half = 1 << (law.bits - 1)

    def draw(x: float, n: int) -> Floats:
        updates = [x * law.norm * axis, *[0.0 * axis] * (law.clients - 1)]
        totals = np.empty((n, law.padded), np.int64)
        for i in range(n):
            totals[i] = np.sum([encode(one, law, rotation, generator=next(keys)) for one in updates], 0, np.int64)
        return ((totals + half) % (2 * half) - half) @ along

    return draw


def codes(law: ProjectedCode, keys: Iterator[Key], shared: Key) -> Draw:
    """A client's code, as what it decodes to along the update."""
    decoded = np.array([mean_of_codes([code], law, [shared])[0] for code in range(2 * law.projected)], np.float64)

    def draw(x: float, n: int) -> Floats:
        update = x * law.norm * np.eye(1, law.dimension)[0]
        return decoded[[report_code(update, law, shared, generator=next(keys)) for _ in range(n)]]

    return draw


def bits(law: AdaptiveClipping, group: int, keys: Iterator[Key], *, shares: bool) -> Draw:
    """The noised sum of the bits of a group that is there or not: by a trusted server, or by `law.clients` shares."""

    def draw(x: float, n: int) -> Floats:
        there = [1] * (group * int(x))
        if not shares:
            return np.array([law.noised(there, generator=next(keys)) for _ in range(n)], np.float64)
        noise = [[law.share(0.0, 1.0, generator=next(keys)) - 1 for _ in range(law.clients)] for _ in range(n)]
        return np.array([sum(parts) + sum(there) for parts in noise], np.float64)

    return draw
