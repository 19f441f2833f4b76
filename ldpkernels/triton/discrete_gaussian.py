# SPDX-License-Identifier: Apache-2.0
"""The discrete Gaussian of csrc/mechanisms/clipped_noise.h in Triton: every lane a sampler, one word of its own a step.

A sampler is in one of seven phases: it draws u (0), keeps it with probability exp(-u/s) (1), counts v (2), draws the
sign (3), and keeps u + s v by the events of the rest of the exponent: halves (4), u/s (5) and a square (6). Phases but
0 and 3 are trials of probability exp(-p): the number k of events of probability p/1, p/2, ... in a row, and that one
ends it. Part 0 to 2 of a trial draws the event of probability p, part 3 divides it by k.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ldpkernels.triton.ciphers import chacha, philox


@triton.jit
def word_of(element, number, key, CHACHA: tl.constexpr):
    """Words of elements, by their numbers: those of block `element` of keystream 0, then of keystream 1, ..."""
    PER_BLOCK: tl.constexpr = 16 if CHACHA else 4
    cipher: tl.constexpr = chacha if CHACHA else philox
    block = cipher(element, number // PER_BLOCK, key)
    at = number % PER_BLOCK
    word = tl.zeros_like(number)
    for i in tl.static_range(PER_BLOCK):
        word = tl.where(at == i, block[i], word)
    return word.to(tl.int64)


@triton.jit
def discrete_gaussian(element, inside, s, key, CHACHA: tl.constexpr):
    """Integers y with probability proportional to exp(-y^2 / (2 s^2)), 2 <= s <= 2^31, for elements `inside`."""
    zero = tl.zeros_like(element)
    number = zero.to(tl.uint32)
    phase, part, k = zero, zero, zero + 1
    u, v, w, halves, shares, negative = zero, zero, zero, zero, zero, zero
    walking = inside
    while tl.max(walking.to(tl.int32), axis=0) != 0:
        of_s = (phase == 0) | (phase == 1) | (phase == 5) | ((phase == 6) & (part < 2))
        dividing = (part == 3) & (phase != 0) & (phase != 3)
        of_s = of_s & ~dividing
        m = tl.where(of_s, zero + s, tl.where(dividing, k, zero + 2))
        mask = m - 1
        mask |= mask >> 1
        mask |= mask >> 2
        mask |= mask >> 4
        mask |= mask >> 8
        mask |= mask >> 16
        value = word_of(element, number, key, CHACHA) & mask
        number += 1
        drawn = walking & (value < m)  # else another word

        started = drawn & (phase == 0)
        signed = drawn & (phase == 3)
        trial = drawn & (phase != 0) & (phase != 3)
        happened = tl.where(of_s, value < tl.where(phase == 6, w, u), value == 0)
        partial = trial & happened & (phase == 6) & (part < 2)
        event = trial & happened & ~dividing & ~partial
        divided = trial & happened & dividing
        ended = trial & ~happened
        kept = ended & ((k & 1) == 1)

        u = tl.where(started, value, u)
        v = tl.where(kept & (phase == 1), zero, tl.where(kept & (phase == 2), v + 1, v))
        negative = tl.where(signed, value, negative)
        above = tl.where(v > 0, v - 1, zero)
        halves = tl.where(signed, above * above, tl.where(kept & (phase == 4), halves - 1, halves))
        shares = tl.where(signed, above, tl.where(kept & (phase == 5), shares - 1, shares))
        w = tl.where(signed, tl.where(v > 0, u, s - u), w)

        after = tl.where(started, zero + 1, phase)
        after = tl.where(kept & (phase == 1), zero + 2, after)
        after = tl.where(ended & ~kept & (phase == 2), zero + 3, after)
        after = tl.where(signed, tl.where(halves > 0, zero + 4, zero + 6), after)
        after = tl.where(kept & (phase == 4) & (halves == 0), zero + 5, after)
        after = tl.where(kept & (phase == 5) & (shares == 0), zero + 6, after)
        minus_zero = signed & (value == 1) & (u == 0) & (v == 0)
        after = tl.where((ended & ~kept & (phase != 2)) | minus_zero, zero, after)

        # The events of phase 2 are certain, and the first division, by 1, takes no word.
        fresh = started | signed | ended
        counting = after == 2
        first = event & (k == 1)
        after_k = tl.where(divided, k + 1, tl.where(first, zero + 2, k))
        after_part = tl.where(partial, part + 1, tl.where(event & ~first, zero + 3, part))
        after_part = tl.where(first | (divided & ~counting), zero, after_part)
        k = tl.where(fresh, tl.where(counting, zero + 2, zero + 1), after_k)
        part = tl.where(fresh, tl.where(counting, zero + 3, zero), after_part)
        walking = walking & ~(kept & (phase == 6))
        phase = after
    y = u + s * v
    return tl.where(negative == 1, -y, y)
