# SPDX-License-Identifier: Apache-2.0
# The same bits on every instruction set as from the reference: every dtype, cipher, output, length and place.
import ctypes

import ml_dtypes
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.common.dtypes import FLOAT16, FLOAT32, FLOAT64
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.registry import MECHANISMS, law_table
from tests.conftest import ISAS, KEYS
from tests.kernels import BITS, FULL, draws, law_of, run, unpack

DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]
OUTPUTS = ["values", "bits"]
LENGTHS = [*range(71), 1000]


def weights(n, dtype, seed=0):
    x = np.random.default_rng(seed).normal(0.1, 0.6, n)
    x[::17] = np.inf
    x[5::29] = -np.inf
    x[3::31] = np.nan
    return x.astype(dtype)


def law(dtype, output, c=0.1, r=0.7, eps=0.8):
    return law_of(c, r, eps, dtype, "values" if output == "values" else "report")[:7]


@pytest.fixture(scope="module")
def expected():
    """The reference's answers, computed once for all instruction sets."""
    known = {}

    def get(output, x, the_law, key, first=0):
        question = (output, x.dtype.name, x.tobytes(), the_law, key, first)
        if question not in known:
            known[question] = run(output, x, the_law, key, "reference", first)
        return known[question]

    return get


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_length(dtype, output, key, isa, expected):
    for n in LENGTHS:
        x = weights(n, dtype, n)
        assert np.array_equal(
            run(output, x, law(dtype, output), key, isa), expected(output, x, law(dtype, output), key)
        )


def test_a_length_past_a_chunk_and_several_threads(key, isa):
    """Recomputed from thresholds and draws: the reference would take minutes."""
    n = 2**16 + 3
    u = draws(key, 0, n)
    for dtype in DTYPES:
        x = weights(n, dtype)
        for threads in (1, 3):
            found = run("bits", x, law(dtype, "bits"), key, isa, threads=threads)
            k = run("thresholds", x, law(dtype, "bits"), key, isa, threads=threads) - 2**31
            assert np.array_equal(unpack(found, n), u < k)
            the_law = law(dtype, "values")
            found = run("values", x, the_law, key, isa, threads=threads)
            k = run("thresholds", x, the_law, key, isa, threads=threads) - 2**31
            assert np.array_equal(found, np.array(the_law[5:], found.dtype)[(u < k).astype(int)])


@pytest.mark.parametrize("first", [8, 24, 1000 * 8, 2**19, 2**35 - 64, 2**35, 2**37 - 24, 2**40 + 8, 2**62])
def test_a_place_far_in_the_stream(first, key, isa, expected):
    """Element 2^35 is Philox's block 2^32, and element 2^37 ChaCha20's: the counter carries there."""
    x = weights(300, DTYPES[0])
    for output in OUTPUTS:
        the_law = law(DTYPES[0], output)
        assert np.array_equal(run(output, x, the_law, key, isa, first), expected(output, x, the_law, key, first))


@pytest.mark.parametrize("offset", range(8))
def test_nothing_outside_a_view_is_touched(offset, key, isa, expected):
    for dtype in DTYPES:
        for n in (0, 1, 7, 8, 9, 31, 33, 1025):
            memory = np.frombuffer(np.random.default_rng(n).bytes((n + 40) * dtype.itemsize), dtype).copy()
            memory[16 + offset : 16 + offset + n] = weights(n, dtype)
            view, before = memory[16 + offset : 16 + offset + n], memory.copy().view(BITS[dtype.itemsize])
            wanted = expected("values", view, law(dtype, "values"), key)
            ldpkernels.perturb_(view, 0.1, 0.7, 0.8, generator=key)
            after = memory.view(BITS[dtype.itemsize])
            assert np.array_equal(after[16 + offset : 16 + offset + n], wanted)
            assert np.array_equal(after[: 16 + offset], before[: 16 + offset])
            assert np.array_equal(after[16 + offset + n :], before[16 + offset + n :])


def test_a_report_writes_its_bytes_and_no_other(isa):
    for n in (1, 7, 8, 9, 15, 16, 17, 63, 65):
        out = np.full(40, 0xEE, np.uint8)
        x = weights(n, DTYPES[0])
        spans = span_table([x.ctypes.data], [out.ctypes.data + 8], [n], [FLOAT32])
        laws = np.array([law(DTYPES[0], "bits")], _native.LAWS["two_point"])
        _native.launch("two_point", "bits", spans, laws, ldpkernels.key(0).uint32(), isa, 1)
        size = (n + 7) // 8
        assert (out[:8] == 0xEE).all()
        assert (out[8 + size :] == 0xEE).all()
        assert not np.unpackbits(out[8 : 8 + size], bitorder="little")[n:].any(), "a bit past the last weight is set"


