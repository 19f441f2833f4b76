# SPDX-License-Identifier: Apache-2.0
"""Philox and ChaCha20 of docs/rng.md, one block a lane.

Words are uint32. A block's number is an int64 whose bits are the unsigned number, and a key is a tuple of int64
scalars: one for Philox4x32-10, four for ChaCha20. Domain 0 only: keys are derived on the host.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_key(key, CHACHA: tl.constexpr):
    """The key's numbers, read on the device: a captured launch follows a key that changes."""
    if CHACHA:
        return tl.load(key), tl.load(key + 1), tl.load(key + 2), tl.load(key + 3)
    else:
        return (tl.load(key),)


@triton.jit
def _halves(number):
    return number.to(tl.uint32), (number >> 32).to(tl.uint32)


@triton.jit
def philox(index, stream, key):
    """The four words of each block of Philox4x32-10."""
    c0, c1 = _halves(index)
    c2, c3 = tl.zeros_like(c0) + stream, tl.zeros_like(c0)
    k0, k1 = _halves(key[0])
    for _ in tl.static_range(10):
        # A widening multiplication is one instruction for both halves; umulhi and a product are two.
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0, p1.to(tl.uint32)
        c2, c3 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1, p0.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _rotate(x, n: tl.constexpr):
    return (x << n) | (x >> (32 - n))


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d = _rotate(d ^ a, 16)
    c += d
    b = _rotate(b ^ c, 12)
    a += b
    d = _rotate(d ^ a, 8)
    c += d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def chacha(index, stream, key):
    """The sixteen words of each block of ChaCha20."""
    low, high = _halves(index)
    zero = tl.zeros_like(low)
    k0, k1 = _halves(key[0])
    k2, k3 = _halves(key[1])
    k4, k5 = _halves(key[2])
    k6, k7 = _halves(key[3])
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7 = zero + k0, zero + k1, zero + k2, zero + k3
    x8, x9, x10, x11 = zero + k4, zero + k5, zero + k6, zero + k7
    x12, x13, x14, x15 = low, high, zero + stream, zero
    for _ in range(10):  # a loop: unrolled, three copies of twenty rounds would be most of the kernel
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    x0, x1, x2, x3 = x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, x3 + 0x6B206574
    x4, x5, x6, x7 = x4 + k0, x5 + k1, x6 + k2, x7 + k3
    x8, x9, x10, x11 = x8 + k4, x9 + k5, x10 + k6, x11 + k7
    x12, x13, x14 = x12 + low, x13 + high, x14 + stream
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@triton.jit
def keystream_words(first_block, stream, key, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    """The words of BLOCKS consecutive blocks, in order.

    A join adds its bit of the word's number at the end of the shape, so the bits are joined from the highest to the
    lowest and the reshape is the natural order. A lane keeps its block's words until a store or a load wants others.
    """
    index = first_block + tl.arange(0, BLOCKS).to(tl.int64)
    if CHACHA:
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = chacha(index, stream, key)
        even = tl.join(tl.join(tl.join(x0, x8), tl.join(x4, x12)), tl.join(tl.join(x2, x10), tl.join(x6, x14)))
        odd = tl.join(tl.join(tl.join(x1, x9), tl.join(x5, x13)), tl.join(tl.join(x3, x11), tl.join(x7, x15)))
        return tl.join(even, odd).reshape(BLOCKS * 16)
    else:
        c0, c1, c2, c3 = philox(index, stream, key)
        return tl.join(tl.join(c0, c2), tl.join(c1, c3)).reshape(BLOCKS * 4)


@triton.jit(do_not_specialize=["stream", "first_block", "blocks"])
def keystream_kernel(key, out, stream, first_block, blocks, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    """Blocks of one keystream as they are, for the known answers."""
    WORDS: tl.constexpr = 16 if CHACHA else 4
    block = tl.program_id(0) * BLOCKS
    words = keystream_words(
        first_block.to(tl.int64) + block, stream.to(tl.uint32), load_key(key, CHACHA), CHACHA, BLOCKS
    )
    i = block * WORDS + tl.arange(0, BLOCKS * WORDS)
    tl.store(out + i, words.to(tl.int32, bitcast=True), i < blocks * WORDS)
