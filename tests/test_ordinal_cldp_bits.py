# SPDX-License-Identifier: Apache-2.0
# The same bits on every instruction set as from the reference: every law, cipher, dtype, length and place.
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import integer_span, span_table
from ldpkernels.laws.ordinal_cldp_thresholds import integer_laws, law_row, weight_laws
from ldpkernels.reference import ordinal_cldp as reference_cldp
from tests.conftest import ISAS

BIG = 10**10
LAWS = [
    (4.3e-7, BIG, "exponential"),  # 13 low digits
    (4.3e-7, BIG, "laplace"),
    (7e-8, 2**40, "exponential"),  # 16
    (6e-9, 2**40, "exponential"),  # 20: wide, a draw more
    (1e-12, 10**18, "laplace"),
    (2e-18, 2**62 - 1, "exponential"),  # 51
    (1e-40, 2**62 - 1, "exponential"),  # uniform
    (1.0, 5, "exponential"),
    (0.03, 64, "exponential"),  # a middle table of four values
    (1e-3, 5000, "laplace"),
    (3.0, 0, "laplace"),
    (3.0, 0, "exponential"),
    (1e308, 9, "exponential"),
    (40.0, BIG, "laplace"),
]
IDS = [f"{mechanism}-{alpha:g}-{m:g}" for alpha, m, mechanism in LAWS]


def integers(n, m, seed=0):
    """Values all over the box, many of them at its ends, where most steps are rejected."""
    v = np.random.default_rng(seed).integers(-m, m, n, endpoint=True)
    v[::3] = m
    v[1::7] = -m
    return v


def run(v, law, key, backend, first=0, threads=1):
    """The kernel on integers that stand at `first` in the stream."""
    return launched(v, integer_laws(*law), key, backend, first, threads)


def launched(v, laws, key, backend, first=0, threads=1):
    out = np.full(v.shape, 77)
    spans = integer_span(v.ctypes.data, out.ctypes.data, v.size)
    spans["first"] = first
    if backend == "reference":
        reference_cldp.ordinal_cldp("values", spans, laws, key.uint32())
    else:
        _native.launch("ordinal_cldp", "values", spans, laws, key.uint32(), backend, threads)
    return out


@pytest.mark.parametrize("law", LAWS, ids=IDS)
def test_every_law_equals_the_reference(law, key):
    """The first 50 integers; and the instruction sets on many more."""
    v = integers(20_000, law[1])
    expected = run(v, law, key, ISAS[-1], first=8)
    assert np.array_equal(run(v[:50].copy(), law, key, "reference", first=8), expected[:50])
    for isa in ISAS[:-1]:
        assert np.array_equal(run(v, law, key, isa, first=8), expected), isa


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("low", [7, 52])
@pytest.mark.parametrize("what", ["upper", "middle", "loss"])
def test_every_digit_decides(what, low, attempt, key):
    """Thresholds that are the drawn numbers, or one more, or differ in one digit: sampled as the reference does.

    In a first attempt, or in the one behind a tail.
    """
    v = np.full(16, 5 * 10**15)
    law = np.array([law_row(1e-3, 10**16, "laplace")], _native.LAWS["ordinal_cldp"])
    law["low"], law["wide"], law["keep"] = low, low > 16, 2**15
    unlike = 0
    for element in range(16):
        draw = reference_cldp.draws(key.uint32(), element)
        begin, column_before = 8 * attempt, draw(0) % 64
        word = draw(begin)
        if attempt and word % 64 == column_before:
            continue
        first, leading, further = {
            "upper": (word >> 6, 10, 2),
            "middle": (word >> 22, 10, 4),
            "loss": (word >> 49, 15, 6),
        }[what]
        number = (first % 2**leading << 128 | draw(begin + further) << 64 | draw(begin + further + 1)) >> leading
        results = []
        for threshold in (number, number + 1, number ^ 1 << 60, number ^ 1 << 100, number ^ 1):
            changed = law.copy()
            entry = changed["entries"][0].view(np.uint16)
            if attempt:
                changed["thresholds"][0][2 * column_before : 2 * column_before + 2] = 0
                entry[column_before] = changed["tail"][0]
            halves = threshold >> 64, threshold % 2**64
            if what == "loss":
                changed["losses"][0][:2] = halves  # of digit 0 alone, which half of the elements have
                changed["keep"] = (threshold >> 113) + 1  # the least that may be: a draw just below it is asked further
            else:
                table = int(what == "middle")
                column = 64 * table + (word >> 16 * table) % 64
                changed["thresholds"][0][2 * column : 2 * column + 2] = halves
                entry[column] = (threshold >> 118) << 6 | entry[column] & 63
            results.append(reference_cldp.sample(int(v[0]), changed[0], draw))
            for isa in ISAS:
                assert launched(v, changed, key, isa)[element] == results[-1], (isa, element)
        unlike += results[0] != results[1]
    assert unlike >= (3 if what == "loss" else 6), "the last digit decides"


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
def test_tails_add_up_to_more_than_64_bits(mechanism, key):
    """With the least step for a tail, and 2^63 for its unit: two tails in a row are beyond every room."""
    law = np.array([law_row(0.25, 10**10, mechanism)], _native.LAWS["ordinal_cldp"])
    law["tail"], law["unit"] = 0, 2**63
    v = integers(250, 10**10)
    expected = launched(v, law, key, "reference")
    for isa in ISAS:
        assert np.array_equal(launched(v, law, key, isa), expected), isa


