# SPDX-License-Identifier: Apache-2.0
"""The two-point mechanism in Triton: the law of csrc/mechanisms/two_point.h, and the kernel.

A program is one warp and works through `tiles` tiles of one tensor. A report is "upper" if u < k for a 32-bit draw u
and a threshold k. `_guess` decides almost every element in fp32 from the draw's high half, and knows where it could be
wrong; only a tile that has such an element, 1 in 128 of Philox's, computes k and draws the low halves. With one warp a
program, that question is a reduction without a barrier.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ldpkernels.triton.ciphers import keystream_words, load_key

F32, F64, BF16, F16 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
VALUES, BITS, THRESHOLDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)

# A row of the table, in int64: ldpkernels/triton/launch.py writes it.
# 0 first program, 1 data, 2 out, 3 numel, 4 first, 5 center, 6 slope, 7 fallback, 8 k_lo, 9 k_hi, 10 floor, 11 ceiling,
# 12 lower, 13 upper. Floating-point numbers are bits: fp64 for a center, slope or fallback of fp64 tensors, else fp32.
COLUMNS = tl.constexpr(14)


@triton.jit
def _weights(bits, DTYPE: tl.constexpr):
    # Exact in every format; numbers are widened, never rounded.
    if DTYPE == BF16:
        return (bits.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif DTYPE == F16:
        return bits.to(tl.float16, bitcast=True).to(tl.float32)
    elif DTYPE == F64:
        return bits.to(tl.float64, bitcast=True)
    else:
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def _number(word, DTYPE: tl.constexpr):
    if DTYPE == F64:
        return word.to(tl.float64, bitcast=True)
    else:
        return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _load_law(row, DTYPE: tl.constexpr):
    center = _number(tl.load(row + 5), DTYPE)
    slope = _number(tl.load(row + 6), DTYPE)
    fallback = _number(tl.load(row + 7), DTYPE)
    k_lo, k_hi = tl.load(row + 8).to(tl.int32), tl.load(row + 9).to(tl.int32)
    floor, ceiling = _number(tl.load(row + 10), F32), _number(tl.load(row + 11), F32)
    return center, slope, fallback, k_lo, k_hi, floor, ceiling


@triton.jit
def _draws(first_block, stream, key, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    # 16-bit draws in the high halves of int32 numbers. The low halves are anything.
    words = keystream_words(first_block, stream, key, CHACHA, BLOCKS)
    per_block: tl.constexpr = 32 if CHACHA else 8
    return tl.join(words << 16, words).reshape(BLOCKS * per_block).to(tl.int32, bitcast=True)


@triton.jit
def _threshold(x, law, DTYPE: tl.constexpr):
    """The definition: csrc's TwoPoint::threshold, bit for bit.

    The product is rounded in the weights' own format. In fp64 every z between the ends is far below 2^51, so adding
    3 * 2^51 rounds it to the nearest integer, ties to even, and leaves the integer in the low bits of the sum.
    """
    center, slope, fallback, k_lo, k_hi, floor, ceiling = law
    x = tl.where(x != x, fallback, x)
    z = ((x - center) * slope).to(tl.float64)
    if DTYPE == F64:
        lowest, highest = k_lo.to(tl.float64), k_hi.to(tl.float64)
    else:
        lowest, highest = floor.to(tl.float64), ceiling.to(tl.float64)
    inside = tl.where(z >= highest, highest, tl.where(z <= lowest, lowest, z))
    k = (inside + 6755399441055744.0).to(tl.int64, bitcast=True).to(tl.int32)
    return tl.where(z >= highest, k_hi, tl.where(z <= lowest, k_lo, k))


@triton.jit
def _decide(x, high, law, block, key, DTYPE: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    low = _draws(block, 1, key, CHACHA, BLOCKS).to(tl.uint32, bitcast=True) >> 16
    return ((high & -65536) | low.to(tl.int32, bitcast=True)) < _threshold(x, law, DTYPE)


@triton.jit
def _guess(x, high, law):
    """A number whose sign is the decision, positive for upper, wherever its magnitude exceeds 2^16.

    With M the draw's high half times 2^16, u lies in [M, M + 2^16 - 1] and so does `high`. The law of z is monotone:
      z > M + 2^16 gives k >= M + 2^16 > u, and z < M gives k <= M <= u, clamped or not: `floor` is the smallest
      float at or above k_lo and `ceiling` the largest at or below k_hi, and M and M + 2^16 are floats.
    Every operation here rounds monotonically and M, M + 2^16 and 2^16 are floats, so a difference above 2^16 says that
    z > M + 2^16 and one below -2^16 that z < M. A NaN stays a NaN, which exceeds nothing.
    """
    center, slope, _, _, _, floor, ceiling = law
    z = ((x - center) * slope).to(tl.float32)
    z = tl.maximum(z, floor, propagate_nan=tl.PropagateNan.ALL)
    z = tl.minimum(z, ceiling, propagate_nan=tl.PropagateNan.ALL)
    return z - high.to(tl.float32)


@triton.jit
def _lesser(x, N: tl.constexpr):
    a, b = tl.split(x.reshape(N // 2, 2))
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _any_unsure(guess, N: tl.constexpr):
    # Four neighbours are one lane's: their minimum costs less than their four comparisons.
    least = _lesser(_lesser(tl.abs(guess), N), N // 2)
    return tl.max((~(least > 65536.0)).to(tl.int32), axis=0) != 0


@triton.jit
def _pack(chosen, TILE: tl.constexpr):
    return tl.sum(chosen.reshape(TILE // 8, 8) << tl.arange(0, 8)[None, :], axis=1).to(tl.uint8)


@triton.jit(do_not_specialize=["rows", "tiles"], do_not_specialize_on_alignment=["table", "key"])
def two_point_kernel(
    table,
    key,
    rows,
    tiles,
    DTYPE: tl.constexpr,
    OUTPUT: tl.constexpr,
    CHACHA: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Tiles of BLOCKS cipher blocks. ALIGNED: all weights of the table start at a multiple of 16 bytes."""
    PER_BLOCK: tl.constexpr = 32 if CHACHA else 8
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    BITS_OF: tl.constexpr = tl.int64 if DTYPE == F64 else (tl.int32 if DTYPE == F32 else tl.int16)
    program = tl.program_id(0)
    found, end = 0, rows
    while end - found > 1:  # the last row whose first program is at most this one
        middle = (found + end) // 2
        after = tl.load(table + middle * COLUMNS) > program
        found, end = tl.where(after, found, middle), tl.where(after, middle, end)
    row = table + found * COLUMNS
    numel, first = tl.load(row + 3), tl.load(row + 4)
    # Tiles start at whole blocks of the keystream: with ChaCha20 the first one may reach back before the tensor.
    start = (program - tl.load(row)) * tiles * TILE - first % PER_BLOCK
    block = (first + start) // PER_BLOCK
    count = tl.minimum((numel - start + TILE - 1) // TILE, tiles).to(tl.int32)
    whole_from, whole_to = tl.where(start < 0, 1, 0), ((numel - start) // TILE).to(tl.int32)
    law = _load_law(row, DTYPE)
    if OUTPUT == BITS:
        lower, upper = 0, 1
    else:
        lower, upper = tl.load(row + 12).to(BITS_OF), tl.load(row + 13).to(BITS_OF)
    words = load_key(key, CHACHA)
    data = tl.load(row + 1).to(tl.pointer_type(BITS_OF)) + start
    bytes_out = tl.load(row + 2).to(tl.pointer_type(tl.uint8)) + start // 8
    thresholds_out = tl.load(row + 2).to(tl.pointer_type(tl.int64)) + start

    t = 0
    while t < count:  # NumPy's newer releases and Triton 3.6's interpreter disagree about range() of a tensor
        e = t * TILE + tl.arange(0, TILE)
        byte = t * (TILE // 8) + tl.arange(0, TILE // 8)
        here = block + t * BLOCKS
        if OUTPUT == THRESHOLDS:
            inside = (start + e >= 0) & (start + e < numel)
            k = _threshold(_weights(tl.load(data + e, inside, 0), DTYPE), law, DTYPE)
            tl.store(thresholds_out + e, k.to(tl.int64) + 2147483648, inside)
        elif (t >= whole_from) & (t < whole_to):
            pointers = data + e
            if ALIGNED:
                pointers = tl.max_contiguous(tl.multiple_of(pointers, 16), TILE)
            x = _weights(tl.load(pointers), DTYPE)
            high = _draws(here, 0, words, CHACHA, BLOCKS)
            guess = _guess(x, high, law)
            # Chosen before the branch: a decision would cross it as a predicate, of which there are few.
            chosen = tl.where(guess > 0, upper, lower)
            if _any_unsure(guess, TILE):
                chosen = tl.where(_decide(x, high, law, here, words, DTYPE, CHACHA, BLOCKS), upper, lower)
            if OUTPUT == VALUES:
                tl.store(pointers, chosen)
            else:
                tl.store(bytes_out + byte, _pack(chosen, TILE))
        else:
            inside = (start + e >= 0) & (start + e < numel)
            x = _weights(tl.load(data + e, inside, 0), DTYPE)
            high = _draws(here, 0, words, CHACHA, BLOCKS)
            decision = _decide(x, high, law, here, words, DTYPE, CHACHA, BLOCKS)
            if OUTPUT == VALUES:
                tl.store(data + e, tl.where(decision, upper, lower), inside)
            else:
                first_bit = start + 8 * byte
                chosen = tl.where(decision & inside, upper, lower)
                tl.store(bytes_out + byte, _pack(chosen, TILE), (first_bit >= 0) & (first_bit < numel))
        t += 1
