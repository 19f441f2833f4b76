# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of piecewise and hybrid, whose PTX tests/ptx executes, against the scalar ones, bit for bit."""

import ctypes

import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from tests.cells import MECHANISMS, record
from tests.ptx.cuda import of
from tests.test_cuda_static import DTYPES as BITS
from tests.test_cuda_static import KEYS, weights

NAMES = list(DTYPES)
OUTPUTS = ("values", "cells")
# c, r, eps: ordinary; a handful of cells in bf16; draws of the rest that are shifted; no width; all coin and no coin.
RANGES = [(0.1, 0.7, 0.8), (1.0, 0.01, 4.0), (0.0, 1.0, 10.0), (-2.5, 0.0, 1.0), (0.3, 0.7, 20.0), (0.0, 2.0, 0.05)]
RANGES += [(3.0, 1e-30, 0.7), (-40.0, 3.0, 0.62)]


@pytest.fixture(scope="module", params=MECHANISMS)
def mechanism(request):
    return request.param


def cells_of(mechanism, c, r, eps, dtype, output):
    return MECHANISMS[mechanism](eps).cells(c, r, DTYPES[NAMES[dtype]], "values" if output == "values" else "report")


def run(kernel, output, parts, laws, cipher, first=0):
    """Weights as (dtype, bits, bytes behind an aligned place) in one buffer, and all bytes afterwards."""
    sizes = [shift + bits.nbytes + 64 for _, bits, shift in parts]
    starts = np.cumsum([0, *sizes]) // 16 * 16
    memory = np.full(starts[-1] + 4096, 0xA5, np.uint8)
    data = memory[-memory.ctypes.data % 16 :]
    out = np.full(sum(bits.size + 64 for _, bits, _ in parts) + 16, 0x5A, np.uint8)
    rows, place = [], -out.ctypes.data % 16
    for (dtype, bits, shift), start in zip(parts, starts, strict=False):
        at = 32 + start + shift
        data[at : at + bits.nbytes] = bits.view(np.uint8)
        rows.append((data.ctypes.data + at, out.ctypes.data + place + shift, bits.size, first, dtype))
        place += (bits.size + 63) // 16 * 16
        first += -(-bits.size // 8) * 8
    kernel(output, np.array(rows, _native.SPAN), laws, KEYS[cipher])
    return data.tobytes(), out.tobytes()


def same(cuda, mechanism, output, parts, law, cipher, **where):
    laws = np.concatenate([record(mechanism, cells_of(mechanism, *law, dtype, output)) for dtype, _, _ in parts])

    def native(output, spans, laws, key):
        _native.launch(mechanism, output, spans, laws, key, "scalar", 1)

    def executed(output, spans, laws, key):
        cuda.launch(mechanism, output, spans, laws, key)

    expected = run(native, output, parts, laws, cipher, **where)
    assert run(executed, output, parts, laws, cipher, **where) == expected


@pytest.mark.parametrize("cipher", KEYS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_every_short_length_at_any_address(cuda, mechanism, output, cipher):
    """More tensors than a launch takes."""
    rng = np.random.default_rng(1)
    places = [(d, n, (0, bits().itemsize, 8)[n % 3]) for d, bits in enumerate(BITS) for n in range(71)]
    same(cuda, mechanism, output, [(d, weights(rng, d, n), shift) for d, n, shift in places], RANGES[0], cipher)


@pytest.mark.parametrize("cipher", KEYS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_steps_tails_and_chunks(cuda, mechanism, output, cipher):
    """Whole steps and parts of them, beyond 2^32 blocks of the stream."""
    rng = np.random.default_rng(2)
    for dtype, bits in enumerate(BITS):
        sizes = (249, 505, 1000, 1024, 8192 + 3)
        parts = [(dtype, weights(rng, dtype, n), shift) for n in sizes for shift in (0, bits().itemsize)]
        same(cuda, mechanism, output, parts, RANGES[0], cipher, first=2**35 - 8 * 40)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("law", RANGES)
def test_every_kind_of_law(cuda, mechanism, output, law):
    """Weights across the range, at its ends and beyond, and every bit pattern: NaN, infinities, subnormals."""
    rng, parts = np.random.default_rng(3), []
    c, r, _ = law
    for dtype in range(4):
        bits = weights(rng, dtype, 2000)
        near = rng.uniform(c - 1.2 * r, c + 1.2 * r, 2000)
        near[::9] = rng.choice([c - r, c, c + r], near[::9].size)
        if dtype == 2:
            ordinary = (near.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            ordinary = near.astype((np.float32, np.float64, None, np.float16)[dtype]).view(BITS[dtype])
        parts.append((dtype, np.where(rng.random(2000) < 0.8, ordinary, bits), 0))
    same(cuda, mechanism, output, parts, law, "philox")


def test_every_edge_of_a_law(mechanism, decisions):
    """Weights and draws where a decision turns: the ends of the range, also as integers that are no numbers of fp32,
    the first and the last draw of the band, of the rest, of the coin and of its upper side."""
    decide, seen = getattr(decisions.library, f"decide_{mechanism}"), set()
    for c, r, eps in RANGES:
        cells = cells_of(mechanism, c, r, eps, 0, "values")
        law = record(mechanism, cells)
        circle = law["piecewise"] if mechanism == "hybrid" else law
        for k_lo, k_hi in ((0, 0), (-(2**24) - 1, 2**24 + 1), (-(2**25) - 3, 2**25 + 3)):
            if r:  # of the circle's own size, and of others within it
                circle["k_lo"] = max(int(circle["k_lo"][0]), k_lo or int(circle["k_lo"][0]))
                circle["k_hi"] = min(int(circle["k_hi"][0]), k_hi or int(circle["k_hi"][0]))
            ends = np.array([circle["k_lo"][0], circle["k_hi"][0], 0], np.float64)
            x = np.float32(c) + (ends / circle["slope"]).astype(np.float32)
            for _ in range(2):
                x = np.concatenate([x, np.nextafter(x, np.float32(-3e38)), np.nextafter(x, np.float32(3e38))])
            x = np.unique(np.concatenate([x, np.float32([np.inf, -np.inf, 0.0, c])]))
            edges = [0, int(circle["band_draws"][0])]
            if cells.coin is not None:
                last = int(law["last_draw"][0])
                raised = (0, int(circle["k_hi"][0] - circle["k_lo"][0]), -int(circle["k_lo"][0]))
                edges += [last, *(last + 1 + cells.coin.upper_draws(k) for k in raised)]
            draws = np.array([(e + d) % 2**32 for e in edges for d in (-2, -1, 0, 1, 2)], np.uint32)
            x, draws = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(np.append(x, np.float32(np.nan)), draws))
            turns, found = np.zeros((2, x.size), np.int32), np.zeros((2, x.size), np.uint32)
            arrays = x, draws, turns, found
            places = [ctypes.c_void_p(a.ctypes.data) for a in (law, *arrays)]
            decisions.call(decide, map(of, arrays), *places, ctypes.c_int64(x.size))
            assert np.array_equal(*turns)
            assert np.array_equal(*found)
            seen |= set(turns[0])
    assert {2**24 + 1, -(2**24) - 1} <= seen, "an end that is no number of fp32"


def test_the_laws_are_what_the_kernels_take_them_for(mechanism):
    """A NaN is taken for the center, which turns the circle by nothing; a coin never has all of its draws above."""
    rng = np.random.default_rng(4)
    for _ in range(60):
        r, eps = 2.0 ** rng.uniform(-20, 8), 2.0 ** rng.uniform(-4, 4)
        c = rng.choice([0.0, r * rng.normal(), r * 2.0 ** rng.uniform(0, 12)])
        for dtype, output in ((0, "cells"), (0, "values"), (1, "values"), (2, "values")):
            cells = cells_of(mechanism, float(c), float(r), float(eps), dtype, output)
            _, _, fallback, k_lo, k_hi, *_ = law = cells.piecewise_record()
            assert fallback == law[0]
            assert k_lo <= 0 <= k_hi
            assert 0 < law[12] < 32, "the bits of a cell"
            if cells.coin is not None:
                assert cells.circle.draws + cells.coin.upper_draws(k_hi - k_lo) < 2**32
