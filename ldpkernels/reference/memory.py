# SPDX-License-Identifier: Apache-2.0
"""A span's memory as arrays."""

from __future__ import annotations

import ctypes

import numpy as np

from ldpkernels.common.arrays import Array
from ldpkernels.common.dtypes import DTYPES


def memory(address: int, n: int, dtype: np.dtype[np.generic]) -> Array:
    """n elements at an address."""
    if n == 0:
        return np.empty(0, dtype)
    found: Array = np.frombuffer(memoryview((ctypes.c_char * (n * dtype.itemsize)).from_address(address)), dtype)
    return found


def weights(address: int, n: int, code: int) -> tuple[Array, Array]:
    """The memory of a tensor as bits, and its numbers in the format in which they are compared."""
    name = next(d.name for d in DTYPES.values() if d.code == code)
    bits = memory(address, n, np.dtype({4: np.uint32, 8: np.uint64, 2: np.uint16}[DTYPES[name].itemsize]))
    if name == "bfloat16":
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    numbers = bits.view(name)
    return bits, numbers.astype(np.float32) if name == "float16" else numbers
