# SPDX-License-Identifier: Apache-2.0
"""What CUDA C++'s functions decide of weights and draws where a decision turns, against the definition: those of
tests/ptx/decisions.cu, whose PTX is executed."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("torch")
from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.laws.two_point import two_point_law
from tests.cells import MECHANISMS, record
from tests.ptx import cuda
from tests.ptx.cuda import of
from tests.ptx.test_weights import RANGES

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def decisions():
    if reason := cuda.lacking():
        pytest.skip(reason)
    return cuda.machine(cuda.DECISIONS, cuda.ARCH)


@pytest.fixture(scope="module", params=MECHANISMS)
def mechanism(request):
    return request.param


def cells_of(mechanism, c, r, eps, dtype, output):
    kind = list(DTYPES.values())[dtype]
    return MECHANISMS[mechanism](eps).cells(c, r, kind, "values" if output == "values" else "report")


SURE = 0.5625  # csrc/cuda/one_bit_plan.h
ENDS = 2**31 - 1
# center, slope, k_lo, k_hi: ordinary; ranges far from zero; one threshold; a few; not about zero; the steepest and the
# flattest slopes that there are, where the rise is subnormal or the difference overflows.
LAWS = [
    (0.125, 2.0**30, -(2**30) - 7, 2**30 + 9),
    (0.0, 2.0**31, -ENDS, ENDS),
    (1e4, 2.0**34, -(2**30), 2**30),
    (-3e37, 2.0**-60, -ENDS, ENDS),
    (1.0, 1.0, -123456789, -123456789),
    (0.0, 3.0, 2**30, 2**30 + 130),
    (0.0, 2.0**20, 2**31 - 4099, ENDS),
    (0.25, 2.0**25, 5, 2**28),
    (0.0, 2.0**-20, -5, 65537),
    (0.0, 2.0**127, -ENDS, ENDS),
    (3e38, 2.0**-97, -ENDS, ENDS),
    (0.0, 2.0**-120, -ENDS, ENDS),
]


@pytest.fixture(scope="module")
def guess(decisions):
    """The guesses of pairs of weights and high draws under one law."""

    def run(law, x, draws):
        x, draws, out = (np.ascontiguousarray(a, np.float32) for a in (x, draws, np.zeros(x.size)))
        places = (ctypes.c_void_p(a.ctypes.data) for a in (law, x, draws, out))
        decisions.call(decisions.library.guess, [of(x), of(draws), of(out)], *places, ctypes.c_int64(x.size))
        return out

    return run


def all_laws():
    """LAWS, and what the host makes of ranges of every size and place."""
    rng = np.random.default_rng(5)
    for law in LAWS:
        yield (law[0], law[1], law[0], *law[2:], 0, 1)
    for _ in range(300):
        r, eps = 2.0 ** rng.uniform(-40, 30), 2.0 ** rng.uniform(-6, 5)
        c = rng.choice([0.0, r * rng.normal(), r * 2.0 ** rng.uniform(0, 20)])
        dtype = DTYPES[rng.choice(["float32", "bfloat16"])]
        yield two_point_law(float(c), float(r), float(eps), dtype, rng.choice(["values", "report"]))[:7]


def numbers_about(law, rng, n=400):
    """Weights within the range, at its ends and beyond, to the last number of the format; none is infinite."""
    center, slope, _, k_lo, k_hi = (float(v) for v in law[:5])
    with np.errstate(all="ignore"):
        ends = [center + k / slope for k in (k_lo, k_hi, 0, k_lo + 70, k_hi - 70)]
        x = np.concatenate([rng.uniform(min(ends), max(ends), n), np.repeat(ends, 20), rng.normal(center, 1, 20)])
        x = np.clip(x, -3.4e38, 3.4e38).astype(np.float32)
        for _ in range(3):
            x = np.where(rng.random(x.size) < 0.5, np.nextafter(x, rng.choice([-3e38, 3e38], x.size)), x)
    return np.concatenate([x, [3.4e38, -3.4e38, 0, -0.0, 1e-45]]).astype(np.float32)


def test_a_guess_is_right_or_not_sure(guess):
    """Against thresholds: for draws that tie, those beside them and others. Nearer than a sixteenth to the truth."""
    rng, furthest, tie, checked = np.random.default_rng(6), 0.0, 0.0, 0
    for row in all_laws():
        law, x = np.array([row], _native.LAWS["two_point"]), numbers_about(row, rng)
        k = np.zeros(x.size, np.int64)
        spans = np.array([(x.ctypes.data, k.ctypes.data, x.size, 0, 0)], _native.SPAN)
        _native.launch("two_point", "thresholds", spans, law, np.zeros(2, np.uint32), "scalar", 1)
        k -= 2**31
        with np.errstate(over="ignore"):
            finite = np.isfinite(x - np.float32(row[0]))  # where it is not, a kernel asks for the threshold
        draws = np.concatenate([*((k >> 16) + d for d in (-2, -1, 0, 1, 2)), rng.integers(-(2**15), 2**15, x.size)])
        high = np.clip(draws, -(2**15), 2**15 - 1)
        k, finite = np.tile(k, 6), np.tile(finite, 6)
        found = guess(law, np.tile(x, 6), high)[finite]
        truth = (k / 2**16 - high - 0.5)[finite]
        sure = np.abs(found) > SURE
        upper, lower = high[finite] < k[finite] >> 16, high[finite] > k[finite] >> 16
        assert (found > 0)[sure & upper].all()
        assert (found < 0)[sure & lower].all()
        assert not sure[~upper & ~lower].any()
        tie = max(tie, np.abs(found)[~upper & ~lower].max(initial=0))
        near = np.abs(truth) < 4
        furthest = max(furthest, np.abs(found - truth)[near].max(initial=0))
        assert sure[np.abs(truth) > SURE + 1 / 16].all()
        checked += finite.sum()
    assert checked > 900_000
    assert furthest < 1 / 16
    assert tie > 0.5, "half a draw would have been enough: the test is too weak to show a margin that is too small"


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
    assert {2**24 + 1, -(2**24) - 1} <= seen, "an end that is not a number of fp32"


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
