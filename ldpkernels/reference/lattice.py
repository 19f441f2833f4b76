# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of whole vectors, written from docs/mechanisms/."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from ldpkernels.common.arrays import Array, Floats, Spans, Words
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.laws.noise_table import NoiseTable
from ldpkernels.reference.ciphers import BLOCK_WORDS, keystream
from ldpkernels.reference.clipped_noise import below, normals, squares, words
from ldpkernels.reference.memory import memory, weights

__all__ = [
    "add_masks",
    "add_noise",
    "moved_normals",
    "noise",
    "normal_product",
    "quantise",
    "reflect",
    "rotate",
    "squares",
]

LARGEST = 2147483647.0


def quantise(spans: Spans, scale: float, key: Words | None, stream: int) -> int:
    """Scaled weights as integers to each span's `out`; the sum of all their squares."""
    total = 0
    for span in spans:
        n, first = int(span["numel"]), int(span["first"])
        _, x = weights(int(span["data"]), n, int(span["dtype"]))
        with np.errstate(invalid="ignore", over="ignore"):
            z = x.astype(np.float64) * scale
            if key is not None:
                z = np.floor(z + draws(key, stream, first, n, 32) * 2.0**-32)
            integers = np.clip(np.where(np.isnan(z), -LARGEST, z), -LARGEST, LARGEST).astype(np.int32)
        memory(int(span["out"]), n, np.dtype(np.int32))[:] = integers
        total += sum(int(q) ** 2 for q in integers)
    return total


def add_noise(spans: Spans, table: NoiseTable, key: Words, bits: int, unit: float) -> None:
    """Each span's integers and their noise, to its `out`: modulo 2^bits, or as numbers times `unit`."""
    for span in spans:
        n, first = int(span["numel"]), int(span["first"])
        integers = memory(int(span["data"]), n, np.dtype(np.int32)).astype(np.int64) + noise(table, key, first, n)
        if bits:
            memory(int(span["out"]), n, np.dtype(np.uint32))[:] = integers % 2**bits
        else:
            dtype = np.dtype(np.float64 if span["dtype"] == DTYPES["float64"].code else np.float32)
            memory(int(span["out"]), n, dtype)[:] = integers.astype(np.float64) * unit


def noise(table: NoiseTable, key: Words, first: int, n: int) -> Array:
    """The noise of elements first, ..., first + n - 1."""
    cumulated = [int(h) << 64 | int(low) for h, low in zip(table.high, table.low, strict=True)]
    found = [
        _noise(cumulated, table.shift, int(draw), islice(words(key, first + i), BLOCK_WORDS[len(key)], None))
        for i, draw in enumerate(draws(key, 0, first, n, 64))
    ]
    return np.array(found, np.int64)


def _noise(cumulated: list[int], a: int, draw: int, source: Iterator[int]) -> int:
    """A draw of 64 bits, from the top: 24 for the table, a sign, 16 that may follow, 23 for the decision to keep."""

    def next64() -> int:
        low = next(source)
        return low | next(source) << 32

    while True:
        t, negative, decision = draw >> 40, draw >> 39 & 1, draw & 0x7FFFFF
        k = bisect_left(cumulated, t << 64)
        if cumulated[k] >> 64 == t:
            k = bisect_right(cumulated, t << 64 | next64())
        if a == 0:
            return -k if negative else k
        u = (draw >> 23 & 0xFFFF) >> (16 - a)
        y = (k << a) + u
        numerator = y * y - (k << a) ** 2  # over 2^(13 + 2a): what exp(-x) is the probability of, to be kept
        whole, fraction = divmod(numerator * 2**10, 2 ** (2 * a))
        event = decision < whole
        if decision == whole:
            event = next(source) >> (32 - 2 * a) < fraction
        events = 1
        if event:
            events = 2
            while next64() >> (51 - 2 * a) < numerator and below(source, events) == 0:
                events += 1
        if events % 2 == 1 and not (y == 0 and negative):
            return -y if negative else y
        draw = next64()


