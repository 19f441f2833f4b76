# SPDX-License-Identifier: Apache-2.0
# Triton's kernels of weights against the native ones, bit for bit. On a machine without a GPU Triton interprets them.
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.registry import MECHANISMS, law_table
from tests.conftest import KEYS as WORDS
from tests.launches import GUARD, bits_of, launcher, same, written

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from ldpkernels.triton import launch, registry, table, two_point  # noqa: E402

FORMATS = list(DTYPES)
KINDS = {kind.kernel: kind for kind in MECHANISMS.values()}
KEYS = {cipher: ldpkernels.Key(WORDS[cipher]) for cipher in ("philox", "chacha20")}
# center, slope, fallback, k_lo, k_hi: ordinary; every threshold; ends that are no fp32 numbers; one threshold; narrow.
LAWS = [
    (0.125, 2.0**30, -0.25, -(2**30) - 7, 2**30 + 9),
    (0.0, 2.0**31, 0.5, -(2**31) + 1, 2**31 - 1),
    (-0.5, 3.0 * 2**29, 0.0, -(2**31) + 63, 2**31 - 65),
    (1.0, 1.0, 1.0, -123456789, -123456789),
    (0.0, 2.0**-20, 0.0, -5, 65537),
]
RANGES = [(0.1, 0.7, 0.8), (1.0, 0.01, 4.0), (0.0, 1.0, 10.0), (-2.5, 0.0, 1.0)]  # c, r, eps, of cells


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """Tables of the test's own, whose programs have several tiles."""
    monkeypatch.setattr(launch, "tables", launch.Tables())
    monkeypatch.setattr(table, "PROGRAMS", 4)
    return launch.tables


def weights(dtype, n, center, rng):
    """The bits of ordinary weights, and of every special one."""
    x = center + rng.standard_normal(n) * 2.0 ** rng.integers(-12, 6, n)
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-310, -1e-42, 6e-8, -6e-8, 65504.0, 3e38, -1e308, center]
    x[rng.permutation(n)[: len(special)]] = special[:n]
    return bits_of(x, dtype)


def laws_of(laws):
    """A table of two-point's laws."""
    return np.array([(*law, 0x1234567890ABCDEF, 7) for law in laws], _native.LAWS["two_point"])


def check(kernel, output, dtypes, sizes, cipher, device, shifts=None, first=0):
    """Tensors of these formats and sizes, each under the next of the laws or ranges."""
    rng, some = np.random.default_rng(1), LAWS if kernel == "two_point" else RANGES
    chosen = [some[i % len(some)] for i in range(len(sizes))]
    pairs = zip(dtypes, sizes, shifts or [0] * len(sizes), chosen, strict=True)
    tensors = [(dtype, weights(dtype, n, law[0], rng), shift) for dtype, n, shift, law in pairs]
    if kernel == "two_point":
        laws = laws_of(chosen)
    else:
        kind = "values" if output == "values" else "report"
        each = zip(chosen, dtypes, strict=True)
        laws = [law_table(KINDS[kernel](eps), [c], [r], [DTYPES[d]], kind) for (c, r, eps), d in each]
        laws = np.concatenate(laws)
    same("triton", kernel, output, tensors, laws, KEYS[cipher], first, device)


@pytest.mark.parametrize(
    ("kernel", "output", "dtype"),
    [
        *(("two_point", "values", dtype) for dtype in FORMATS),
        *(("two_point", "bits", "float32"), ("two_point", "bits", "bfloat16"), ("two_point", "thresholds", "float64")),
        *(("piecewise", "values", "float32"), ("piecewise", "values", "bfloat16"), ("piecewise", "turns", "bfloat16")),
        *(("hybrid", "values", "float32"), ("hybrid", "cells", "float64"), ("hybrid", "cells", "float16")),
    ],
)
def test_same_bits(device, kernel, output, dtype):
    count, n = (5, 600) if kernel == "two_point" else (4, 260)
    check(kernel, output, [dtype] * count, [n] * count, "philox", device)


