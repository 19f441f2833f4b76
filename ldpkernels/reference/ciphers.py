# SPDX-License-Identifier: Apache-2.0
"""The ciphers and the draws that they make, written from docs/rng.md and from nothing else."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ldpkernels.common.arrays import Bytes, Integers, Words


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


def aes128(counter: list[int], key: list[int]) -> list[int]:
    """AES-128 of FIPS 197 on the block in `counter`; words are of little-endian bytes.

    >>> [f"{w:08x}" for w in aes128([0x33221100, 0x77665544, 0xBBAA9988, 0xFFEEDDCC], [0x03020100, 0x07060504,
    ...                                                                                0x0B0A0908, 0x0F0E0D0C])]
    ['d8e0c469', '30047b6a', '80b7cdd8', '5ac5b470']
    """
    return [int(w) for w in aes_blocks(np.array([counter], np.uint32), np.array(key, np.uint32))[0]]


def aes_blocks(blocks: Words, key: Words) -> Words:
    """Rows of four words, each encrypted by AES-128."""
    rounds = _round_keys(key.astype("<u4").tobytes())
    state = blocks.astype("<u4").view(np.uint8).reshape(-1, 4, 4) ^ rounds[0]  # [blocks, columns, rows]
    for i in range(1, 11):
        state = SBOX[state[:, _SHIFTED, range(4)]]
        if i < 10:
            one, two, three = (state[:, :, [(row + n) % 4 for row in range(4)]] for n in (1, 2, 3))
            state = _doubled(state ^ one) ^ one ^ two ^ three
        state = state ^ rounds[i]
    return np.ascontiguousarray(state).reshape(-1, 16).view("<u4").astype(np.uint32)


@lru_cache(maxsize=8)
def _round_keys(key: bytes) -> Bytes:
    """FIPS 197, 5.2: [rounds, columns, rows]."""
    keys = list(np.frombuffer(key, np.uint8).reshape(4, 4))
    constant = np.array([1, 0, 0, 0], np.uint8)
    for i in range(4, 44):
        last = keys[-1]
        if i % 4 == 0:
            last = SBOX[np.roll(last, -1)] ^ constant
            constant = _doubled(constant)
        keys.append(keys[-4] ^ last)
    return np.array(keys).reshape(11, 4, 4)


def _doubled(x: Bytes) -> Bytes:
    """Elements of GF(2^8) times x, modulo x^8 + x^4 + x^3 + x + 1."""
    return (x << 1 ^ (x >> 7) * np.uint8(0x1B)).astype(np.uint8, copy=False)


def _sbox() -> Bytes:
    """FIPS 197, 5.1.1: the inverse in GF(2^8), then an affine map."""
    powers = [1]  # of x + 1, which generates all but zero
    for _ in range(254):
        last = powers[-1]
        powers.append(last ^ last << 1 ^ (last >> 7) * 0x11B)
    table = np.full(256, 0x63, np.uint8)
    for i, element in enumerate(powers):
        twice = powers[-i % 255] * 0x101
        for turn in range(5):
            table[element] ^= twice >> (8 - turn) & 0xFF
    return table


SBOX = _sbox()
_SHIFTED = (np.arange(4)[:, None] + np.arange(4)) % 4  # the column that each place takes its row's byte from
BLOCK_WORDS = {2: 4, 4: 4, 8: 16}  # by the words of a key
_CIPHERS = {2: philox4x32, 4: aes128, 8: chacha20}


def cipher_block(key: Words, counter: list[int]) -> list[int]:
    """The block of a key's cipher at a counter."""
    return _CIPHERS[len(key)](counter, [int(w) for w in key])


def keystream(key: Words, stream: int, first_block: int, blocks: int) -> Words:
    """Words of keystream `stream` under a key of 2, 4 or 8 words."""
    if len(key) == 4:
        numbers = np.arange(blocks, dtype=np.uint64) + np.uint64(first_block % 2**64)
        counters = np.zeros((blocks, 4), np.uint32)
        counters[:, :2], counters[:, 2] = numbers.astype("<u8").view("<u4").reshape(-1, 2), stream
        return aes_blocks(counters, key).reshape(-1)
    out: list[int] = []
    for number in range(first_block, first_block + blocks):
        out += cipher_block(key, [number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF, stream, 0])
    return np.array(out, np.uint32)


def draws16(key: Words, stream: int, first: int, n: int) -> Integers:
    """The 16-bit draws of elements first, ..., first + n - 1."""
    per_block = 2 * BLOCK_WORDS[len(key)]
    start = first // per_block
    words = keystream(key, stream, start, (first + n + per_block - 1) // per_block - start)
    return words.astype("<u4").view("<i2")[first - start * per_block :][:n].astype(np.int64)


def draws32(key: Words, first: int, n: int) -> Integers:
    """The 32-bit draws of elements first, first + 1, ..., from 0 to 2^32 - 1: high half, then low half."""
    high, low = draws16(key, 0, first, n), draws16(key, 1, first, n)
    return (high & 0xFFFF) * 2**16 + (low & 0xFFFF)
