# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of the ordinal CLDP kernel, from docs/rng.md and docs/mechanisms/ordinal_cldp.md alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count

import numpy as np

from ldpkernels.common.arrays import Array, Laws, Spans, Words
from ldpkernels.inputs.spans import INTEGERS
from ldpkernels.reference.ciphers import BLOCK_WORDS, keystream
from ldpkernels.reference.memory import memory, weights

ROUNDING = 2**32 - 1  # the keystream of stochastic rounding


def ordinal_cldp(_: str, spans: Spans, laws: Laws, key: Words) -> None:
    """The kernel's interface: weights in place, or integers from `data` to `out`."""
    for span, law in zip(spans, laws, strict=True):
        n, first, dtype = int(span["numel"]), int(span["first"]), int(span["dtype"])
        if dtype == INTEGERS:
            values = [int(v) for v in memory(int(span["data"]), n, np.dtype(np.int64))]
            out = memory(int(span["out"]), n, np.dtype(np.int64))
        else:
            out, x = weights(int(span["data"]), n, dtype)
            values = [integer(float(w), law, draws(key, first + i)) for i, w in enumerate(x)]
        bound = int(law["bound"])
        clipped = [min(max(v, -bound), bound) for v in values]
        samples = [sample(v, law, draws(key, first + i)) for i, v in enumerate(clipped)]
        out[:] = samples if dtype == INTEGERS else _as_weights(samples, float(law["scale"]), dtype)


def draws(key: Words, element: int) -> Callable[[int], int]:
    """64-bit draw number d of an element, as a function of d."""
    block, place = divmod(2 * element, BLOCK_WORDS[len(key)])

    @cache
    def draw(d: int) -> int:
        low, high = keystream(key, d, block, 1)[place : place + 2]
        return int(low) | int(high) << 32

    return draw


def integer(x: float, law: np.void, draw: Callable[[int], int]) -> int:
    """A weight as an integer: to the nearest, ties to even, or at random to one of its neighbours."""
    bound: int = int(law["bound"])
    with np.errstate(over="ignore", invalid="ignore"):
        z = float(np.float64(x) * np.float64(law["scale"]))
    if np.isnan(z):
        return 0
    if abs(z) > bound:  # Python compares a float with an integer exactly
        return bound if z > 0 else -bound
    if not law["stochastic"]:
        return round(z)
    floor = int(np.floor(z))
    return floor + (draw(ROUNDING) >> 32 < round((z - floor) * 2.0**32))


def sample(v: int, law: np.void, draw: Callable[[int], int]) -> int:
    """One sample for v."""
    reach, low_digits, column = int(law["reach"]), int(law["low"]), int(law["low"]) + int(law["middle"])
    carried = 0
    for first in count(0, 8):
        word = draw(first)

        def below(threshold: int, leading: int, bits: int, further: int, first: int = first) -> bool:
            """Whether a number of 128 digits is: the first are `leading`, the others those of draw `further` on."""
            others = draw(first + further) << 64 | draw(first + further + 1)
            return (leading << 128 - bits | others >> bits) < threshold

        def value(table: int, field: int, further: int, below: Callable[..., bool] = below) -> int:
            """An alias table's value: the column's own, or the other one."""
            place = 64 * table + field % 64
            other = int(law["entries"][place // 4]) >> 16 * (place % 4) & 63
            return field % 64 if below(wide(law["thresholds"], place), field >> 6, 10, further) else other

        upper = value(0, word % 2**16, 2)
        if upper == law["tail"]:
            carried += int(law["unit"])
            continue
        low = (draw(first + 1) if law["wide"] else word >> 32) % 2**low_digits
        magnitude: int = carried + (upper << column) + (value(1, (word >> 16) % 2**16, 4) << low_digits) + low
        carried = 0
        if below(loss(low, law), word >> 49, 15, 6):
            continue
        down = word >> 48 & 1
        room = v + reach if down else reach - v
        if law["saturate"]:
            magnitude = min(magnitude, room)
        if magnitude <= room and not (down and magnitude == 0):
            return v - magnitude if down else v + magnitude
    raise AssertionError


def loss(low: int, law: np.void) -> int:
    """The probability of giving up low digits, out of 2^128."""
    total = 0
    for j in range(low.bit_length()):
        if low >> j & 1:
            one = wide(law["losses"], j)
            a, b, c, d = total >> 64, total % 2**64, one >> 64, one % 2**64
            total += one - (a * c + (a * d >> 64) + (b * c >> 64))  # the two happen both, rounded down
    return total


def wide(halves: Array, i: int) -> int:
    """Number i of 128 bits."""
    return int(halves[2 * i]) << 64 | int(halves[2 * i + 1])


def _as_weights(samples: list[int], scale: float, dtype: int) -> Array:
    """Bit patterns of the samples, divided by the scale in fp64 and rounded to fp32 and on to the format."""
    x = np.array(samples, np.int64).astype(np.float64) / scale
    if dtype == 1:
        return x.view(np.uint64)
    bits: Array = x.astype(np.float32).view(np.uint32)
    if dtype == 0:
        return bits
    if dtype == 2:
        bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return bits
    return bits.view(np.float32).astype(np.float16).view(np.uint16)
