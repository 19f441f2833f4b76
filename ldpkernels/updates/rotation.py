# SPDX-License-Identifier: Apache-2.0
"""A random rotation that costs as much as reading twice: signs and a Walsh-Hadamard transform."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ldpkernels import launch
from ldpkernels.calls.vector import vector_key
from ldpkernels.common.arrays import AnyArray
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.common.keys import Generator, Key
from ldpkernels.inputs import flat
from ldpkernels.inputs.containers import Buffers, Weights, collect
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.clipped_noise import MARGIN

if TYPE_CHECKING:
    import torch

Singles = NDArray[np.float32]


def rotate_(x: Singles, key: Key) -> Singles:
    """Rotate a vector in place: every number becomes a sum of all with random signs, over sqrt(n).

    A rotation keeps lengths, and makes all coordinates about the same size. It does not protect anything: the key is
    public, and the same for everyone whose vectors are to be added.

    Args:
        x: Contiguous fp32 numbers, a power of two of them: pad with zeros.
        key: The key of a round, known to the server and all its clients. It decides the signs and must not be used for
            anything else.

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
    """Undo `rotate_` with the same key, up to the rounding of fp32.

    >>> import numpy as np, ldpkernels
    >>> x = np.arange(4, dtype=np.float32)
    >>> rotate_back_(rotate_(x, ldpkernels.key(1)), ldpkernels.key(1))
    array([0., 1., 2., 3.], dtype=float32)
    """
    _check(x, key)
    launch.rotate(x, key, inverse=True)
    return x


def rotation_of(round_: str) -> Key:
    """The public key of a round's rotation, from words that say which round: everyone makes it for itself."""
    return Key((int.from_bytes(hashlib.sha256(f"rotation of {round_}".encode()).digest()[:8], "little"),))


@dataclass(frozen=True)
class Update:
    """An update's parts in contiguous memory of one device, None for the host, and the key of its client's call."""

    values: list[AnyArray]
    device: torch.device | None
    key: Key


def update_of(function: str, update: Weights, dimension: int, generator: Generator, buffers: Buffers | None) -> Update:
    """An update of `dimension` weights in all, where whole vectors of its device are worked on."""
    tensors, _ = collect(update, buffers, draws=function, reads=function)
    flat.formats(tensors)
    if sum(flat.sizes(tensors)) != dimension:
        raise ValueError(f"the update has {sum(flat.sizes(tensors))} weights, and the law is of {dimension}")
    key = vector_key(tensors, generator)
    return Update(*flat.in_reach(tensors.values), key)


def rotated(update: Update, padded: int, norm: float, key: Key) -> tuple[AnyArray, float]:
    """An update as one padded and rotated vector, and what it is to be multiplied by to be within `norm`.

    Where a weight or the norm is not a number, the vector is cleaned and clipped on the host first: NaN counts as 0.
    """
    x = launch.empty(padded, np.float32, update.device)
    x[:] = 0
    start = 0
    for value in update.values:
        start = _put(x, start, value)
    launch.rotate(x, key)
    spans = span_table([flat.address(x)], [0], [padded], [DTYPES["float32"]])
    above = launch.norm(spans, update.device) * MARGIN
    if not math.isfinite(above):
        x[:] = 0
        cleaned = flat.clipped(flat.float64s(flat.in_host_memory(update.values)), norm)
        _put(x, 0, launch.copied(cleaned, update.device))
        launch.rotate(x, key)
        above = launch.norm(spans, update.device) * MARGIN
    return x, min(1.0, norm / above if above else 1.0)


def _put(x: AnyArray, start: int, part: AnyArray) -> int:
    """Write a part to fp32 numbers on its device, from `start` on, and return where it ends."""
    end = start + math.prod(part.shape)
    if not isinstance(x, np.ndarray):
        assert not isinstance(part, np.ndarray)
        x[start:end].copy_(part.reshape(-1))
        return end
    with np.errstate(over="ignore"):
        x[start:end] = (part if isinstance(part, np.ndarray) else part.float().numpy()).reshape(-1)
    return end


def _check(x: Singles, key: Key) -> None:
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 1 or not x.flags.c_contiguous:
        raise TypeError("x must be a one-dimensional array of float32 in one piece")
    if not x.flags.writeable:
        raise ValueError("x is read-only: pass a copy")
    if x.size < 1 or x.size & (x.size - 1) or x.size > 2**30:
        raise ValueError(f"x has {x.size} numbers: pad it with zeros to a power of two, at most 2^30")
    if not isinstance(key, Key):
        raise TypeError("key must be an ldpkernels key that everyone knows, such as ldpkernels.key(round)")
