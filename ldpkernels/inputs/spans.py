# SPDX-License-Identifier: Apache-2.0
"""The kernels' description of tensors, and where their elements lie in the random stream (docs/rng.md)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

from ldpkernels import _native
from ldpkernels.common.arrays import Spans
from ldpkernels.common.dtypes import Dtype

INTEGERS = 4  # a span's dtype where its elements are int64


def first_elements(sizes: Sequence[int]) -> list[int]:
    """Where each tensor starts in the stream: at the multiple of 8 that follows the one before."""
    return [0, *accumulate([(size + 7) // 8 * 8 for size in sizes])][: len(sizes)]


def span_table(addresses: Sequence[int], outs: Sequence[int], sizes: Sequence[int], dtypes: Sequence[Dtype]) -> Spans:
    """The kernels' description of the tensors."""
    codes = [dtype.code for dtype in dtypes]
    fields = chain.from_iterable(zip(addresses, outs, sizes, first_elements(sizes), codes, strict=True))
    table = bytearray(struct.pack(f"{5 * len(codes)}q", *fields))  # twice as fast as np.array
    return np.frombuffer(table, _native.SPAN)


def integer_span(address: int, out: int, size: int) -> Spans:
    """The kernels' description of one tensor of integers."""
    return np.array([(address, out, size, 0, INTEGERS)], dtype=_native.SPAN)