def add_masks(numbers: Array, keys: Sequence[Words], minus: Sequence[bool], stream: int, first: int) -> None:
    """Keystreams added to numbers of 16 or 32 bits in place, or subtracted, a key after the other."""
    flat = numbers.reshape(-1)
    for key, subtracted in zip(keys, minus, strict=True):
        mask = draws(key, stream, first, flat.size, 8 * flat.itemsize)
        (np.subtract if subtracted else np.add)(flat, mask, out=flat)


def draws(key: Words, stream: int, first: int, n: int, bits: int) -> Array:
    """The draws, of so many bits, of elements first, ..., first + n - 1."""
    per_block = BLOCK_WORDS[len(key)] * 32 // bits
    block = first // per_block
    stretch = keystream(key, stream, block, (first + n + per_block - 1) // per_block - block)
    return stretch.astype("<u4").view(f"<u{bits // 8}")[first - block * per_block :][:n]


def normal_product(spans: Spans, key: Words, stream: int) -> float:
    """The sum of products of weights with the normals of their elements: stretches of 2^16 in order, spans in order."""
    total = 0.0
    for span in spans:
        products = _widened(span) * normals(key, int(span["first"]), int(span["numel"]), stream)
        of_span = 0.0
        for stretch in np.split(products, range(1 << 16, len(products), 1 << 16)):
            part = 0.0
            for piece in np.split(stretch, range(1024, len(stretch), 1024)):
                part += _in_lanes(piece)
            of_span += part
        total += of_span
    return total


def moved_normals(spans: Spans, key: Words, stream: int, along: float, factor: float) -> None:
    """(g + along x) factor for weights x and the normals g of their elements, to each span's `out`."""
    for span in spans:
        x, n = _widened(span), int(span["numel"])
        dtype = np.dtype(np.float64 if span["dtype"] == DTYPES["float64"].code else np.float32)
        moved = (normals(key, int(span["first"]), n, stream) + along * x) * factor
        memory(int(span["out"]), n, dtype)[:] = moved


def _widened(span: np.void) -> Floats:
    return weights(int(span["data"]), int(span["numel"]), int(span["dtype"]))[1].astype(np.float64)


def rotate(x: Array, key: Words, inverse: bool) -> None:
    """The Walsh-Hadamard transform of x in place, divided by sqrt(n), with signs before it or after it."""
    n = len(x)
    levels = n.bit_length() - 1
    stretch = keystream(key, 0, 0, (n + 32 * BLOCK_WORDS[len(key)] - 1) // (32 * BLOCK_WORDS[len(key)]))
    signs = np.unpackbits(stretch.astype("<u4").view(np.uint8), bitorder="little")[:n].astype(bool)
    if not inverse:
        x[signs] = -x[signs]
    for level in range(levels):
        pairs = x.reshape(-1, 2, 1 << level)
        pairs[:, 0], pairs[:, 1] = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
    root_half = np.float32(0.5**0.5 if levels % 2 else 1.0)
    x *= root_half * np.float32(2.0 ** -(levels // 2))
    if inverse:
        x[signs] = -x[signs]


def reflect(x: Floats, normals: Floats, back: bool) -> None:
    """Householder reflections of k, k - 1, ..., 2 normals; `back` undoes them."""
    k = len(x)
    vectors = np.split(normals, np.cumsum(np.arange(k, 1, -1))[:-1]) if k > 1 else []
    for g in reversed(vectors) if back else vectors:
        z = x[k - len(g) :]
        length = np.sqrt(_in_lanes(g * g))
        signed = np.copysign(length, g[0])
        factor = (_in_lanes(g * z) + signed * z[0]) / (length * (length + abs(g[0])))
        z[0] -= factor * signed
        z -= factor * g


def _in_lanes(products: Floats) -> float:
    """Their sum, in the order of csrc/cpu/reflections.h."""
    lanes = np.zeros(16)
    for row in np.append(products, np.zeros(-len(products) % 16)).reshape(-1, 16):
        lanes = lanes + row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return float(lanes[0])
