# SPDX-License-Identifier: Apache-2.0
"""The ciphers and the draws that they make, written from docs/rng.md and from nothing else."""

from __future__ import annotations

import numpy as np

from ldpkernels.arrays import Integers, Words


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds of Philox4x32 on one counter.

    >>> [f"{w:08x}" for w in philox4x32([0, 0, 0, 0], [0, 0])]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (p1 >> 32) ^ b ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ d ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def chacha20(counter: list[int], key: list[int]) -> list[int]:
    """The ChaCha20 block function of RFC 8439, with the counter and nonce words in `counter`."""
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key, *counter]
    x = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for to, by, turn, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[to] = (x[to] + x[by]) & 0xFFFFFFFF
            mixed = x[turn] ^ x[to]
            x[turn] = ((mixed << bits) | (mixed >> (32 - bits))) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)]


def keystream(key: Words, stream: int, first_block: int, blocks: int) -> Words:
    """Words of keystream `stream` under a key of 2 or 8 words."""
    cipher = philox4x32 if len(key) == 2 else chacha20
    words = [int(w) for w in key]
    out: list[int] = []
    for block in range(first_block, first_block + blocks):
        out += cipher([block & 0xFFFFFFFF, block >> 32 & 0xFFFFFFFF, stream, 0], words)
    return np.array(out, np.uint32)


def draws16(key: Words, stream: int, first: int, n: int) -> Integers:
    """The 16-bit draws of elements first, ..., first + n - 1."""
    per_block = 8 if len(key) == 2 else 32
    block = first // per_block
    words = keystream(key, stream, block, (first + n + per_block - 1) // per_block - block)
    return words.astype("<u4").view("<i2")[first - block * per_block :][:n].astype(np.int64)


def draws32(key: Words, first: int, n: int) -> Integers:
    """The 32-bit draws of elements first, first + 1, ..., from 0 to 2^32 - 1: high half, then low half."""
    high, low = draws16(key, 0, first, n), draws16(key, 1, first, n)
    return (high & 0xFFFF) * 2**16 + (low & 0xFFFF)
