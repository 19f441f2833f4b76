# SPDX-License-Identifier: Apache-2.0
"""A simulation of secure summation: pairwise masks modulo 2^64 that cancel in the sum, and in nothing less.

**No cryptographic claim.** The masks come from one seed and a generator made for statistics, nobody agrees on keys, and
a client that drops out spoils the sum. It shows what the arithmetic of such a protocol does to the training: integers,
exact sums. Nothing is randomised, so the sum protects no client from inference: its epsilon is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ldpkernels.arrays import Integers
from ldpkernels.keys import Key

Masked = NDArray[np.uint64]  # integers modulo 2^64


def masked(integers: Integers, me: int, everyone: Sequence[int], key: Key) -> Masked:
    """My integers, plus the mask that I share with everyone above me, minus those with everyone below, modulo 2^64.

    >>> key = Key((0,))
    >>> sent = [masked(np.array([v, -v]), i, [4, 7, 9], key) for i, v in zip([4, 7, 9], [1, 20, 300])]
    >>> unmasked(sent)
    array([ 321, -321])
    """
    if me not in everyone or len(set(everyone)) != len(everyone):
        raise ValueError(f"me={me} must be one of {list(everyone)}, who are named once each")
    total = np.ascontiguousarray(integers, np.int64).view(np.uint64).copy()
    for other in everyone:
        if other > me:
            total += pair_mask(me, other, total.size, key)
        elif other < me:
            total -= pair_mask(other, me, total.size, key)
    return total


def unmasked(sent: Sequence[Masked]) -> Integers:
    """The sum of everyone's integers; it must lie within 63 bits."""
    total = np.zeros_like(sent[0])
    for one in sent:
        total += one
    return total.view(np.int64)


def pair_mask(low: int, high: int, size: int, key: Key) -> Masked:
    """What the two members of a pair share."""
    seed = key.fold_in(low).fold_in(high).words[0]
    return np.random.Generator(np.random.Philox(seed)).integers(0, 2**64, size, np.uint64)
