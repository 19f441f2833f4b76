# SPDX-License-Identifier: Apache-2.0
"""CUDA C++'s kernels of weights, whose PTX is executed, against the scalar ones: every byte of tensors and outputs and
of what lies around them. `make ptx` runs these; known questions ask the same in short."""

import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.laws.registry import MECHANISMS, law_table
from tests.conftest import KEYS

pytestmark = pytest.mark.exhaustive
KERNELS = [(kind.kernel, output) for kind in MECHANISMS.values() for output in ("values", kind.reported)]
KERNELS += [("two_point", "thresholds"), ("sign", "thresholds")]
KINDS = {kind.kernel: kind for kind in MECHANISMS.values()}
CIPHERS = ("philox", "chacha20")
BITS = (np.uint32, np.uint64, np.uint16, np.uint16)  # of f32, f64, bf16, f16
# c, r, eps: ordinary; a handful of cells in bf16; draws of the rest that are shifted; no width; all coin and no coin.
RANGES = [(0.1, 0.7, 0.8), (1.0, 0.01, 4.0), (0.0, 1.0, 10.0), (-2.5, 0.0, 1.0), (0.3, 0.7, 20.0), (0.0, 2.0, 0.05)]
RANGES += [(3.0, 1e-30, 0.7), (-40.0, 3.0, 0.62)]


def narrowed(x, dtype):
    """The bits of numbers in a format, by their upper half where NumPy does not have it."""
    if dtype == 2:
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype((np.float32, np.float64, None, np.float16)[dtype]).view(BITS[dtype])


def weights(rng, dtype, n, c=0.0, r=1.0):
    """Numbers about a range, its ends, and as many bit patterns of any kind: NaN, infinities, subnormals."""
    bits = rng.integers(0, 2 ** (8 * BITS[dtype]().itemsize), n, dtype=BITS[dtype])
    near = rng.uniform(c - 1.2 * r, c + 1.2 * r, n)
    near[::9] = rng.choice([c - r, c, c + r], near[::9].size)
    with np.errstate(over="ignore"):
        bits = np.where(rng.random(n) < 0.7, narrowed(near, dtype), bits)
    exponent = {0: 0x7F800000, 1: 0x7FF0000000000000, 2: 0x7F80, 3: 0x7C00}[dtype]
    sign = 1 << (8 * bits.itemsize - 1)
    special = np.array([exponent, exponent | 1, sign | exponent, 1, sign], np.uint64).astype(bits.dtype)
    bits[:5] = special[: min(n, 5)]
    return bits


def run(launch, output, parts, laws, first):
    """Weights as (dtype, bits, bytes behind an aligned place) in one buffer, and all bytes afterwards."""
    sizes = [shift + bits.nbytes + 64 for _, bits, shift in parts]
    starts = np.cumsum([0, *sizes]) // 16 * 16
    memory = np.full(starts[-1] + 4096, 0xA5, np.uint8)
    data = memory[-memory.ctypes.data % 16 :]
    each = {"bits": 1, "cells": 1, "thresholds": 8}.get(output, 0)
    out = np.full(sum(each * bits.size + 64 for _, bits, _ in parts) + 16, 0x5A, np.uint8)
    rows, place = [], -out.ctypes.data % 16
    for (dtype, bits, shift), start in zip(parts, starts, strict=False):
        at = 32 + start + shift
        data[at : at + bits.nbytes] = bits.view(np.uint8)
        behind = shift if each == 1 else 0
        rows.append((data.ctypes.data + at, out.ctypes.data + place + behind, bits.size, first, dtype))
        place += (each * bits.size + 63) // 16 * 16
        first += -(-bits.size // 8) * 8
    launch(output, np.array(rows, _native.SPAN), laws)
    return data.tobytes(), out.tobytes()


def same(cuda, what, parts, cipher, law=RANGES[0], first=0):
    (kernel, output), (c, r, eps) = what, law
    kinds, key = list(DTYPES.values()), np.array(KEYS[cipher], np.uint64).view(np.uint32)
    n, law_output = len(parts), "values" if output == "values" else "report"
    laws = law_table(KINDS[kernel](eps), [c] * n, [r] * n, [kinds[dtype] for dtype, *_ in parts], law_output)

    def native(output, spans, laws):
        _native.launch(kernel, output, spans, laws, key, "scalar", 1)

    def executed(output, spans, laws):
        cuda.launch(kernel, output, spans, laws, key)

    assert run(executed, output, parts, laws, first) == run(native, output, parts, laws, first)


@pytest.fixture(params=KERNELS, ids=" ".join)
def what(request):
    return request.param


@pytest.mark.parametrize("cipher", CIPHERS)
def test_every_short_length_at_any_address(cuda, what, cipher):
    """More tensors than a launch takes."""
    rng = np.random.default_rng(1)
    places = [(d, n, (0, bits().itemsize, 8)[n % 3]) for d, bits in enumerate(BITS) for n in range(71)]
    same(cuda, what, [(d, weights(rng, d, n), shift) for d, n, shift in places], cipher)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_steps_tails_and_chunks(cuda, what, cipher):
    """Whole steps and parts of them, beyond 2^32 blocks of the stream."""
    rng = np.random.default_rng(2)
    for dtype, bits in enumerate(BITS):
        sizes = (249, 505, 1000, 1024, 8192 + 3)
        parts = [(dtype, weights(rng, dtype, n), shift) for n in sizes for shift in (0, bits().itemsize)]
        same(cuda, what, parts, cipher, first=2**35 - 8 * 40)


@pytest.mark.parametrize("law", RANGES)
def test_every_kind_of_law(cuda, what, law):
    rng = np.random.default_rng(3)
    same(cuda, what, [(dtype, weights(rng, dtype, 2000, *law[:2]), 0) for dtype in range(4)], "philox", law)


@pytest.mark.parametrize("count", [1, 132])
def test_chunks_of_any_size(cuda, count):
    """Large ones where multiprocessors are few."""
    rng = np.random.default_rng(5)
    cuda.on_multiprocessors(count)
    try:
        parts = [(0, weights(rng, 0, 150_001), 0), (2, weights(rng, 2, 100_003), 0)]
        same(cuda, ("two_point", "values"), parts, "philox")
    finally:
        cuda.on_multiprocessors(132)
