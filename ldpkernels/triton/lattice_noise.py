# SPDX-License-Identifier: Apache-2.0
"""Noise from a table in Triton, as csrc/mechanisms/lattice_noise.h has it: by one draw of 64 bits, and in full.

In full every lane is a sampler in one of eight phases, and takes one word of its own a step: the lower and the upper
half of the 64 bits that decide an edge of the table (0, 1), 32 more digits of the decision to keep (2), the halves of
64 bits for a further event (3, 4), a division by the number of events (5), the halves of the next draw (6, 7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ldpkernels.triton.ciphers import chacha, philox
from ldpkernels.triton.discrete_gaussian import word_of


@triton.jit
def quick_noise(high, low, bounds, guide, SHIFT: tl.constexpr):
    """Noise by the halves of a draw, and whether the draw leaves something open."""
    t = (high >> 8).to(tl.int32)
    k = tl.load(guide + (high >> 22).to(tl.int32))
    k += (tl.load(bounds + k) < t).to(tl.int32)
    k += (tl.load(bounds + k) < t).to(tl.int32)  # where a third step is needed, the bound is still below
    undecided = tl.load(bounds + k) <= t
    middle = (high << 9) | (low >> 23)
    following = (middle & 0xFFFF) >> (16 - SHIFT)
    number = k.to(tl.uint32)
    y = (number << SHIFT) | following
    negative = ((middle >> 16) & 1) != 0
    if (
        SHIFT > 0
    ):  # of the numerator of x, the digits that are compared, as the upper half of a product of 32-bit numbers
        FIRST: tl.constexpr = (32 - SHIFT) & 31 if SHIFT <= 10 else 42 - 2 * SHIFT
        SECOND: tl.constexpr = 10 - SHIFT if SHIFT <= 10 else 0
        sum_ = (following + (number << (SHIFT + 1))) << SECOND
        product = (following << FIRST).to(tl.uint64) * sum_.to(tl.uint64)
        undecided |= (low & 0x7FFFFF) <= (product >> 32).to(tl.uint32)
        undecided |= (y == 0) & negative
    signed = y.to(tl.int32)
    return tl.where(negative, -signed, signed), undecided


@triton.jit
def _draw_of(element, key, CHACHA: tl.constexpr):
    """The halves of 64-bit draws of keystream 0."""
    PER_BLOCK: tl.constexpr = 8 if CHACHA else 2
    cipher: tl.constexpr = chacha if CHACHA else philox
    block = cipher(element // PER_BLOCK, tl.zeros_like(element).to(tl.uint32), key)
    at = element % PER_BLOCK
    low, high = block[0], block[1]
    for i in tl.static_range(1, PER_BLOCK):
        low = tl.where(at == i, block[2 * i], low)
        high = tl.where(at == i, block[2 * i + 1], high)
    return low.to(tl.int64), high.to(tl.int64)


@triton.jit
def slow_noise(element, here, bounds, rests, guide, key, SHIFT: tl.constexpr, CHACHA: tl.constexpr):
    """Noise of elements where `here`: as int64 numbers."""
    zero = tl.zeros_like(element)
    number = zero.to(tl.uint32) + (16 if CHACHA else 4)  # words begin at keystream 1
    low, high = _draw_of(element, key, CHACHA)
    phase, k, t, half, y = zero, zero, zero, zero, zero
    numerator, whole, count, fresh = zero, zero, zero, here
    settled = here & (zero != 0)
    walking = here
    while tl.max(walking.to(tl.int32), axis=0) != 0:
        # A draw is looked up, which its edges may leave open.
        t = tl.where(fresh, high >> 8, t)
        k = tl.where(fresh, tl.load(guide + (high >> 22)).to(tl.int64), k)
        behind = fresh & (tl.load(bounds + k) < t)
        while tl.max(behind.to(tl.int32), axis=0) != 0:
            k += behind.to(tl.int64)
            behind &= tl.load(bounds + k) < t
        edge = fresh & (tl.load(bounds + k) == t)
        phase = tl.where(edge, 0, phase)
        settled |= fresh & ~edge
        middle = ((high << 9) | (low >> 23)) & 0x1FFFF
        following = (middle & 0xFFFF) >> (16 - SHIFT)
        negative = (middle >> 16) != 0
        decision = low & 0x7FFFFF

        # A number is kept, or not, or that is left open.
        magnitude = (k << SHIFT) | following
        y = tl.where(settled, tl.where(negative, -magnitude, magnitude), y)
        minus_zero = (y == 0) & negative
        kept = settled
        if SHIFT > 0:
            numerator = tl.where(settled, following * (following + (k << (SHIFT + 1))), numerator)
            whole = (numerator << 10) >> (2 * SHIFT)
            phase = tl.where(settled & (decision == whole), 2, phase)
            event = settled & (decision < whole)
            phase = tl.where(event, 3, phase)
            count = tl.where(event, 2, count)
            kept = settled & (decision > whole)
            phase = tl.where(kept & minus_zero, 6, phase)
            kept = kept & ~minus_zero
        walking = walking & ~kept

        word = word_of(element, number, key, CHACHA)
        number += 1
        bits = (half | (word << 32)).to(tl.uint64, bitcast=True)
        first, second = walking & (phase == 0), walking & (phase == 1)
        climbing = second & _passes(bounds, rests, k, t, bits)
        while tl.max(climbing.to(tl.int32), axis=0) != 0:
            k += climbing.to(tl.int64)
            climbing = climbing & _passes(bounds, rests, k, t, bits)
        settled = second
        fresh = walking & (phase == 7)
        high, low = tl.where(fresh, word, high), tl.where(fresh, half, low)
        lower = first | (walking & ((phase == 3) | (phase == 6)))
        half = tl.where(lower, word, half)
        after = tl.where(lower, phase + 1, phase)
        if SHIFT > 0:
            digits = walking & (phase == 2)
            more = digits & ((word >> (32 - 2 * SHIFT)) < (numerator << 10) - (whole << (2 * SHIFT)))
            event = walking & (phase == 4)
            happened = event & ((bits >> (51 - 2 * SHIFT)).to(tl.int64) < numerator)
            dividing = walking & (phase == 5)
            mask = count - 1
            mask |= mask >> 1
            mask |= mask >> 2
            mask |= mask >> 4
            mask |= mask >> 8
            mask |= mask >> 16
            value = word & mask
            divided = dividing & (value == 0)
            ended = (event & ~happened) | (dividing & (value > 0) & (value < count))
            after = tl.where(more | divided, 3, tl.where(happened, 5, after))
            count = tl.where(more, 2, tl.where(divided, count + 1, count))
            kept = (digits & ~more) | (ended & (count % 2 == 1))
            again = (kept & minus_zero) | (ended & (count % 2 == 0))
            after = tl.where(again, 6, after)
            walking = walking & ~(kept & ~minus_zero)
        phase = after
    return y


@triton.jit
def _passes(bounds, rests, k, t, bits):
    """Whether the 88 bits of entry k are at most those of the draw."""
    rest = tl.load(rests + k).to(tl.uint64, bitcast=True)
    return (tl.load(bounds + k) == t) & (rest <= bits)
