# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of the two-point kernel, written from docs/mechanisms/two_point.md and from nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ldpkernels.common.arrays import Array, Flags, Integers, Laws, Spans, Words
from ldpkernels.reference.ciphers import draws16
from ldpkernels.reference.memory import memory, weights

Number: TypeAlias = np.float32 | np.float64
Thresholds: TypeAlias = Callable[[Array, np.void], Integers]


def thresholds(x: Array, law: np.void) -> Integers:
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


def is_upper(k: Integers, key: Words, first: int) -> Flags:
    """u < k for the 32-bit draws u of elements first, first + 1, ...: high half, then low half."""
    u = draws16(key, 0, first, len(k)) * 2**16 + (draws16(key, 1, first, len(k)) & 0xFFFF)
    return u < k


def two_point(output: str, spans: Spans, laws: Laws, key: Words) -> None:
    """The kernels' interface: "values", "bits" or "thresholds" for every span, in memory."""
    one_bit(thresholds, output, spans, laws, key)


def one_bit(thresholds_of: Thresholds, output: str, spans: Spans, laws: Laws, key: Words) -> None:
    """The walk over spans of every mechanism that reports one bit by a threshold."""
    for span, law in zip(spans, laws, strict=True):
        n, first = int(span["numel"]), int(span["first"])
        bits, x = weights(int(span["data"]), n, int(span["dtype"]))
        k = thresholds_of(x, law)
        if output == "thresholds":
            memory(int(span["out"]), n, np.dtype(np.int64))[:] = k + 2**31
            continue
        upper = is_upper(k, key, first)
        if output == "bits":
            memory(int(span["out"]), (n + 7) // 8, np.dtype(np.uint8))[:] = np.packbits(upper, bitorder="little")
        else:
            bits[:] = np.where(upper, law["upper"], law["lower"])


def _at_most(k: int, number: type[Number]) -> Number:
    """The largest float at or below k: past it, a weight has the last threshold."""
    f = number(k)
    return f if int(f) <= k else np.nextafter(f, number(-np.inf))
