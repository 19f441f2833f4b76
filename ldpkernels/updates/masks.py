# SPDX-License-Identifier: Apache-2.0
"""Masks of a secure sum: keystreams that two clients share, which one adds and the other takes away.

Numbers are integers modulo 2^16 or 2^32. All masks of a client are added in one pass over its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ldpkernels import launch
from ldpkernels.common.arrays import Array
from ldpkernels.common.keys import Key


def lifted(integers: Array, bits: int, width: int) -> Array:
    """Integers modulo 2^bits times 2^(width - bits), as `width` bits: their sums wrap at 2^bits, and not beyond.

    Else a sum would say how often it wrapped, which is how many of its numbers were negative: no law is about that.
    """
    return integers.reshape(-1).astype(f"u{width // 8}") << (width - bits)


def add_masks(numbers: Array, keys: Sequence[Key], signs: Sequence[int], *, first: int = 0, stream: int = 0) -> Array:
    """Add the keystreams of keys to numbers, or take them away, in place; returns the numbers.

    Number i gets the (first + i)-th 16-bit or 32-bit number of keystream `stream` of each key (docs/rng.md). Wherever a
    key is added by one and subtracted by another, nothing of it is left in their sum. A key and a stream must serve one
    sum only.

    Args:
        numbers: A contiguous, writable array of uint16 or uint32, which wrap.
        keys: Any number of keys that others cannot know: of AES or ChaCha20.
        signs: For each key 1 to add or -1 to subtract.
        first: The number of the first element, for parts of a longer vector.
        stream: From 0 to 2^32 - 1.

    >>> import ldpkernels
    >>> shared = ldpkernels.secure_key()
    >>> one, other = (np.array([7, 8], np.uint16) for _ in range(2))
    >>> int((add_masks(one, [shared], [1]) + add_masks(other, [shared], [-1]))[0])
    14
    """
    if not isinstance(numbers, np.ndarray) or numbers.dtype not in (np.uint16, np.uint32):
        kind = numbers.dtype if isinstance(numbers, np.ndarray) else type(numbers).__name__
        raise TypeError(f"numbers must be an array of uint16 or uint32, not {kind}: convert them")
    if not (numbers.flags.c_contiguous and numbers.flags.writeable and numbers.dtype.isnative):
        raise ValueError("numbers must be contiguous, writable and of this machine's byte order: pass a copy")
    keys, signs = list(keys), list(signs)
    if len(keys) != len(signs) or any(sign not in (1, -1) for sign in signs):
        raise ValueError(f"signs={signs} must have 1 or -1 for each of the {len(keys)} keys")
    if any(not isinstance(key, Key) or len(key.words) == 1 for key in keys):
        raise TypeError("keys must be ldpkernels keys of AES or ChaCha20: anyone could remove the masks of Philox")
    if not (0 <= first <= 2**64 - numbers.size and 0 <= stream < 2**32):
        raise ValueError(f"first={first} must be from 0 to 2^64 less the numbers, and stream={stream} below 2^32")
    launch.add_masks(numbers, keys, [sign < 0 for sign in signs], stream, first)
    return numbers
