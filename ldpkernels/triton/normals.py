# SPDX-License-Identifier: Apache-2.0
"""csrc's normals in Triton: two from each four words of a keystream. docs/mechanisms/clipped_noise.md."""

from __future__ import annotations

import triton
import triton.language as tl

from ldpkernels.triton.ciphers import chacha, philox


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
def _fourth(a, b, c, d):
    """One word of every four of ChaCha20's: a is of the first four of a block, d of the last."""
    return tl.join(tl.join(a, c), tl.join(b, d))


@triton.jit
def normals(index, stream, key, CHACHA: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Two normals from each four words of keystream blocks [ROWS, BLOCKS], in order: [ROWS, numbers]."""
    PAIRS: tl.constexpr = BLOCKS * (4 if CHACHA else 1)
    if CHACHA:
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = chacha(index, stream, key)
        w0, w1 = _fourth(x0, x4, x8, x12).reshape(ROWS, PAIRS), _fourth(x1, x5, x9, x13).reshape(ROWS, PAIRS)
        w2, w3 = _fourth(x2, x6, x10, x14).reshape(ROWS, PAIRS), _fourth(x3, x7, x11, x15).reshape(ROWS, PAIRS)
    else:
        w0, w1, w2, w3 = philox(index, stream, key)
    first, second = normal_pair(w0, w1, w2, w3)
    return tl.join(first, second).reshape(ROWS, PAIRS * 2)


@triton.jit
def normal_pair(w0, w1, w2, w3):
    """Two normals from four words, by the operations of csrc's normal_pair."""
    w0, w1, w2, w3 = w0.to(tl.int64), w1.to(tl.int64), w2.to(tl.int64), w3.to(tl.int64)
    u = (w1.to(tl.float64) * 4294967296.0 + (w0.to(tl.float64) + 0.5)) * 5.421010862427522e-20
    radius = tl.sqrt(-2.0 * natural_log(u))
    fraction = (w3 & 0x3FFFFFFF).to(tl.float64) - 536870912.0
    turn = (fraction * 4294967296.0 + (w2.to(tl.float64) + 0.5)) * 2.168404344971009e-19
    sine, cosine = sine_cosine(turn * 1.5707963267948966)
    quadrant = w3 >> 30
    swap = (quadrant & 1) != 0
    a, b = tl.where(swap, sine, cosine), tl.where(swap, cosine, sine)
    first = radius * tl.where(((quadrant + 1) & 2) != 0, -a, a)
    return first, radius * tl.where((quadrant & 2) != 0, -b, b)
