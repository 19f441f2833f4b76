# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels without a GPU: the cost of their machine code, and what their PTX computes (tests/ptx)."""

import ctypes

import numpy as np
import pytest

from benchmarks import disassembly, static_cost
from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES as DTYPES_BY_NAME
from ldpkernels.laws.two_point import two_point_law
from tests.ptx.cuda import of

RESULTS = ("values", "bits", "thresholds")
DTYPES = (np.uint32, np.uint64, np.uint16, np.uint16)  # the bits of f32, f64, bf16, f16
KEYS = {
    "philox": np.array([0x12345678, 0x9ABCDEF0], np.uint32),
    "chacha20": np.arange(0x01234567, 0x01234567 + 8, dtype=np.uint32) * np.uint32(0x9E3779B1),
}


@pytest.mark.parametrize(
    ("arch", "cipher", "dtypes"),
    [("sm_80", "philox", ("all",)), ("sm_90", "philox", ("f32", "bf16", "all")), ("sm_90", "chacha20", ("all",))],
)
def test_static_cost(arch, cipher, dtypes, tmp_path):
    """What is shipped serves every dtype; `make cost` counts the instructions of every dtype with each cipher."""
    if disassembly.find_tool("nvcc") is None or disassembly.find_tool("cuobjdump") is None:
        pytest.skip("nvcc or cuobjdump not found")
    cubin = static_cost.compile_kernels(arch, tmp_path, [cipher], dtypes)
    for result in static_cost.RESULTS:
        for dtype in dtypes:
            cost = static_cost.kernel_cost(cubin, cipher, result, dtype)
            assert cost.spills == 0, cost
            assert cost.stack_bytes == 0, cost
            assert cost.registers <= (80 if cipher == "philox" else 128), cost  # three and two blocks a multiprocessor
            if dtype == "all":
                continue
            assert not [op for op in cost.opcodes if op.startswith(("LD.", "ST."))], "accesses not known to be global"
            wide = cost.elements_per_iteration * static_cost.ITEM_BYTES[dtype] / 16
            assert cost.vector_loads == wide, cost
            assert cost.vector_stores == (wide if result == "values" else 0), cost
            assert cost.instructions_per_element <= 36, cost


def test_static_cost_of_cells(tmp_path):
    """Instructions a weight with Philox: 32 and 40 for 16 and 32 bits at sm_90."""
    if disassembly.find_tool("nvcc") is None or disassembly.find_tool("cuobjdump") is None:
        pytest.skip("nvcc or cuobjdump not found")
    cubin = static_cost.compile_cells("sm_90", tmp_path, ["philox"], ("f32", "bf16"))
    for mechanism, bound in (("piecewise", 34), ("hybrid", 42)):
        for output in static_cost.CELL_OUTPUTS:
            for dtype in ("f32", "bf16"):
                cost = static_cost.cells_cost(cubin, mechanism, "philox", output, dtype)
                assert cost.spills == cost.stack_bytes == cost.inner_loops == 0, cost
                assert cost.registers <= 80, cost  # three blocks a multiprocessor
                assert not [op for op in cost.opcodes if op.startswith(("LD.", "ST."))], "not known to be global"
                wide = 16 * static_cost.ITEM_BYTES[dtype] / 16
                assert (cost.vector_loads, cost.vector_stores) == (wide, wide if output == "values" else 0), cost
                assert cost.instructions_per_element <= bound, cost


def native(result, spans, laws, key):
    _native.launch("two_point", result, spans, laws, key, "scalar", 1)


