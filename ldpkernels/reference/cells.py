# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twins of the piecewise and hybrid kernels, written from docs/mechanisms and from nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

from ldpkernels.reference.two_point import Array, _memory, _weights, draws16, thresholds


def draws32(key: Array, first: int, n: int) -> Array:
    """The 32-bit draws of elements first, first + 1, ..., from 0 to 2^32 - 1: high half, then low half."""
    high, low = draws16(key, 0, first, n), draws16(key, 1, first, n)
    return (high & 0xFFFF) * 2**16 + (low & 0xFFFF)


def piecewise_cell(k: int, draw: int, law: Any) -> int:
    """The cell in which a draw lies when the weight has turned the circle."""
    if draw < int(law["band_draws"]):
        place = draw * int(law["band_scale"]) // 2**32
    else:
        rest = (draw - int(law["band_draws"])) * 2 ** int(law["rest_shift"])
        place = int(law["band_end"]) + rest * int(law["rest_scale"]) // 2**32
    turned: int = (place + int(law["origin"]) + k) % int(law["places"])
    return turned >> int(law["cell_bits"])


def hybrid_cell(k: int, draw: int, law: Any) -> int:
    """Piecewise for the first draws, the coin's two cells for the others."""
    circle, last = law["piecewise"], int(law["last_draw"])
    if draw <= last:
        return piecewise_cell(k, draw, circle)
    raised = (k - int(circle["k_lo"])) * 2 ** int(law["coin_shift"])
    upper = int(law["coin_lowest"]) + raised * int(law["coin_scale"]) // 2**32
    return int(law["upper_cell"]) if draw - last - 1 < upper else int(law["lower_cell"])


def cells(mechanism: str, output: str, spans: Array, laws: Array, key: Array) -> None:
    """The kernels' interface: "values", "cells" or "turns" for every span, in memory."""
    for span, law in zip(spans, laws, strict=True):
        circle = law["piecewise"] if mechanism == "hybrid" else law
        n, first = int(span["numel"]), int(span["first"])
        if not n:
            continue
        bits, weights = _weights(int(span["data"]), n, int(span["dtype"]))
        k = thresholds(weights, circle)
        if output == "turns":
            _memory(int(span["out"]), n, np.dtype(np.int64))[:] = k + int(circle["origin"])
            continue
        cell = piecewise_cell if mechanism == "piecewise" else hybrid_cell
        drawn = zip(k.tolist(), draws32(key, first, n).tolist(), strict=True)
        found = np.array([cell(ki, u, law) for ki, u in drawn], np.int64)
        if output == "cells":
            _memory(int(span["out"]), n, np.dtype(np.uint8))[:] = found
        else:
            bits[:] = _as_bits(circle["lowest"] + circle["step"] * found, bits.dtype, int(span["dtype"]))


def _as_bits(values: Array, dtype: np.dtype[Any], code: int) -> Array:
    """Numbers of the format with this code, as its bits. They are exact in it, and in fp64."""
    if code == 2:  # bfloat16 is half a float32
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(dtype)
    return values.astype({0: np.float32, 1: np.float64, 3: np.float16}[code]).view(dtype)
