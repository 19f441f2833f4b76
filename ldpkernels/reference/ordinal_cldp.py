# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of the ordinal CLDP kernel, from docs/rng.md and docs/mechanisms/ordinal_cldp.md alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count

import numpy as np

from ldpkernels.arrays import Array, Laws, Spans, Words
from ldpkernels.inputs.spans import INTEGERS
from ldpkernels.reference.ciphers import keystream
from ldpkernels.reference.memory import memory, weights

ROUNDING = 2**32 - 1  # the keystream of stochastic rounding


def ordinal_cldp(_: str, spans: Spans, laws: Laws, key: Words) -> None:
    """The kernel's interface: weights in place, or integers from `data` to `out`."""
    for span, law in zip(spans, laws, strict=True):
        n, first, dtype = int(span["numel"]), int(span["first"]), int(span["dtype"])
        wide = bool(law["wide"])
        if dtype == INTEGERS:
            values = [int(v) for v in memory(int(span["data"]), n, np.dtype(np.int64))]
            out = memory(int(span["out"]), n, np.dtype(np.int64))
        else:
            out, x = weights(int(span["data"]), n, dtype)
            values = [integer(float(w), law, draws(key, first + i, wide)) for i, w in enumerate(x)]
        bound = int(law["bound"])
        clipped = [min(max(v, -bound), bound) for v in values]
        samples = [sample(v, law, draws(key, first + i, wide)) for i, v in enumerate(clipped)]
        out[:] = samples if dtype == INTEGERS else _as_weights(samples, float(law["scale"]), dtype)


def draws(key: Words, element: int, wide: bool) -> Callable[[int], int]:
    """Draw number d of an element, as a function of d: 64-bit numbers, or 32-bit ones."""
    words_of_block, words = (4 if len(key) == 2 else 16), (2 if wide else 1)
    block, place = divmod(element * words, words_of_block)

    @cache
    def draw(d: int) -> int:
        found = keystream(key, d, block, 1)[place : place + words]
        return sum(int(w) << 32 * i for i, w in enumerate(found))

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
    high = draw(ROUNDING) >> (32 if law["wide"] else 0)
    return floor + (high < round((z - floor) * 2.0**32))


def sample(v: int, law: np.void, draw: Callable[[int], int]) -> int:
    """One sample for v."""
    sign, quotient, reach = int(law["sign"]), int(law["quotient"]), int(law["reach"])

    def comes_up(lane: int, first: int) -> bool:
        """Whether a uniform number of 128 binary digits is below the lane's threshold."""
        for i, digits in enumerate(law["thresholds"]):
            drawn, threshold = draw(first + i) >> lane & 1, int(digits) >> lane & 1
            if drawn != threshold:
                return drawn < threshold
        return False

    for attempt in count():
        first = attempt * 2**16
        down = bool(draw(first) & sign)
        room = v + reach if down else reach - v
        magnitude: int = sum(2**lane for lane in range(sign.bit_length() - 1) if comes_up(lane, first))
        for comparison in count():
            if not quotient or not comes_up(quotient.bit_length() - 1, first + 2**7 * comparison):
                break
            magnitude += sign
            if magnitude > room:
                break
        if law["saturate"]:
            magnitude = min(magnitude, room)
        if magnitude <= room and not (down and magnitude == 0):
            return v - magnitude if down else v + magnitude
    raise AssertionError


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