def weights(rng, dtype, n):
    """Ordinary numbers, and as many bit patterns of any kind: NaN, infinities, subnormals."""
    bits = rng.integers(0, 2 ** (8 * DTYPES[dtype]().itemsize), n, dtype=DTYPES[dtype])
    x = rng.normal(size=n)
    ordinary = {
        0: lambda: x.astype(np.float32).view(np.uint32),
        1: lambda: x.view(np.uint64),
        2: lambda: (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        3: lambda: x.astype(np.float16).view(np.uint16),
    }[dtype]()
    bits = np.where(rng.random(n) < 0.5, ordinary, bits)
    exponent = {0: 0x7F800000, 1: 0x7FF0000000000000, 2: 0x7F80, 3: 0x7C00}[dtype]
    sign = 1 << (8 * bits.itemsize - 1)
    special = np.array([exponent, exponent | 1, sign | exponent, 1, sign], np.uint64).astype(bits.dtype)
    bits[:5] = special[: min(n, 5)]
    return bits


def law(rng, dtype):
    k = int(rng.integers(2**20, 2**31))
    largest = 2 ** (8 * DTYPES[dtype]().itemsize)
    lower, upper = (int(v) for v in rng.integers(0, largest, 2, dtype=np.uint64 if largest == 2**64 else np.int64))
    return (
        rng.normal() / 4,
        float(k) * rng.uniform(0.2, 2),
        rng.normal(),
        -k + int(rng.integers(99)),
        k - 1,
        lower,
        upper,
    )


class Case:
    """Spans in one buffer, at given misalignments, with bytes around them that must not change."""

    def __init__(self, shapes, seed, first=0):
        rng = np.random.default_rng(seed)
        self.shapes = shapes
        sizes = [16 + shift + n * DTYPES[dtype]().itemsize + 32 for dtype, n, shift in shapes]
        self.starts = np.cumsum([0, *sizes]) // 16 * 16
        self.data = np.full(self.starts[-1] + 4096, 0xA5, np.uint8)
        self.laws = np.array([law(rng, dtype) for dtype, _, _ in shapes], _native.LAWS["two_point"])
        self.firsts = []
        for (dtype, n, shift), start in zip(shapes, self.starts, strict=False):
            bits = weights(rng, dtype, n).view(np.uint8)
            self.data[16 + start + shift : 16 + start + shift + len(bits)] = bits
            self.firsts.append(first)
            first += -(-n // 8) * 8

    def run(self, kernel, result, key):
        buffer = np.zeros(len(self.data) + 16, np.uint8)
        data = buffer[-buffer.ctypes.data % 16 :][: len(self.data)]
        data[:] = self.data
        out = np.full(8 * sum(n for _, n, _ in self.shapes) + 64 * len(self.shapes), 0x5A, np.uint8)
        rows, position = [], 0
        for (dtype, n, shift), start, first in zip(self.shapes, self.starts, self.firsts, strict=False):
            address = data.ctypes.data + 16 + int(start) + shift
            rows.append((address, out.ctypes.data + position, n, first, dtype))
            position += 8 * n + 64
        kernel(result, np.array(rows, _native.SPAN), self.laws, key)
        return data.tobytes(), out.tobytes()


@pytest.fixture(params=KEYS)
def words(request):
    return KEYS[request.param]


def same(cuda, result, case, key):
    """Bits, and what is around tensors and outputs, which no launch may touch."""

    def executed(output, spans, laws, words):
        cuda.launch("two_point", output, spans, laws, words)

    assert case.run(executed, result, key) == case.run(native, result, key)


@pytest.mark.parametrize("result", RESULTS)
def test_every_short_length(cuda, words, result):
    """More tensors than a launch takes."""
    shapes = [(d, n, (0, bits().itemsize, 8)[n % 3]) for d, bits in enumerate(DTYPES) for n in range(71)]
    same(cuda, result, Case(shapes, seed=1), words)


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("dtype", range(4))
def test_long_and_unaligned(cuda, words, result, dtype):
    item = DTYPES[dtype]().itemsize
    shapes = [(dtype, n, shift) for n in (249, 505, 1000, 1017, 1023, 8192 + 3, 8192 * 3) for shift in (0, item)]
    same(cuda, result, Case(shapes, seed=dtype, first=2**32 * 8 - 8 * 40), words)


def test_mixed_model(cuda, words):
    rng = np.random.default_rng(7)
    shapes = [(int(d), int(n), 0) for d, n in zip(rng.integers(0, 4, 41), rng.integers(0, 9000, 41), strict=True)]
    for result in RESULTS:
        same(cuda, result, Case(shapes, seed=3), words)


@pytest.mark.parametrize("count", [1, 132])
def test_chunks_of_any_size(cuda, words, count):
    """Large ones where multiprocessors are few."""
    cuda.on_multiprocessors(count)
    try:
        same(cuda, "values", Case([(0, 150_001, 0), (2, 100_003, 0)], seed=5), words)
    finally:
        cuda.on_multiprocessors(132)


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
        dtype = DTYPES_BY_NAME[rng.choice(["float32", "bfloat16"])]
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
        _native.launch("two_point", "thresholds", spans, law, KEYS["philox"], "scalar", 1)
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
