# SPDX-License-Identifier: Apache-2.0
"""A random rotation that costs as much as reading twice: signs and a Walsh-Hadamard transform."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ldpkernels import launch
from ldpkernels.arrays import AnyArray
from ldpkernels.dtypes import DTYPES
from ldpkernels.inputs import flat
from ldpkernels.inputs.containers import Buffers, Weights, collect
from ldpkernels.inputs.spans import span_table
from ldpkernels.keys import Generator, Key
from ldpkernels.laws.clipped_noise import MARGIN
from ldpkernels.vector import vector_key

Singles = NDArray[np.float32]


def rotate_(x: Singles, key: Key) -> Singles:
    """Rotate a vector in place: every number becomes a sum of all with random signs, over sqrt(n).

    A rotation changes no length, and makes all coordinates of about the same size. It is no privacy: the key is public,
    and the same for everyone whose vectors are to be added.

    Args:
        x: fp32 numbers in one piece, a power of two of them: pad with zeros.
        key: Of a round, known to the server and all its clients. It says the signs and must not be used for anything
            else.

    >>> import numpy as np, ldpkernels
    >>> x = np.zeros(1024, np.float32)
    >>> x[7] = 3.0
    >>> rotated = rotate_(x, ldpkernels.key(1))
    >>> float(abs(rotated).min()), float(abs(rotated).max())
    (0.09375, 0.09375)
    """
    _check(x, key)
    launch.rotate(x, key)
    return x


def rotate_back_(x: Singles, key: Key) -> Singles:
    """Undo `rotate_` with the same key, up to fp32's rounding.

    >>> import numpy as np, ldpkernels
    >>> x = np.arange(4, dtype=np.float32)
    >>> rotate_back_(rotate_(x, ldpkernels.key(1)), ldpkernels.key(1))
    array([0., 1., 2., 3.], dtype=float32)
    """
    _check(x, key)
    launch.rotate(x, key, inverse=True)
    return x


def parts_of(
    function: str, update: Weights, dimension: int, generator: Generator, buffers: Buffers | None
) -> tuple[list[AnyArray], Key]:
    """An update's parts in host memory, `dimension` weights in all, and the key of its client's call."""
    tensors, _ = collect(update, buffers, draws=function, reads=function)
    flat.formats(tensors)
    if sum(flat.sizes(tensors)) != dimension:
        raise ValueError(f"the update has {sum(flat.sizes(tensors))} weights, and the law is of {dimension}")
    key = vector_key(tensors, generator)
    return flat.in_host_memory(tensors.values), key


def rotated(values: Sequence[AnyArray], padded: int, norm: float, key: Key) -> tuple[Singles, float]:
    """Parts in host memory as one padded and rotated vector, and what it is to be multiplied by to be within `norm`.

    Where a weight or the norm is no number, the vector is cleaned and clipped first: NaN counts as 0.
    """
    x = np.zeros(padded, np.float32)
    start = 0
    with np.errstate(over="ignore"):
        for value in values:
            part = value.reshape(-1) if isinstance(value, np.ndarray) else value.float().numpy().reshape(-1)
            x[start : start + part.size] = part
            start += part.size
    rotate_(x, key)
    spans = span_table([x.ctypes.data], [0], [padded], [DTYPES["float32"]])
    above = launch.norm(spans) * MARGIN
    if not math.isfinite(above):
        x[:] = 0
        x[:start] = flat.clipped(flat.float64s(values), norm)
        rotate_(x, key)
        above = launch.norm(spans) * MARGIN
    return x, min(1.0, norm / above if above else 1.0)


def _check(x: Singles, key: Key) -> None:
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 1 or not x.flags.c_contiguous:
        raise TypeError("x must be a one-dimensional array of float32 in one piece")
    if not x.flags.writeable:
        raise ValueError("x is read-only: pass a copy")
    if x.size < 1 or x.size & (x.size - 1) or x.size > 2**30:
        raise ValueError(f"x has {x.size} numbers: pad it with zeros to a power of two, at most 2^30")
    if not isinstance(key, Key):
        raise TypeError("key must be an ldpkernels key that everyone knows, such as ldpkernels.key(round)")
