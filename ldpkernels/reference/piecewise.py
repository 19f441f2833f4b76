# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of the piecewise kernel, written from docs/mechanisms/piecewise.md and from nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ldpkernels.common.arrays import Array, Laws, Spans, Words
from ldpkernels.reference.ciphers import draws32
from ldpkernels.reference.memory import memory, weights
from ldpkernels.reference.two_point import thresholds

Cell: TypeAlias = Callable[[int, int, np.void], int]  # of a turned circle, a draw and a law


def piecewise(output: str, spans: Spans, laws: Laws, key: Words) -> None:
    """The kernel's interface: "values", "cells" or "turns" for every span, in memory."""
    for span, law in zip(spans, laws, strict=True):
        run_span(output, span, law, law, key, piecewise_cell)


def piecewise_cell(k: int, draw: int, law: np.void) -> int:
    """The cell in which a draw lies when the weight has turned the circle."""
    if draw < int(law["band_draws"]):
        place = draw * int(law["band_scale"]) // 2**32
    else:
        rest = (draw - int(law["band_draws"])) * 2 ** int(law["rest_shift"])
        place = int(law["band_end"]) + rest * int(law["rest_scale"]) // 2**32
    turned: int = (place + int(law["origin"]) + k) % int(law["places"])
    return turned >> int(law["cell_bits"])


def run_span(output: str, span: np.void, law: np.void, circle: np.void, key: Words, cell: Cell) -> None:
    """One span of a mechanism that reports cells of a circle."""
    n, first = int(span["numel"]), int(span["first"])
    bits, x = weights(int(span["data"]), n, int(span["dtype"]))
    k = thresholds(x, circle)
    if output == "turns":
        memory(int(span["out"]), n, np.dtype(np.int64))[:] = k + int(circle["origin"])
        return
    drawn = zip(k.tolist(), draws32(key, first, n).tolist(), strict=True)
    found = np.array([cell(ki, u, law) for ki, u in drawn], np.int64)
    if output == "cells":
        memory(int(span["out"]), n, np.dtype(np.uint8))[:] = found
    else:
        bits[:] = _as_bits(circle["lowest"] + circle["step"] * found, bits.dtype, int(span["dtype"]))


def _as_bits(values: Array, dtype: np.dtype[np.generic], code: int) -> Array:
    """Numbers of the format with this code, as its bits. They are exact in it, and in fp64."""
    if code == 2:  # bfloat16 is half a float32
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(dtype)
    return values.astype({0: np.float32, 1: np.float64, 3: np.float16}[code]).view(dtype)
