# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of the clipped sums, written from docs/rng.md and docs/mechanisms/clipped_noise.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ldpkernels.common.arrays import Array, Floats, Spans, Words
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.flat import norms_of
from ldpkernels.laws.clipped_noise import Noise, is_single, scales
from ldpkernels.reference.ciphers import BLOCK_WORDS, cipher_block, keystream
from ldpkernels.reference.memory import memory, weights


def clipped_sums(spans: Spans, rows: int, limits: Sequence[float], noise: Noise, divisor: float, key: Words) -> Floats:
    """Both passes: the norms of the rows, and the noised sum of every matrix to its `out`."""
    if is_single(spans["numel"].tolist()):
        return _single_numbers(spans[0], rows, limits[0], noise, divisor, key)
    norms = norms_of(squares(spans, rows), len(limits))
    with np.errstate(invalid="ignore", over="ignore"):
        factors = np.stack(scales(norms, limits, np.where), 1)
    sums(spans, factors, noise, divisor, key)
    return norms


def squares(spans: Spans, rows: int) -> Array:
    """The sum of squares of every row of every matrix, [rows, matrices]."""
    out = np.zeros((rows, len(spans)))
    with np.errstate(all="ignore"):
        for i, span in enumerate(spans):
            x = _matrix(span, rows).astype(np.float64)
            for row in range(rows):
                for stretch in range(0, x.shape[1], 1 << 16):
                    part = 0.0
                    for piece in range(stretch, min(stretch + (1 << 16), x.shape[1]), 1024):
                        part = part + _piece(x[row, piece : min(piece + 1024, stretch + (1 << 16))])
                    out[row, i] += part
    return out


def sums(spans: Spans, factors: Floats, noise: Noise, divisor: float, key: Array) -> None:
    """(Sum of scaled rows + noise) / divisor of every matrix, to its `out`."""
    for i, span in enumerate(spans):
        scale = factors[:, i if factors.shape[1] > 1 else 0]
        x = _matrix(span, len(factors))
        with np.errstate(over="ignore", invalid="ignore"):
            total = _grid_sum(x, scale, noise.unit) if noise.unit else _float_sum(x, scale)
        _release(span, total, noise, divisor, key)


def _release(span: np.void, total: Array, noise: Noise, divisor: float, key: Array) -> None:
    first, n = int(span["first"]), int(span["numel"])
    if noise.grid_std:
        total = total + [discrete_gaussian(words(key, first + j), noise.grid_std) for j in range(n)]
    elif noise.stddev:
        total = total + noise.stddev * normals(key, first, n)
    with np.errstate(over="ignore", invalid="ignore"):
        total = (total * noise.unit if noise.unit else total) / divisor
        dtype = np.dtype(np.float64 if span["dtype"] == DTYPES["float64"].code else np.float32)
        memory(int(span["out"]), n, dtype)[:] = total


def _single_numbers(span: np.void, rows: int, limit: float, noise: Noise, divisor: float, key: Array) -> Floats:
    """Numbers that are clamped; their magnitudes are their norms."""
    x = _matrix(span, rows)[:, 0]
    bound = _at_most(limit, x.dtype)
    kept = np.where(np.isfinite(x), np.clip(x, np.negative(bound), bound), x.dtype.type(0))
    if noise.unit:
        total = float(sum(int(v) for v in np.trunc(kept.astype(np.float64) / noise.unit)))
    else:
        total = 0.0
        for group in range(0, rows, 4096):
            total += _pieces(kept[group : group + 4096])
    _release(span, np.array([total]), noise, divisor, key)
    return np.abs(x.astype(np.float64))[:, None]


def _pieces(kept: Array) -> float:
    """Pieces of 1024 in 64 lanes in the data's precision, added in fp64."""
    total = 0.0
    for piece in range(0, len(kept), 1024):
        lanes = np.zeros(64, kept.dtype)
        for i, number in enumerate(kept[piece : piece + 1024]):
            lanes[i % 64] += number
        for half in (32, 16, 8, 4, 2, 1):
            lanes = lanes[:half] + lanes[half:]
        total += float(lanes[0])
    return total


