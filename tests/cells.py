# SPDX-License-Identifier: Apache-2.0
"""The kernels that report cells, called directly; and their law again, from the executed integers and nothing else."""

import numpy as np

from ldpkernels import Hybrid, Key, Piecewise, _native
from ldpkernels.common.dtypes import dtype_named
from ldpkernels.inputs.spans import span_table
from ldpkernels.reference import registry as reference
from tests.bfloat16 import SOME

N = 2**32
DTYPES = [np.dtype(np.float32), np.dtype(np.float64), *SOME, np.dtype(np.float16)]
MECHANISMS = {"piecewise": Piecewise, "hybrid": Hybrid}
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def cells_of(mechanism, c, r, eps, dtype, output):
    """The cells that the package computes."""
    return MECHANISMS[mechanism](eps).cells(float(c), float(r), dtype_named(np.dtype(dtype)), output)


def record(mechanism, cells):
    """A table of one law, as the kernels read it."""
    if mechanism == "hybrid":
        return np.array([cells.hybrid_record()], _native.LAWS["hybrid"])
    return np.array([cells.piecewise_record()], _native.LAWS["piecewise"])


def run(mechanism, output, x, cells, key, backend, first=0, threads=1):
    """ "values", "cells" or "turns" of the elements first, first + 1, ...."""
    data = np.array(x, order="C")
    kind = {"cells": np.uint8, "turns": np.int64}.get(output)
    out = data if output == "values" else np.zeros(data.size, kind)
    spans = span_table([data.ctypes.data], [out.ctypes.data], [data.size], [dtype_named(data.dtype)])
    spans["first"] = first
    words = key.uint32() if isinstance(key, Key) else key
    if output == "turns":
        mechanism, laws = "piecewise", record("piecewise", cells)
    else:
        laws = record(mechanism, cells)
    if backend == "reference":
        reference.launch(mechanism, output, spans, laws, words)
    else:
        _native.launch(mechanism, output, spans, laws, words, backend, threads)
    return out.view(BITS[out.itemsize]).copy() if output == "values" else out


def draws_below(circle, places):
    """How many draws have a place below each of `places`: the kernel's multiplication, inverted, for arrays."""
    places = np.asarray(places, np.uint64)
    end, scale = np.uint64(circle.band << circle.cell_bits), np.uint64(circle.band_scale)
    rest_scale = np.uint64(circle.rest_scale << circle.rest_shift)
    one, shift = np.uint64(1), np.uint64(32)
    in_band = np.minimum(((np.minimum(places, end) << shift) + (scale - one)) // scale, np.uint64(circle.band_draws))
    behind = np.maximum(places, end) - end
    rest = np.minimum(
        ((behind << shift) + (rest_scale - one)) // rest_scale, np.uint64(circle.draws - circle.band_draws)
    )
    everything = places >= np.uint64(circle.cells << circle.cell_bits)
    return np.where(everything, np.uint64(circle.draws), in_band + rest).astype(np.int64)


def counts_of(cells, turns):
    """An array of turns to how many of the 2^32 draws report each cell: [turn, cell]."""
    circle = cells.circle
    size, places = 1 << circle.cell_bits, circle.cells << circle.cell_bits
    turns = np.asarray(turns, np.int64)
    starts = (np.arange(circle.cells)[None, :] * size - turns[:, None]) % places
    ends = starts + size
    wrapped = ends > places
    counts = draws_below(circle, np.where(wrapped, ends - places, ends)) - draws_below(circle, starts)
    counts += wrapped * circle.draws
    if cells.coin is not None:
        raised = (turns - cells.origin - cells.k_lo).astype(np.uint64) << np.uint64(cells.coin.shift)
        upper = cells.coin.lowest + (raised * np.uint64(cells.coin.scale) >> np.uint64(32)).astype(np.int64)
        counts[:, cells.coin.upper] += upper
        counts[:, cells.coin.lower] += cells.coin.draws - upper
    return counts


def some_turns(cells, n=200, seed=0):
    """Turns at and around what matters, and others."""
    circle = cells.circle
    size = 1 << circle.cell_bits
    low, high = cells.origin + cells.k_lo, cells.origin + cells.k_hi
    marks = [low, high, cells.origin, *(low // size * size + i * size for i in range(3)), high - size, high // 2]
    near = [m + d for m in marks for d in (-2, -1, 0, 1, 2, size // 2)]
    return np.unique(np.clip([*near, *np.random.default_rng(seed).integers(low, high + 1, n)], low, high))
