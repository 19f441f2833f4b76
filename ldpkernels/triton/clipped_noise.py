# SPDX-License-Identifier: Apache-2.0
"""Clipped and noised sums in Triton: squares of rows, sums of scaled rows, noise.

The additions are those of docs/mechanisms/clipped_noise.md in the same order, with nothing fused, and the normal pair
is that of csrc/mechanisms/clipped_noise.h: the bits are the CPU's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ldpkernels.triton.ciphers import keystream_words, load_key
from ldpkernels.triton.discrete_gaussian import discrete_gaussian

PIECE = tl.constexpr(1024)
PIECES = tl.constexpr(64)  # of a stretch


@triton.jit
def squares_kernel(x, out, columns, stretches, WIDE: tl.constexpr):
    """The sum of squares of one stretch of one row, to out[row, stretch]."""
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = stretch.to(tl.int64) * (PIECE * PIECES)
    left = columns - begin
    piece = tl.arange(0, PIECES)
    element = piece[:, None] * PIECE + tl.arange(0, 16)[None, :]
    sums = tl.zeros((PIECES, 16), tl.float64)
    i = 0
    while i * 16 < tl.minimum(left, PIECE):
        j = element + i * 16
        v = tl.load(x + row * columns + begin + j, j < left, 0.0).to(WIDE).to(tl.float64)
        sums += v * v
        i += 1
    half = tl.sum(sums.reshape(PIECES, 2, 8), axis=1)  # two numbers each: one addition, so one order
    half = tl.sum(half.reshape(PIECES, 2, 4), axis=1)
    half = tl.sum(half.reshape(PIECES, 2, 2), axis=1)
    pieces = tl.sum(half, axis=1)
    total = tl.zeros((), tl.float64)
    i = 0
    while i * PIECE < tl.minimum(left, PIECE * PIECES):  # one after the other: zeros change nothing
        total += tl.sum(tl.where(piece == i, pieces, 0.0), axis=0)
        i += 1
    tl.store(out + row * stretches + stretch, total)


@triton.jit
def add_stretches_kernel(parts, out, stretches):
    """out[row] += the row's stretches, which are added in order first."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((), tl.float64)
    i = 0
    while i < stretches:
        total += tl.load(parts + row * stretches + i)
        i += 1
    tl.store(out + row, tl.load(out + row) + total)


