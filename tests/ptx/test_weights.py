# SPDX-License-Identifier: Apache-2.0
"""CUDA C++'s kernels of weights and integers, whose PTX is executed, against the scalar ones: every byte of tensors and
outputs and of what lies around them. `make ptx` runs these; known questions ask the same in short."""

import numpy as np
import pytest

pytest.importorskip("torch")
import ldpkernels
from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import integer_span
from ldpkernels.laws.ordinal_cldp_thresholds import integer_laws, weight_laws
from ldpkernels.laws.registry import MECHANISMS, law_table
from tests.conftest import KEYS
from tests.launches import BITS, bits_of, same
from tests.test_ordinal_cldp_bits import IDS, LAWS, integers

pytestmark = pytest.mark.exhaustive
KERNELS = [(kind.kernel, output) for kind in MECHANISMS.values() for output in ("values", kind.reported)]
KERNELS += [("two_point", "thresholds"), ("sign", "thresholds")]
KINDS = {kind.kernel: kind for kind in MECHANISMS.values()}
CIPHERS = ("philox", "chacha20")
# c, r, eps: ordinary; a handful of cells in bf16; draws of the rest that are shifted; no width; all coin and no coin.
RANGES = [(0.1, 0.7, 0.8), (1.0, 0.01, 4.0), (0.0, 1.0, 10.0), (-2.5, 0.0, 1.0), (0.3, 0.7, 20.0), (0.0, 2.0, 0.05)]
RANGES += [(3.0, 1e-30, 0.7), (-40.0, 3.0, 0.62)]


def weights(rng, dtype, n, c=0.0, r=1.0):
    """Numbers about a range, its ends, and as many bit patterns of any kind: NaN, infinities, subnormals."""
    bits = rng.integers(0, 2 ** (8 * BITS[dtype]().itemsize), n, dtype=BITS[dtype])
    near = rng.uniform(c - 1.2 * r, c + 1.2 * r, n)
    near[::9] = rng.choice([c - r, c, c + r], near[::9].size)
    bits = np.where(rng.random(n) < 0.7, bits_of(near, dtype), bits)
    bits[:5] = bits_of(np.array([np.inf, np.nan, -np.inf, 0.0, -0.0]), dtype)[: min(n, 5)]
    bits[:5] |= np.array([0, 1, 0, 1, 0], bits.dtype)[: min(n, 5)]  # another NaN, and the least number
    return bits


def launching(cuda, kernel, key):
    """What launches a kernel of the module."""
    return lambda output, spans, laws, out: cuda.launch(kernel, output, spans, laws, key.uint32())


def check(cuda, what, tensors, cipher, law=RANGES[0], first=0):
    """Tensors under one range."""
    (kernel, output), (c, r, eps), key = what, law, ldpkernels.Key(KEYS[cipher])
    n, law_output = len(tensors), "values" if output == "values" else "report"
    laws = law_table(KINDS[kernel](eps), [c] * n, [r] * n, [DTYPES[dtype] for dtype, *_ in tensors], law_output)

    same(launching(cuda, kernel, key), kernel, output, tensors, laws, key, first)


@pytest.fixture(params=KERNELS, ids=" ".join)
def what(request):
    return request.param


@pytest.mark.parametrize("cipher", CIPHERS)
def test_every_short_length_at_any_address(cuda, what, cipher):
    """More tensors than a launch takes."""
    rng = np.random.default_rng(1)
    places = [(d, n, (0, 1, 8 // bits().itemsize)[n % 3]) for d, bits in BITS.items() for n in range(71)]
    check(cuda, what, [(d, weights(rng, d, n), shift) for d, n, shift in places], cipher)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_steps_tails_and_chunks(cuda, what, cipher):
    """Whole steps and parts of them, beyond 2^32 blocks of the stream."""
    rng = np.random.default_rng(2)
    for dtype in BITS:
        sizes = (249, 505, 1000, 1024, 8192 + 3)
        parts = [(dtype, weights(rng, dtype, n), shift) for n in sizes for shift in (0, 1)]
        check(cuda, what, parts, cipher, first=2**35 - 8 * 40)


@pytest.mark.parametrize("law", RANGES)
def test_every_kind_of_law(cuda, what, law):
    rng = np.random.default_rng(3)
    check(cuda, what, [(dtype, weights(rng, dtype, 2000, *law[:2]), 0) for dtype in BITS], "philox", law)


@pytest.mark.parametrize("count", [1, 132])
def test_chunks_of_any_size(cuda, count):
    """Large ones where multiprocessors are few."""
    rng = np.random.default_rng(5)
    cuda.on_multiprocessors(count)
    try:
        parts = [("float32", weights(rng, "float32", 150_001), 0), ("bfloat16", weights(rng, "bfloat16", 100_003), 0)]
        check(cuda, ("two_point", "values"), parts, "philox")
    finally:
        cuda.on_multiprocessors(132)


@pytest.mark.parametrize("law", LAWS, ids=IDS)
def test_integers(law, device_key, cuda):
    alpha, m, mechanism = law
    v = integers(777, m, 5)
    laws = integer_laws(alpha, m, mechanism)
    for first, n in ((0, 777), (8, 1), (2**35 - 8, 100)):
        found, expected = np.full(n, 77), np.full(n, 78)
        spans = integer_span(v.ctypes.data, expected.ctypes.data, n)
        spans["first"] = first
        _native.launch("ordinal_cldp", "values", spans, laws, device_key.uint32(), "", 1)
        spans["out"] = found.ctypes.data
        cuda.launch("ordinal_cldp", "values", spans, laws, device_key.uint32())
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_many_tensors_of_every_dtype(rounding, device_key, cuda):
    """More spans than a launch holds, narrow and wide laws among them; some are empty."""
    rng, tensors = np.random.default_rng(0), []
    for i in range(60):
        x, dtype = rng.normal(0, 0.6, i * 7 % 50), list(DTYPES)[i % 4]
        x[:3] = [np.nan, np.inf, -1e-9][: min(3, len(x))]
        tensors.append((dtype, bits_of(x, dtype), 0))
    alphas, kinds = [0.5, 1e-3, 1e-11] * 20, [DTYPES[dtype] for dtype, *_ in tensors]
    laws = weight_laws(alphas, 1.0, 4, kinds, "exponential", rounding)
    same(launching(cuda, "ordinal_cldp", device_key), "ordinal_cldp", "values", tensors, laws, device_key)
