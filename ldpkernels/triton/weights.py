# SPDX-License-Identifier: Apache-2.0
"""What the kernels of weights share: the four formats, 16-bit draws, and how a weight becomes an integer."""

from __future__ import annotations

import triton
import triton.language as tl

from ldpkernels.common.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ldpkernels.triton.ciphers import keystream_words
from ldpkernels.triton.table import WEIGHTS

F32, F64 = tl.constexpr(FLOAT32.code), tl.constexpr(FLOAT64.code)
BF16, F16 = tl.constexpr(BFLOAT16.code), tl.constexpr(FLOAT16.code)


@triton.constexpr_function
def bits_of(DTYPE):
    """The integers that hold a format's numbers."""
    return tl.int64 if F64.value == DTYPE else tl.int32 if F32.value == DTYPE else tl.int16


@triton.jit
def from_bits(bits, DTYPE: tl.constexpr):
    """Weights from their bits: exact in every format; numbers are widened, never rounded."""
    if DTYPE == BF16:
        return (bits.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif DTYPE == F16:
        return bits.to(tl.float16, bitcast=True).to(tl.float32)
    elif DTYPE == F64:
        return bits.to(tl.float64, bitcast=True)
    else:
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def number(word, DTYPE: tl.constexpr):
    """A number of a table."""
    if DTYPE == F64:
        return word.to(tl.float64, bitcast=True)
    else:
        return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def fp64(bits):
    """The number of launch.fp64_bits."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def load_line(row, DTYPE: tl.constexpr):
    """The line by which `threshold` makes an integer of a weight, from a row that begins with WEIGHTS."""
    center = number(tl.load(row + WEIGHTS.center), DTYPE)
    slope = number(tl.load(row + WEIGHTS.slope), DTYPE)
    fallback = number(tl.load(row + WEIGHTS.fallback), DTYPE)
    k_lo, k_hi = tl.load(row + WEIGHTS.k_lo).to(tl.int32), tl.load(row + WEIGHTS.k_hi).to(tl.int32)
    floor, ceiling = number(tl.load(row + WEIGHTS.floor), F32), number(tl.load(row + WEIGHTS.ceiling), F32)
    return center, slope, fallback, k_lo, k_hi, floor, ceiling


@triton.jit
def draws(first_block, stream, key, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    """16-bit draws in the high halves of int32 numbers. The low halves are anything."""
    words = keystream_words(first_block, stream, key, CHACHA, BLOCKS)
    per_block: tl.constexpr = 32 if CHACHA else 8
    return tl.join(words << 16, words).reshape(BLOCKS * per_block).to(tl.int32, bitcast=True)


@triton.jit
def pack(bits, TILE: tl.constexpr):
    """A tile's decisions, 0 or 1, eight to a byte, the first lowest."""
    return tl.sum(bits.reshape(TILE // 8, 8) << tl.arange(0, 8)[None, :], axis=1).to(tl.uint8)


@triton.jit
def threshold(x, line, DTYPE: tl.constexpr):
    """The definition: csrc's TwoPoint::threshold, bit for bit.

    The product is rounded in the weights' own format. In fp64 every z between the ends is far below 2^51, so adding
    3 * 2^51 rounds it to the nearest integer, ties to even, and leaves the integer in the low bits of the sum.
    """
    center, slope, fallback, k_lo, k_hi, floor, ceiling = line
    x = tl.where(x != x, fallback, x)
    z = (x - center) * slope
    if DTYPE == F64:  # whose minimum and maximum would be several instructions each
        floor, ceiling = k_lo.to(tl.float64), k_hi.to(tl.float64)
        inside = tl.where(z >= ceiling, ceiling, tl.where(z <= floor, floor, z))
    else:
        inside = tl.minimum(tl.maximum(z, floor), ceiling).to(tl.float64)
    k = (inside + 6755399441055744.0).to(tl.int64, bitcast=True).to(tl.int32)
    return tl.where(z >= ceiling, k_hi, tl.where(z <= floor, k_lo, k))
