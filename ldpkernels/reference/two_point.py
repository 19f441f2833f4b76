# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of every kernel, written from docs/rng.md and docs/mechanisms and from nothing else."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ldpkernels.dtypes import DTYPES

Array = np.ndarray[Any, Any]


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds of Philox4x32 on one counter.

    >>> [f"{w:08x}" for w in philox4x32([0, 0, 0, 0], [0, 0])]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (p1 >> 32) ^ b ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ d ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def chacha20(counter: list[int], key: list[int]) -> list[int]:
    """The ChaCha20 block function of RFC 8439, with the counter and nonce words in `counter`."""
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key, *counter]
    x = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for to, by, turn, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[to] = (x[to] + x[by]) & 0xFFFFFFFF
            mixed = x[turn] ^ x[to]
            x[turn] = ((mixed << bits) | (mixed >> (32 - bits))) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)]


def keystream(key: Array, stream: int, first_block: int, blocks: int) -> Array:
    """Words of keystream `stream` under a key of 2 or 8 words."""
    cipher = philox4x32 if len(key) == 2 else chacha20
    words = [int(w) for w in key]
    out: list[int] = []
    for block in range(first_block, first_block + blocks):
        out += cipher([block & 0xFFFFFFFF, block >> 32 & 0xFFFFFFFF, stream, 0], words)
    return np.array(out, np.uint32)


def draws16(key: Array, stream: int, first: int, n: int) -> Array:
    """The 16-bit draws of elements first, ..., first + n - 1."""
    per_block = 8 if len(key) == 2 else 32
    block = first // per_block
    words = keystream(key, stream, block, (first + n + per_block - 1) // per_block - block)
    return words.astype("<u4").view("<i2")[first - block * per_block :][:n].astype(np.int64)


def thresholds(x: Array, law: Any) -> Array:
    """The integers k in [k_lo, k_hi] for fp32 or fp64 weights."""
    compute = x.dtype.type
    k_lo, k_hi = int(law["k_lo"]), int(law["k_hi"])
    out = np.empty(x.shape, np.int64)
    with np.errstate(over="ignore"):
        for i, w in enumerate(x):
            weight = compute(law["fallback"]) if np.isnan(w) else w
            z = (weight - compute(law["center"])) * compute(law["slope"])
            out[i] = (
                k_hi if z >= _at_most(k_hi, compute) else k_lo if z <= -_at_most(-k_lo, compute) else int(np.rint(z))
            )
    return out


def is_upper(k: Array, key: Array, first: int) -> Array:
    """u < k for the 32-bit draws u of elements first, first + 1, ...: high half, then low half."""
    u = draws16(key, 0, first, len(k)) * 2**16 + (draws16(key, 1, first, len(k)) & 0xFFFF)
    upper: Array = u < k
    return upper


def two_point(output: str, spans: Array, laws: Array, key: Array) -> None:
    """The kernels' interface: "values", "bits" or "thresholds" for every span, in memory."""
    for span, law in zip(spans, laws, strict=True):
        n, first = int(span["numel"]), int(span["first"])
        bits, weights = _weights(int(span["data"]), n, int(span["dtype"]))
        k = thresholds(weights, law)
        if output == "thresholds":
            _memory(int(span["out"]), n, np.dtype(np.int64))[:] = k + 2**31
            continue
        upper = is_upper(k, key, first)
        if output == "bits":
            _memory(int(span["out"]), (n + 7) // 8, np.dtype(np.uint8))[:] = np.packbits(upper, bitorder="little")
        else:
            bits[:] = np.where(upper, law["upper"], law["lower"])


def _at_most(k: int, number: Any) -> Any:
    """The largest float at or below k: past it, a weight has the last threshold."""
    f = number(k)
    return f if int(f) <= k else np.nextafter(f, number(-np.inf))


def _memory(address: int, n: int, dtype: np.dtype[Any]) -> Array:
    if n == 0:
        return np.empty(0, dtype)
    buffer: Any = (ctypes.c_char * (n * dtype.itemsize)).from_address(address)
    return np.frombuffer(buffer, dtype)


def _weights(address: int, n: int, code: int) -> tuple[Array, Array]:
    """The memory of a tensor as bits, and its numbers in the format in which they are compared."""
    name = next(d.name for d in DTYPES.values() if d.code == code)
    bits = _memory(address, n, np.dtype({4: np.uint32, 8: np.uint64, 2: np.uint16}[DTYPES[name].itemsize]))
    if name == "bfloat16":
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    numbers = bits.view(name)
    return bits, numbers.astype(np.float32) if name == "float16" else numbers
