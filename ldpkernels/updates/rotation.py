# SPDX-License-Identifier: Apache-2.0
"""A random rotation that costs as much as reading twice: signs and a Walsh-Hadamard transform."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ldpkernels import launch
from ldpkernels.keys import Key

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


def _check(x: Singles, key: Key) -> None:
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 1 or not x.flags.c_contiguous:
        raise TypeError("x must be a one-dimensional array of float32 in one piece")
    if not x.flags.writeable:
        raise ValueError("x is read-only: pass a copy")
    if x.size < 1 or x.size & (x.size - 1) or x.size > 2**30:
        raise ValueError(f"x has {x.size} numbers: pad it with zeros to a power of two, at most 2^30")
    if not isinstance(key, Key):
        raise TypeError("key must be an ldpkernels key that everyone knows, such as ldpkernels.key(round)")