@pytest.mark.parametrize(("output", "dtype"), [("values", "bfloat16"), ("bits", "float32")])
def test_same_bits_by_chacha(device, dtype, output):
    """Of which the interpreter takes a tenth of a second a tile."""
    check("two_point", output, [dtype], [1500], "chacha20", device)


@pytest.mark.parametrize(
    ("kernel", "output", "cipher"),
    [
        ("two_point", "values", "philox"),
        ("two_point", "bits", "chacha20"),
        ("two_point", "thresholds", "philox"),
        ("hybrid", "values", "philox"),
        ("hybrid", "values", "chacha20"),
    ],
)
def test_any_number_of_tensors_of_any_size_and_address(device, kernel, output, cipher):
    sizes = [1, 0, 7, 8, 9, 255, 257, 1023, 1025, 31] if cipher == "philox" else [9, 0, 1025]
    dtypes = [FORMATS[i % 4] for i in range(len(sizes))]
    shifts = [i % 3 for i in range(len(sizes))]
    check(kernel, output, dtypes, sizes, cipher, device, shifts, first=2**36 - 1000)  # blocks of more than 32 bits


@pytest.mark.parametrize("output", ["values", "cells", "turns"])
def test_cells_at_any_address(device, output):
    for shift in (1, 2, 3):
        check("piecewise", output, ["float32"] * 2, [300, 41], "philox", device, [shift] * 2)


def test_an_output_that_no_new_tensor_is_is_refused(device):
    data, out = torch.zeros(9, device=device), torch.zeros(32, dtype=torch.uint8, device=device)[1:]
    spans = span_table([data.data_ptr()], [out.data_ptr()], [9], [DTYPES["float32"]])
    laws = law_table(KINDS["piecewise"](0.8), [0.1], [0.7], [DTYPES["float32"]], "report")
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        registry.launch("piecewise", "cells", spans, laws, torch.zeros(1, dtype=torch.int64), out)


@pytest.mark.parametrize("mechanism", ["piecewise", "hybrid"])
def test_public_functions(device, mechanism):
    x = torch.linspace(-1, 1, 500)
    options = {"mechanism": mechanism, "generator": ldpkernels.key(3)}
    expected = ldpkernels.perturb_(x.clone(), 0.0, 1.0, 1.0, **options)
    report = ldpkernels.report(x, 0.0, 1.0, 1.0, **options)
    with ldpkernels.backend("triton"):
        on_device = x.clone().to(device)
        assert torch.equal(ldpkernels.perturb_(on_device, 0.0, 1.0, 1.0, **options).cpu(), expected)
        assert np.array_equal(ldpkernels.report(x.to(device), 0.0, 1.0, 1.0, **options).bits, report.bits)