@triton.jit
def root_kernel(numbers):
    """The square root in place: torch's on the CPU need not be the nearest number."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(numbers + row, tl.sqrt(tl.load(numbers + row)))


@triton.jit
def natural_log(u):
    """ln u for normal fp64 numbers in (0, 1]."""
    half_root = 0x3FE6A09E667F3BCD
    bits = u.to(tl.int64, bitcast=True) + (0x3FF0000000000000 - half_root)
    k = (bits >> 52).to(tl.float64) - 1023.0
    f = ((bits & 0x000FFFFFFFFFFFFF) + half_root).to(tl.float64, bitcast=True) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (0.3999999999940941908 + w * (0.2222219843214978396 + w * 0.1531383769920937332))
    inner = 0.2857142874366239149 + w * (0.1818357216161805012 + w * 0.1479819860511658591)
    odd = z * (0.6666666666666735130 + w * inner)
    square = 0.5 * f * f
    low = k * 1.90821492927058770002e-10
    return k * 6.93147180369123816490e-01 - ((square - (s * (square + (even + odd)) + low)) - f)


@triton.jit
def sine_cosine(x):
    """Sine and cosine for |x| <= pi/4."""
    z = x * x
    rs = -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10
    rs = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * (2.75573137070700676789e-06 + z * rs))
    rc = 2.08757232129817482790e-09 + z * -1.13596475577881948265e-11
    rc = 2.48015872894767294178e-05 + z * (-2.75573143513906633035e-07 + z * rc)
    rc = z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * rc))
    half = 0.5 * z
    w = 1.0 - half
    return x + (z * x) * (-1.66666666666666324348e-01 + z * rs), w + (((1.0 - w) - half) + z * rc)


@triton.jit
def normals(block, key, CHACHA: tl.constexpr, BLOCKS: tl.constexpr):
    """Two normals from each four words of BLOCKS blocks of keystream 0, in order."""
    PAIRS: tl.constexpr = BLOCKS * (4 if CHACHA else 1)
    words = keystream_words(block, 0, key, CHACHA, BLOCKS).to(tl.uint32, bitcast=True).to(tl.int64)
    even, odd = tl.split(words.reshape(PAIRS, 2, 2))  # words 0 and 2, words 1 and 3
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    u = (w1.to(tl.float64) * 4294967296.0 + (w0.to(tl.float64) + 0.5)) * 5.421010862427522e-20
    radius = tl.sqrt(-2.0 * natural_log(u))
    fraction = (w3 & 0x3FFFFFFF).to(tl.float64) - 536870912.0
    turn = (fraction * 4294967296.0 + (w2.to(tl.float64) + 0.5)) * 2.168404344971009e-19
    sine, cosine = sine_cosine(turn * 1.5707963267948966)
    quadrant = w3 >> 30
    swap = (quadrant & 1) != 0
    a, b = tl.where(swap, sine, cosine), tl.where(swap, cosine, sine)
    first = radius * tl.where(((quadrant + 1) & 2) != 0, -a, a)
    second = radius * tl.where((quadrant & 2) != 0, -b, b)
    return tl.join(first, second).reshape(PAIRS * 2)


@triton.jit
def sums_kernel(
    x, scales, stride, out, key, numbers, rows, columns, first,
    WIDE: tl.constexpr, GRID: tl.constexpr, NOISY: tl.constexpr, CHACHA: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """(Sum of scaled rows + noise) / divisor, columns of BLOCKS cipher blocks.

    `numbers` is [stddev or grid_std, divisor, unit, 1 / unit]; GRID is for discrete noise, whose sums are of integers.
    """
    SUM: tl.constexpr = tl.float64 if GRID else WIDE
    PER_BLOCK: tl.constexpr = 8 if CHACHA else 2
    TILE: tl.constexpr = BLOCKS * PER_BLOCK
    column = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)  # `first` is a multiple of 8
    inside = column < columns
    total = tl.zeros((TILE,), tl.float64)
    group = 0
    while group < rows:
        subtotal = tl.zeros((TILE,), tl.float64)
        block = group
        while block < tl.minimum(rows, group + 4096):
            sums = tl.zeros((TILE,), SUM)
            row = block
            while row < tl.minimum(rows, block + 64):
                scale = tl.load(scales + row.to(tl.int64) * stride)
                if scale != 0:  # a row left out is not read
                    v = tl.load(x + row.to(tl.int64) * columns + column, inside, 0.0).to(WIDE)
                    if GRID:
                        units = v.to(tl.float64) * (scale * tl.load(numbers + 3))  # exact: a power of two
                        sums += tl.where(units < 0, tl.ceil(units), tl.floor(units))
                    else:
                        narrow = scale.to(WIDE)
                        if WIDE == tl.float32:  # noqa: SIM300
                            bits = narrow.to(tl.int32, bitcast=True) - 1
                            rounded_down = bits.to(tl.float32, bitcast=True)
                            narrow = tl.where(narrow.to(tl.float64) > scale, rounded_down, narrow)
                        sums += v * narrow
                row += 1
            subtotal += sums.to(tl.float64)
            block += 64
        total += subtotal
        group += 4096
    if GRID:
        if NOISY:
            s = tl.load(numbers).to(tl.int64)
            total += discrete_gaussian(first + column, inside, s, load_key(key, CHACHA), CHACHA).to(tl.float64)
        total *= tl.load(numbers + 2)
    elif NOISY:
        start = first // PER_BLOCK + tl.program_id(0).to(tl.int64) * BLOCKS
        total += tl.load(numbers) * normals(start, load_key(key, CHACHA), CHACHA, BLOCKS)
    tl.store(out + column, (total / tl.load(numbers + 1)).to(WIDE), inside)