def normals(key: Array, first: int, n: int, number: int = 0) -> Array:
    """Standard normals of elements first, ..., first + n - 1 from a keystream; first is even."""
    per_block = BLOCK_WORDS[len(key)] // 4
    pair = first // 2
    block = pair // per_block
    count = (n + 1) // 2
    stream = keystream(key, number, block, (pair + count - 1) // per_block - block + 1)
    return normals_of(stream[4 * (pair - block * per_block) :][: 4 * count].reshape(count, 4))[:n]


def normals_of(w: Array) -> Array:
    """Box and Muller's two normals from each row of four 32-bit words."""
    quadrant, w = w[:, 3] >> 30, w.astype(np.float64)
    u = (w[:, 1] * 2.0**32 + (w[:, 0] + 0.5)) * 2.0**-64
    radius = np.sqrt(-2.0 * natural_log(u))
    fraction = w[:, 3] - quadrant * 2.0**30
    turn = ((fraction - 2.0**29) * 2.0**32 + (w[:, 2] + 0.5)) * 2.0**-62
    sine, cosine = sine_cosine(turn * (math.pi / 2))
    x = np.choose(quadrant, [cosine, -sine, -cosine, sine])
    y = np.choose(quadrant, [sine, cosine, -sine, -cosine])
    return np.stack([radius * x, radius * y], 1).reshape(-1)


def words(key: Array, element: int) -> Iterator[int]:
    """The 32-bit words of one element: its block of keystream 0, of keystream 1, ..."""
    stream = 0
    while True:
        yield from cipher_block(key, [element & 0xFFFFFFFF, element >> 32, stream, 0])
        stream += 1


def below(source: Iterator[int], m: int) -> int:
    """Uniform on 0, ..., m - 1."""
    if m == 1:
        return 0
    mask = (1 << (m - 1).bit_length()) - 1
    while (v := next(source) & mask) >= m:
        pass
    return v


def bernoulli_exp(source: Iterator[int], event: Callable[[], bool]) -> bool:
    """True with probability exp(-p), for an event of probability p (Canonne, Kamath and Steinke 2020, algorithm 1)."""
    k = 1
    while event() and below(source, k) == 0:
        k += 1
    return k % 2 == 1


def discrete_gaussian(source: Iterator[int], s: int) -> int:
    """An integer y with probability proportional to exp(-y^2 / (2 s^2)) (the same, algorithms 2 and 3 with t = s)."""

    def less_than(w: int) -> bool:
        return below(source, s) < w

    def half() -> bool:
        return below(source, 2) == 0

    while True:
        u = below(source, s)
        if not bernoulli_exp(source, lambda u=u: less_than(u)):  # type: ignore[misc]
            continue
        v = 0
        while bernoulli_exp(source, lambda: True):
            v += 1
        negative = below(source, 2) == 1
        if negative and u == 0 and v == 0:
            continue
        halves, linear, w = ((v - 1) ** 2, v - 1, u) if v else (0, 0, s - u)
        kept = all(bernoulli_exp(source, half) for _ in range(halves))
        kept = kept and all(bernoulli_exp(source, lambda u=u: less_than(u)) for _ in range(linear))  # type: ignore[misc]
        kept = kept and bernoulli_exp(source, lambda w=w: less_than(w) and less_than(w) and half())  # type: ignore[misc]
        if kept:
            return -(u + s * v) if negative else u + s * v


def _piece(x: Array) -> float:
    lanes = [0.0] * 16
    for i, square in enumerate((x * x).tolist()):
        lanes[i % 16] += square
    for half in (8, 4, 2, 1):
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    return lanes[0]


def _float_sum(x: Array, scale: Array) -> Array:
    """Blocks of 64 rows in the data's precision, and groups of 4096 rows in fp64."""
    total = np.zeros(x.shape[1])
    for group in range(0, len(x), 4096):
        subtotal = np.zeros(x.shape[1])
        for block in range(group, min(group + 4096, len(x)), 64):
            accumulator = np.zeros(x.shape[1], x.dtype)
            for row in range(block, min(block + 64, len(x))):
                if scale[row] != 0:
                    accumulator += x[row] * _at_most(float(scale[row]), x.dtype)
            subtotal += accumulator
        total = subtotal if group == 0 else total + subtotal
    return total


def _grid_sum(x: Array, scale: Array, unit: float) -> Array:
    total = [0] * x.shape[1]
    for row in range(len(x)):
        if scale[row] != 0:
            integers = np.trunc(x[row].astype(np.float64) * (scale[row] / unit))
            total = [a + int(b) for a, b in zip(total, integers, strict=True)]
    return np.array(total, np.float64)


def _at_most(scale: float, dtype: np.dtype[np.generic]) -> np.generic:
    with np.errstate(over="ignore"):
        number = dtype.type(scale)
    return number if float(number) <= scale else np.nextafter(number, dtype.type(0))


def _matrix(span: np.void, rows: int) -> Array:
    n = int(span["numel"])
    _, numbers = weights(int(span["data"]), rows * n, int(span["dtype"]))
    return numbers.reshape(rows, n)


def natural_log(u: Array) -> Array:
    """FreeBSD's e_log.c, for normal numbers in (0, 1]."""
    m, k = np.frexp(u)  # m in [1/2, 1)
    low = m < math.sqrt(0.5)
    m, k = np.where(low, 2 * m, m), (k - low).astype(np.float64)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (0.3999999999940941908 + w * (0.2222219843214978396 + w * 0.1531383769920937332))
    odd = z * (
        0.6666666666666735130 + w * (0.2857142874366239149 + w * (0.1818357216161805012 + w * 0.1479819860511658591))
    )
    square = 0.5 * f * f
    low_part = k * 1.90821492927058770002e-10
    return np.asarray(k * 6.93147180369123816490e-01 - ((square - (s * (square + (even + odd)) + low_part)) - f))


def sine_cosine(x: Array) -> tuple[Array, Array]:
    """FreeBSD's k_sin.c and k_cos.c, for |x| <= pi/4."""
    z = x * x
    rs = -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10
    for c in (2.75573137070700676789e-06, -1.98412698298579493134e-04, 8.33333333332248946124e-03):
        rs = c + z * rs
    rc = 2.08757232129817482790e-09 + z * -1.13596475577881948265e-11
    for c in (
        -2.75573143513906633035e-07,
        2.48015872894767294178e-05,
        -1.38888888888741095749e-03,
        4.16666666666666019037e-02,
    ):
        rc = c + z * rc
    half = 0.5 * z
    w = 1.0 - half
    return x + (z * x) * (-1.66666666666666324348e-01 + z * rs), w + (((1.0 - w) - half) + z * (z * rc))
