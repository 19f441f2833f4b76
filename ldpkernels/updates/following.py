# SPDX-License-Identifier: Apache-2.0
"""A norm that follows the clients' median: one more number in an update says whether it was within the norm.

The update and that number are one vector, which is never longer than a law's norm, whatever the norm of the round. So
the law is the same in every round, and so is the cost of a round: docs/mechanisms/adaptive_clipping.md.
"""

from __future__ import annotations

import math

import numpy as np

from ldpkernels.common import arguments
from ldpkernels.common.arrays import Array, Floats
from ldpkernels.inputs import flat
from ldpkernels.inputs.containers import Buffers, Weights, collect

BIT = 1 / 8  # the last number, over the norm of the round
LONGER = math.sqrt(1 + BIT * BIT)  # the vector's norm, over that of the update
QUANTILE, RATE = 0.5, 0.2  # where the norm goes, and how fast
LEAST, MOST = 1e-30, 1e30  # of a norm: within, no square of one leaves floating point


def widened(update: Weights, norm: float, length: float, *, buffers: Buffers | None = None) -> Floats:
    """An update clipped to the norm of a round, and whether it was within, as one vector of at most this length.

    Args:
        update: A module, a tensor, an array, or a sequence or mapping of them.
        norm: The norm of the round, which the server published. A client that chooses its own reveals it.
        length: `norm` of the law under which the vector leaves. The law's `dimension` is that of the update plus one.
        buffers: As for `perturb_`.

    >>> import numpy as np
    >>> (widened(np.array([3.0, 4.0]), norm=10.0, length=1.0) * 10).round(3)
    array([2.977, 3.969, 1.24 ])
    >>> (widened(np.array([3.0, 4.0]), norm=2.0, length=1.0) * 10).round(3)
    array([ 5.954,  7.938, -1.24 ])
    """
    norm = _checked(norm)
    tensors, _ = collect(update, buffers, reads="widened")
    numbers = flat.float64s(flat.in_host_memory(tensors.values))
    within = float(np.linalg.norm(numbers)) <= norm  # NaN is not
    vector = np.append(flat.clipped(numbers, norm), BIT * norm if within else -BIT * norm)
    found: Floats = vector * (length / (norm * LONGER))
    return found


def narrowed(mean: Array, norm: float, length: float) -> tuple[Floats, float]:
    """The clients' mean update, from the mean of their vectors, and the norm of the next round.

    The norm grows if fewer than half of the clients seem to be within, and shrinks if more are, by 22% at most.

    >>> import numpy as np
    >>> mean, after = narrowed(widened(np.array([3.0, 4.0]), 10.0, 1.0), 10.0, 1.0)
    >>> mean.round(6), round(after, 3)  # the one client was within
    (array([3., 4.]), 9.048)
    """
    norm = _checked(norm)
    numbers: Floats = np.asarray(mean, np.float64) * (norm * LONGER / length)
    within = (float(numbers[-1]) / (BIT * norm) + 1) / 2  # a part of the clients, with noise
    after = norm * math.exp(-RATE * (min(max(within, -0.5), 1.5) - QUANTILE))
    return numbers[:-1], min(max(after, LEAST), MOST)


def _checked(norm: float) -> float:
    norm = arguments.positive("norm", norm)
    if not LEAST <= norm <= MOST:
        raise ValueError(f"norm = {norm!r} is outside [{LEAST:g}, {MOST:g}]: scale the updates")
    return norm
