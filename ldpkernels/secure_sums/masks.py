# SPDX-License-Identifier: Apache-2.0
"""Masks: keystreams of the library's ciphers, added to integers modulo a power of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels import _native, capabilities
from ldpkernels.arrays import Words
from ldpkernels.secure_sums.terms import Terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.unsignedinteger]


def integers_of(terms: Terms) -> np.dtype[np.unsignedinteger]:
    """The type of a round's integers, little-endian as they travel."""
    return np.dtype(f"<u{terms.bits // 8}")


def apply(total: Integers, seeds: Sequence[bytes], added: Sequence[bool], terms: Terms) -> None:
    """Add the mask of each seed, or subtract it, in place."""
    for seed, plus in zip(seeds, added, strict=True):
        words: Words = np.frombuffer(seed, "<u4").astype(np.uint32)
        blocks = -(-total.nbytes // 64)
        stream = _native.keystream(words, 0, 0, blocks, capabilities.host_isa()).view(total.dtype)[: total.size]
        if plus:
            total += stream
        else:
            total -= stream