@pytest.mark.parametrize(("alpha", "m", "reach"), [(3e-3, 9000, 9050), (0.5, 100, 101), (1e-8, 10**10, 10**10)])
def test_a_step_beyond_the_reach_ends_there(alpha, m, reach, key):
    """With a reach that no law of weights has, so that it is no rare thing: from the end half of the steps go there."""
    law = np.array([law_row(alpha, m, "laplace", reach=reach)], _native.LAWS["ordinal_cldp"])
    v = integers(300, m)
    expected = launched(v, law, key, "reference")
    assert (abs(expected) == reach).sum() > 30
    for isa in ISAS:
        assert np.array_equal(launched(v, law, key, isa), expected), isa


@pytest.mark.parametrize("low", [7, 52])
def test_losses_multiply_to_their_last_digit(low, key):
    """Those of all low digits of a draw together are its number, or one more: kept, and given up."""
    v = np.full(16, 5 * 10**15)
    law = np.array([law_row(1e-3, 10**16, "laplace")], _native.LAWS["ordinal_cldp"])
    law["low"], law["wide"], law["keep"] = low, low > 16, 2**15
    losses, tried = law["losses"][0].reshape(52, 2), 0
    for element in range(16):
        draw = reference_cldp.draws(key.uint32(), element)
        number = (draw(0) >> 49 << 128 | draw(6) << 64 | draw(7)) >> 15
        digits = (draw(1) if low > 16 else draw(0) >> 32) % 2**low
        last = digits.bit_length() - 1
        if digits.bit_count() < 3 or number < 2**120:
            continue
        losses[:] = np.random.default_rng(element).integers(0, 2**64, (52, 2), np.uint64)
        losses[:, 0] %= np.uint64(number >> 64 + 7)
        results = []
        for total in (number, number + 1):
            under, over = 0, 2**128
            while over - under > 1:  # the last digit's loss, by halves
                middle = (under + over) // 2
                losses[last] = middle >> 64, middle % 2**64
                under, over = (middle, over) if reference_cldp.loss(digits, law[0]) <= total else (under, middle)
            losses[last] = under >> 64, under % 2**64
            assert reference_cldp.loss(digits, law[0]) == total
            results.append(reference_cldp.sample(int(v[0]), law[0], draw))
            for isa in ISAS:
                assert launched(v, law, key, isa)[element] == results[-1], (isa, element)
        tried += results[0] != results[1]
    assert tried >= 4, "the last digit decides"


@pytest.mark.parametrize("low", [16, 17])
def test_all_may_be_open(low, key):
    """A law under which every sample asks for more draws, and half of all are given up: lists are as long as can be."""
    law = np.array([law_row(1e-3, 10**16, "laplace")], _native.LAWS["ordinal_cldp"])
    law["low"], law["wide"], law["keep"] = low, low > 16, 2**15
    law["losses"][0][:2] = 2**64 - 1
    v = integers(3000, 10**15)
    found = [launched(v, law, key, isa) for isa in ISAS]
    assert all(np.array_equal(f, found[0]) for f in found)
    assert np.array_equal(found[0][:40], launched(v[:40].copy(), law, key, "reference"))


