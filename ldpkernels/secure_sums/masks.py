# SPDX-License-Identifier: Apache-2.0
"""Masks: keystreams of the library's ciphers, added to integers modulo a power of two."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels.common.arrays import Array
from ldpkernels.common.keys import Key
from ldpkernels.secure_sums.terms import Terms
from ldpkernels.updates.masks import add_masks, lifted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.unsignedinteger]

_WORDS = {"aes": struct.Struct("<2Q"), "chacha20": struct.Struct("<4Q")}  # of a key, from the first bytes of a seed


def integers_of(terms: Terms) -> np.dtype[np.unsignedinteger]:
    """The type of a round's integers, little-endian as they travel."""
    return np.dtype(f"<u{terms.width // 8}")


def made(integers: Array, seeds: Sequence[bytes], added: Sequence[bool], terms: Terms) -> Integers:
    """A client's integers as they are sent: lifted to the round's width, under the mask of each seed."""
    if integers.dtype.kind not in "iu" or integers.size != terms.length:
        raise ValueError(f"integers are {integers.size} of {integers.dtype}: pass {terms.length} integers")
    total: Integers = lifted(integers, terms.bits, terms.width)
    apply(total, seeds, added, terms)
    return total


def apply(total: Integers, seeds: Sequence[bytes], added: Sequence[bool], terms: Terms) -> None:
    """Add the mask of each seed, or subtract it, in place."""
    keys = [Key(_WORDS[terms.cipher].unpack_from(seed)) for seed in seeds]
    add_masks(total, keys, [1 if plus else -1 for plus in added])
