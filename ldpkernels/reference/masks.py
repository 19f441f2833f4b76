# SPDX-License-Identifier: Apache-2.0
"""Masks of a secure sum, a key after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ldpkernels.arrays import Array
from ldpkernels.keys import Key
from ldpkernels.reference.ciphers import BLOCK_WORDS, keystream


def add_masks(numbers: Array, keys: Sequence[Key], signs: Sequence[int], first: int, stream: int) -> Array:
    """Each key's keystream, as numbers of this size, added or subtracted in place."""
    flat = numbers.reshape(-1)
    for key, sign in zip(keys, signs, strict=True):
        words = key.uint32()
        per_block = 4 * BLOCK_WORDS[len(words)] // flat.itemsize
        start, skipped = divmod(first, per_block)
        stretch = keystream(words, stream, start, (skipped + flat.size + per_block - 1) // per_block)
        mask = stretch.astype("<u4").view(flat.dtype)[skipped:][: flat.size]
        if sign > 0:
            flat += mask
        else:
            flat -= mask
    return numbers