@pytest.mark.parametrize("law", [LAWS[0], LAWS[3]], ids=["narrow", "wide"])
def test_lengths_and_cuts_change_nothing(law, key, isa):
    """Element e's sample is a function of key and e: not of what stands beside it, nor of tiles, chunks and threads."""
    v = integers(2 * 65536 + 300, law[1], 2)
    whole = run(v, law, key, isa, threads=1)
    assert np.array_equal(run(v, law, key, isa, threads=3), whole)
    for n in (*range(40), 511, 512, 513, 1024 + 7):
        assert np.array_equal(run(v[:n].copy(), law, key, isa), whole[:n])
    for first in (8, 504, 65536, 65536 + 512):
        assert np.array_equal(run(v[first : first + 100].copy(), law, key, isa, first), whole[first : first + 100])


@pytest.mark.parametrize("first", [2**33 - 16, 2**34 - 16, 2**35 - 8, 2**36, 2**61])
@pytest.mark.parametrize("law", [LAWS[0], LAWS[3]], ids=["narrow", "wide"])
def test_a_place_far_in_the_stream(first, law, key):
    """The block's counter carries into its second word."""
    v = integers(24, law[1])
    expected = run(v, law, key, "reference", first)
    for isa in ISAS:
        assert np.array_equal(run(v, law, key, isa, first), expected), isa


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_weights_of_every_dtype(dtype, mechanism, rounding, key):
    """Including NaN, infinities, numbers out of the box, halves, subnormals; and outputs rounded to the format."""
    kind = DTYPES[dtype]
    x = np.random.default_rng(3).normal(0, 0.5, 50).astype(np.float32)
    x[:9] = [np.nan, np.inf, -np.inf, 0.005, -0.005, 1e-40, 1.0, -3.0, -0.0]
    if dtype == "bfloat16":
        weights = (x.view(np.uint32) >> 16).astype(np.uint16)
    else:
        weights = x.astype(dtype).view({2: np.uint16, 4: np.uint32, 8: np.uint64}[kind.itemsize])
    for alpha, c, rho in ((0.4, 1.0, 2), (1e-3, 1.0, 4), (4.3e-7, 0.75, 10 if kind.itemsize > 2 else 6)):
        if mechanism == "laplace" and alpha < 1e-5 and dtype == "float16":
            continue  # refused: its noise would overflow
        laws = weight_laws([alpha], c, rho, [kind], mechanism, rounding)
        results = {}
        for backend in (*ISAS, "reference"):
            w = weights.copy()
            spans = span_table([w.ctypes.data], [0], [w.size], [kind])
            if backend == "reference":
                reference_cldp.ordinal_cldp("values", spans, laws, key.uint32())
            else:
                _native.launch("ordinal_cldp", "values", spans, laws, key.uint32(), backend, 1)
            results[backend] = w
        assert all(np.array_equal(w, results["reference"]) for w in results.values())
        assert not np.array_equal(results["reference"], weights)


def test_rounding_of_weights(isa):
    """Where alpha leaves no noise, an output is the clipped and rounded weight."""
    x = np.array([0.25, 0.35, -0.25, 0.06, 7.0, -np.inf, np.nan, 0.05], np.float64)
    with ldpkernels.backend(isa):
        y = ldpkernels.cldp_(x.copy(), 1000.0, 1.0, 1, generator=ldpkernels.key(0))
    assert np.array_equal(y, [0.2, 0.4, -0.2, 0.1, 1.0, -1.0, 0.0, 0.0])


def test_rounding_of_huge_integers(isa):
    """2^62 - 512 is the last fp64 number in reach."""
    top = 2.0**62 - 512
    x = np.array([top, -top, np.inf, 2.0**61 + 512, 2.0**53 + 2, 1.5], np.float64)
    with ldpkernels.backend(isa):
        y = ldpkernels.cldp_(x.copy(), 1000.0, top, 0, rounding="stochastic", generator=ldpkernels.key(1))
    assert np.array_equal(y[:5], [top, -top, top, 2.0**61 + 512, 2.0**53 + 2])
    assert y[5] in (1.0, 2.0)


def test_the_reference_is_a_backend():
    v = integers(30, BIG)
    fast = ldpkernels.cldp_sample(v, 4.3e-7, BIG, generator=ldpkernels.key(9))
    with ldpkernels.backend("reference"):
        assert np.array_equal(ldpkernels.cldp_sample(v, 4.3e-7, BIG, generator=ldpkernels.key(9)), fast)