@pytest.mark.parametrize("output", OUTPUTS)
def test_ties_are_decided_by_the_low_half(output, key, isa):
    """Every element is a tie: k has the high half of its draw, and a low half around the draw's."""
    n, first = 4099, 800
    u = draws(key, first, n)
    for shift in (-1, 0, 1):
        k = np.clip((u & ~0xFFFF) | np.clip((u & 0xFFFF) + shift, 0, 0xFFFF), FULL[3], FULL[4])
        assert (k >> 16 == u >> 16).all(), "no tie: the test does not test"
        found = run(output, k.astype(np.float64), FULL, key, isa, first)
        upper = found == 0x2222 if output == "values" else unpack(found, n)
        assert np.array_equal(upper, u < k)


def test_ends_beside_a_multiple_of_two_to_the_sixteenth(key, isa):
    """The float next to such an end has another upper half. Draws between the two show which one decides."""
    u, reach, shown = draws(key, 0, 2**14), 2**6, 0
    for end in (-1.0, 1.0):
        beside = (u & 0xFFFF) >= 2**16 - reach if end < 0 else (u & 0xFFFF) < reach - 1
        for draw in u[beside & (np.sign(u) == end) & (abs(u) > 2**29)]:
            k = int(draw) if end < 0 else int(draw) + 1
            found = run("bits", np.full(u.size, end, np.float32), (0.0, 2.0**31, 0.0, -abs(k), abs(k)), key, isa)
            assert np.array_equal(unpack(found, u.size), u < k)
            shown += 1
    assert shown > 5, "no draws beside ends: the test does not test"


@pytest.mark.parametrize(("dtype", "cipher"), [*zip(DTYPES, [*KEYS, "chacha20"], strict=True)], ids=str)
def test_ties_in_the_ordinary_course(dtype, cipher, isa):
    """A million equal weights, about 16 of them ties in each law, against the draws in the keystreams."""
    n, ties, key = 2**20, 0, ldpkernels.Key(KEYS[cipher])
    u = draws(key, 0, n)
    for c, w in [(0.0, 0.25), (0.0, 0.0), (0.5, 0.375)]:
        the_law = law(dtype, "bits", c=c, r=1.0, eps=0.7)
        x = np.full(n, w).astype(dtype)
        (k,) = run("thresholds", x[:1], the_law, key, isa) - 2**31
        assert np.array_equal(unpack(run("bits", x, the_law, key, isa), n), u < k)
        ties += int((u >> 16 == k >> 16).sum())
    assert ties > 10, "no ties: the test does not test"


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (17,), (1, 1), (4, 0, 2), ()])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_the_public_functions_on_the_reference_backend(shape, dtype, key, isa):
    x = weights(int(np.prod(shape)), dtype).reshape(shape)
    fast, slow = x.copy(), x.copy()
    ldpkernels.perturb_(fast, 0.1, 0.7, 0.8, generator=key)
    fast_report = ldpkernels.report(x, 0.1, 0.7, 0.8, generator=key)
    fast_thresholds = ldpkernels.two_point_threshold(x, 0.1, 0.7, 0.8)
    with ldpkernels.backend("reference"):
        ldpkernels.perturb_(slow, 0.1, 0.7, 0.8, generator=key)
        assert slow.tobytes() == fast.tobytes()
        assert ldpkernels.report(x, 0.1, 0.7, 0.8, generator=key).to_bytes() == fast_report.to_bytes()
        assert np.array_equal(ldpkernels.two_point_threshold(x, 0.1, 0.7, 0.8), fast_thresholds)
    assert fast_thresholds.shape == shape


def test_the_callers_floating_point_modes_change_no_bit(isa):
    """Upward rounding, set as a caller's C code might have: thresholds are the default's, and the mode survives."""
    libm = ctypes.CDLL("libm.so.6")
    default, upward = libm.fegetround(), 0x800 if "neon" not in ISAS else 0x400000
    x = weights(70000, DTYPES[0])
    wanted = run("thresholds", x, law(DTYPES[0], "bits"), ldpkernels.key(0), isa)
    try:
        assert libm.fesetround(upward) == 0
        for threads in (1, 2):
            found = run("thresholds", x, law(DTYPES[0], "bits"), ldpkernels.key(0), isa, threads=threads)
            assert libm.fegetround() == upward
            assert np.array_equal(found, wanted)
    finally:
        libm.fesetround(default)