@pytest.mark.parametrize("cipher", KEYS)
def test_ties(device, cipher, monkeypatch):
    n, k, key = 1 << 18, 0x12348765, KEYS[cipher]
    blocks = n // (8 if cipher == "philox" else 32)
    if device == "cpu":  # one tile: the interpreter's time goes by operations
        monkeypatch.setattr(table, "BLOCKS", blocks)
    high, low = (_native.keystream(key.uint32(), s, 0, blocks, "").view(np.int16) for s in (0, 1))
    ties = high == k >> 16
    decided_low = (low[ties].astype(np.int64) & 0xFFFF) < (k & 0xFFFF)
    assert ties.sum() >= 1
    tensors, laws = [("float32", np.zeros(n, np.uint32), 0)], laws_of([(0.0, 1.0, 0.0, k, k)])
    same("triton", "two_point", "values", tensors, laws, key, device=device)
    _, out = written(launcher("triton", "two_point", key), "bits", tensors, laws, device=device)
    decisions = np.unpackbits(np.frombuffer(out, np.uint8)[GUARD : GUARD + n // 8], bitorder="little").astype(bool)
    np.testing.assert_array_equal(decisions[ties], decided_low)


@triton.jit
def guess_kernel(x, high, out, center, slope, floor, ceiling, N: tl.constexpr):
    i = tl.arange(0, N)
    law = center, slope, 0, 0, 0, floor, ceiling
    tl.store(out + i, two_point.guess(tl.load(x + i), tl.load(high + i), law))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("end", [2**31 - 1, 2**31 - 65, 2**20 + 1, 65536, 65535, 1, 0])
def test_a_guess_is_right_or_unsure(device, dtype, end):
    """For z within a few steps of every number at which the decision changes. A tile hides this: one unsure element in
    it has all of them decided exactly."""
    n = 1 << 13
    rng = np.random.default_rng(4)
    u = rng.integers(-(2**31), 2**31, n)
    u[: n // 4] = rng.integers(-3, 3, n // 4) * 65536 + rng.choice([0, 1, 2**15, 65535], n // 4)  # about zero
    u[n // 4 : n // 2] = np.clip(rng.choice([end, -end], n // 4) + rng.integers(-3, 3, n // 4), -(2**31), 2**31 - 1)
    m = (u >> 16) * 65536
    high = m + rng.choice([0, 65535, 1234], n)  # its low half is not the draw's
    x = np.choose(np.arange(n) % 8, [m, m + 65536, m - 65536, m + 65535, u, u + 0.5, u + 70000, u - 70000]).astype(
        dtype
    )
    for _ in range(3):
        x = np.where(rng.random(n) < 0.4, np.nextafter(x, rng.choice([-np.inf, np.inf], n).astype(dtype)), x)
    x[::100], x[1::100], x[2::100] = np.nan, np.inf, -np.inf
    k = np.full(n, -(2**31), np.int64)
    spans = np.array([(x.ctypes.data, k.ctypes.data, n, 0, DTYPES[dtype].code)], dtype=_native.SPAN)
    laws = np.array([(0.0, 1.0, 0.0, -end, end, 0, 0)], dtype=_native.LAWS["two_point"])
    _native.launch("two_point", "thresholds", spans, laws, KEYS["philox"].uint32(), "", 1)
    columns = table.weight_columns(spans, laws, 8)[0]
    bounds = [float(columns[name].view(np.float32)[0]) for name in ("floor", "ceiling")]
    guess = torch.empty(n, dtype=torch.float32, device=device)
    on_device = [torch.from_numpy(a).to(device) for a in (x, high.astype(np.int32))]
    with np.errstate(all="ignore"):
        guess_kernel[(1,)](*on_device, guess, 0.0, 1.0, *bounds, N=n, enable_fp_fusion=False)
    guess = guess.cpu().numpy()
    sure = np.abs(guess) > 65536
    assert 0.1 < sure.mean() < 0.9
    assert not sure[::100].any()
    np.testing.assert_array_equal(guess[sure] > 0, (u < k - 2**31)[sure])


def check_law(device, output, x, law, dtypes=("float32",)):
    """Numbers in some formats under one law of two-point."""
    tensors = [(dtype, bits_of(np.asarray(x, np.float64), dtype), 0) for dtype in dtypes]
    same("triton", "two_point", output, tensors, laws_of([law] * len(tensors)), KEYS["philox"], device=device)


@pytest.mark.parametrize("end", [2**31 - 1, 2**31 - 65, 2**25 + 1, 2**24 + 1, 2**20 + 1])
def test_ends_are_attained(device, end):
    near = [np.float32(end)]
    for direction in (-np.inf, np.inf):
        for _ in range(3):
            near.append(np.nextafter(near[-1], np.float32(direction)))
    x = [*near, *(-x for x in near)]
    check_law(device, "thresholds", x, (0.0, 1.0, 0.0, -end, end), ("float32", "float64"))


@pytest.mark.parametrize("k", [0, 1, -1, 65535, 65536, 65537, 2**31 - 1, -(2**31) + 1, 2**30 + 1, -(2**24) - 1])
def test_clamped_to_one_threshold(device, k):
    x = np.tile([-np.inf, -1.0, k / 2**31, 0.0, 1.0, np.inf, np.nan, 0.5], 64)
    for output in ("thresholds", "bits"):
        check_law(device, output, x, (0.0, 2.0**31, 0.0, k, k))


def test_rounding_is_to_even(device):
    large = np.array([2.0**22 + 0.5, 2.0**22 + 1.5, 2.0**23 - 0.5, -(2.0**23) + 0.5, 2.0**24 + 2, 2.0**30 + 64])
    x = np.concatenate([np.arange(-64, 64) / 4, large, -large])
    check_law(device, "thresholds", x, (0.0, 1.0, 0.0, -(2**31) + 1, 2**31 - 1), ("float32", "float64"))


@pytest.mark.parametrize("cipher", KEYS)
@pytest.mark.parametrize(
    ("stream", "first", "blocks"), [(0, 0, 5), (1, 2**32 - 3, 34), (2**32 - 1, 2**64 - 4, 4), (7, 2**63 - 1, 2)]
)
def test_keystream(device, cipher, stream, first, blocks):
    ours = launch.keystream(KEYS[cipher].tensor(device), stream, first, blocks).cpu().numpy().view(np.uint32)
    np.testing.assert_array_equal(ours, _native.keystream(KEYS[cipher].uint32(), stream, first, blocks, ""))


class Call:
    """A call that can be made again, also with another output."""

    def __init__(self, output, device, *dtypes):
        self.output, self.key = output, KEYS["philox"].tensor(device)
        self.x = [torch.zeros(99, dtype=getattr(torch, dtype), device=device) for dtype in dtypes]
        self.kinds, self.laws = [DTYPES[dtype] for dtype in dtypes], laws_of(LAWS[:1] * len(dtypes))
        self.out = torch.full((1024 * len(dtypes),), 0x5A, dtype=torch.uint8, device=device)

    def run(self, out=None):
        out = self.out if out is None else out
        places = [out.data_ptr() + 1024 * i for i in range(len(self.x))]
        spans = span_table([x.data_ptr() for x in self.x], places, [99] * len(self.x), self.kinds)
        registry.launch("two_point", self.output, spans, self.laws, self.key, out)
        return out.clone()


def test_the_key_is_read_when_the_kernel_runs_and_tables_are_kept(device, tables):
    call = Call("bits", device, "float32")
    before = call.run()
    call.key += 1
    assert not torch.equal(call.run(), before)
    assert len(tables.recent) == 1
    for i in range(launch.CACHED + 5):
        tables.get(i, torch.device(device), list)
    assert len(tables.recent) == launch.CACHED


@pytest.mark.parametrize("output", ["bits", "thresholds"])
def test_a_call_with_a_new_output_is_known_and_can_be_captured(device, output, tables, monkeypatch):
    call, other = Call(output, device, "float32", "float16"), Call(output, device, "float32")
    expected, moved = call.run(), torch.full_like(call.out, 0x5A)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "capturing", lambda _: True)
        assert torch.equal(call.run(moved), expected)
        assert (len(tables.recent), len(tables.captured)) == (0, 1)
        with pytest.raises(RuntimeError, match="make the same call before it, with tensors that are contiguous"):
            other.run()
    call.run(moved)  # the graph's tables serve other calls too
    assert (len(tables.recent), len(tables.captured)) == (0, 1)


def test_bad_keys(device):
    call = Call("bits", device, "float32")
    for shape, kind in ((3, torch.int64), (1, torch.int32), ((1, 1), torch.int64)):
        call.key = torch.zeros(shape, dtype=kind, device=device)
        with pytest.raises(ValueError, match="a key is"):
            call.run()
