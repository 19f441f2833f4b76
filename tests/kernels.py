# SPDX-License-Identifier: Apache-2.0
"""Kernels called directly, with a law and a place in the stream of the test's own."""

import numpy as np

from ldpkernels import _native
from ldpkernels.common.dtypes import dtype_named
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.two_point import two_point_law
from ldpkernels.reference import two_point as reference

FULL = (0.0, 1.0, 0.0, -(2**31) + 1, 2**31 - 1)  # k = round(x), for every threshold that there is
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
REPORT = 8  # elements a byte


def run(output, x, law, key, backend, first=0, threads=1):
    """ "values", "bits" or "thresholds" of the elements first, first + 1, ... ; `law` is a tuple of 5 or 7 numbers."""
    law = (*law, 0x1111, 0x2222)[:7]
    data = np.array(x, order="C")
    shape = {"values": data.size, "bits": (data.size + 7) // REPORT, "thresholds": data.size}[output]
    out = data if output == "values" else np.zeros(shape, {"bits": np.uint8, "thresholds": np.int64}[output])
    spans = span_table([data.ctypes.data], [out.ctypes.data], [data.size], [dtype_named(data.dtype)])
    spans["first"] = first
    laws = np.array([law], _native.LAWS["two_point"])
    if backend == "reference":
        reference.two_point(output, spans, laws, key.uint32())
    else:
        _native.launch("two_point", output, spans, laws, key.uint32(), backend, threads)
    return out.view(BITS[out.itemsize]).copy() if output == "values" else out


def draws(key, first, n, isa="scalar"):
    """The 32-bit draws of elements first, ..., recomputed from the keystreams by docs/rng.md."""
    per_block = 32 if len(key.words) == 4 else 8
    block, skip = divmod(first, per_block)
    halves = []
    for stream in (0, 1):
        words = _native.keystream(key.uint32(), stream, block, (skip + n + per_block - 1) // per_block, isa)
        halves.append(words.astype("<u4").view("<i2")[skip : skip + n].astype(np.int64))
    return halves[0] * 2**16 + (halves[1] & 0xFFFF)


def law_of(c, r, eps, dtype, output):
    """The law that the package computes."""
    return two_point_law(float(c), float(r), float(eps), dtype_named(dtype), output)


def unpack(bits, n):
    """The bits of a report as booleans."""
    return np.unpackbits(bits, bitorder="little")[:n].astype(bool)