SPAN_KEYS = {"philox": ldpkernels.key(3), "aes": ldpkernels.Key((1, 2)), "chacha20": ldpkernels.Key((1, 2, 3, 2**63))}
SIZES = {
    "small": [1, 7, 8, 9, 31, 255, 256, 3, 40, 200, 200, 200, 200, 1, 1] * 5,
    "with large ones between": [10, 257, 10, 10, 5000, 70000, 8, 0, 0, 256, 256, 256, 256, 256, 300, 1],
    "empty ones": [0, 0, 5, 0, 5, 0],
}


def launched(arrays, outs, firsts, mechanism, output, key, isa, together, threads=1):
    dtypes = [{2: FLOAT16, 4: FLOAT32, 8: FLOAT64}[a.itemsize] for a in arrays]
    spans = span_table([a.ctypes.data for a in arrays], [o.ctypes.data for o in outs], [a.size for a in arrays], dtypes)
    spans["first"] = firsts
    laws = law_table(mechanism, [0.1] * len(arrays), [0.9] * len(arrays), dtypes, output)
    kind = "values" if output == "values" else mechanism.reported
    for part in [slice(None)] if together else [slice(i, i + 1) for i in range(len(arrays))]:
        _native.launch(mechanism.kernel, kind, spans[part], laws[part], key.uint32(), isa, threads)


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("cipher", SPAN_KEYS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_small_spans_have_the_bits_of_their_own_launches(name, sizes, cipher, isa):
    random, mechanism = np.random.default_rng(0), MECHANISMS[name](1.5).executed
    dtypes = ["float32", "float64", "float16"]
    made = [random.uniform(-1, 1, size).astype(dtypes[i % 3]) for i, size in enumerate(SIZES[sizes])]
    follow = np.cumsum([0, *[(a.size + 7) // 8 * 8 for a in made]])[:-1]
    apart = follow + np.arange(len(made)) * 1000
    backward = follow[::-1].copy()
    near_the_end = follow + 2**32 - 64  # of what a block's number holds in one word
    for firsts in (follow, apart, backward, near_the_end):
        for output in ("values", "report"):
            results = []
            for together in (True, False):
                arrays, outs = [a.copy() for a in made], [np.zeros(a.size, np.uint8) for a in made]
                launched(arrays, outs, firsts, mechanism, output, SPAN_KEYS[cipher], isa, together)
                results.append([a.tobytes() for a in (*arrays, *outs)])
            assert results[0] == results[1]
            assert results[0] != [a.tobytes() for a in (*made, *[np.zeros(a.size, np.uint8) for a in made])]


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("name", ["two-point", "hybrid"])
def test_a_task_of_a_thread_ends_anywhere_in_a_span(name, isa):
    """Tasks have 2^16 elements: the first two end in the middle of a small span, the third in a large one."""
    random, mechanism = np.random.default_rng(0), MECHANISMS[name](1.5).executed
    made = [random.uniform(-1, 1, size).astype(np.float32) for size in [0, *[245] * 600, 0, 70_001, 3]]
    firsts = np.cumsum([0, *[(a.size + 7) // 8 * 8 for a in made]])[:-1]
    for output in ("values", "report"):
        results = []
        for together, threads in ((False, 1), (True, 1), (True, 3)):
            arrays, outs = [a.copy() for a in made], [np.zeros(a.size, np.uint8) for a in made]
            launched(arrays, outs, firsts, mechanism, output, SPAN_KEYS["philox"], isa, together, threads)
            results.append([a.tobytes() for a in (*arrays, *outs)])
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("isa", _native.isas())
def test_one_law_serves_all_spans(isa):
    arrays = [np.linspace(-1, 1, n, dtype=np.float32) for n in (5, 300, 9)]
    mechanism = MECHANISMS["two-point"](1.0)
    spans = span_table([a.ctypes.data for a in arrays], [0] * 3, [a.size for a in arrays], [FLOAT32] * 3)
    one = law_table(mechanism, [0.0], [1.0], [FLOAT32], "values")
    results = []
    for laws in (one, np.concatenate([one] * 3)):
        for array in arrays:
            array[:] = np.linspace(-1, 1, array.size)
        _native.launch("two_point", "values", spans, laws, SPAN_KEYS["philox"].uint32(), isa, 1)
        results.append([a.tobytes() for a in arrays])
    assert results[0] == results[1]
    with pytest.raises(ValueError, match="one law for each span"):
        _native.launch("two_point", "values", spans, np.concatenate([one] * 2), SPAN_KEYS["philox"].uint32(), isa, 1)
