# SPDX-License-Identifier: Apache-2.0
# The Triton kernels against the native ones, bit for bit. On a machine without a GPU Triton interprets them.
import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.common.dtypes import dtype_named

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from ldpkernels.triton import launch, registry, table, two_point  # noqa: E402

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
BITS = {"float32": np.uint32, "float64": np.uint64, "bfloat16": np.uint16, "float16": np.uint16}
KEYS = {"philox": [0x0123456789ABCDEF], "chacha20": [-1, 2**62 + 12345, 0, 0x0706050403020100]}
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
GUARD = 32  # bytes before and after a tensor

# center, slope, fallback, k_lo, k_hi: ordinary; every threshold; ends that are no fp32 numbers; one threshold; narrow.
LAWS = [
    (0.125, 2.0**30, -0.25, -(2**30) - 7, 2**30 + 9),
    (0.0, 2.0**31, 0.5, -(2**31) + 1, 2**31 - 1),
    (-0.5, 3.0 * 2**29, 0.0, -(2**31) + 63, 2**31 - 65),
    (1.0, 1.0, 1.0, -123456789, -123456789),
    (0.0, 2.0**-20, 0.0, -5, 65537),
]


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """Tables of the test's own, whose programs have several tiles."""
    monkeypatch.setattr(launch, "tables", launch.Tables())
    monkeypatch.setattr(table, "PROGRAMS", 4)
    return launch.tables


def key_of(cipher, device):
    return torch.tensor(KEYS[cipher], dtype=torch.int64, device=device)


def words_of(cipher):
    return np.array(KEYS[cipher], dtype=np.int64).view(np.uint32)


def weights(dtype, n, law, rng):
    """Ordinary weights, and every special one."""
    x = law[0] + rng.standard_normal(n) * 2.0 ** rng.integers(-12, 6, n)
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-310, -1e-42, 6e-8, -6e-8, 65504.0, 3e38, -1e308, law[0]]
    x[rng.permutation(n)[: len(special)]] = special[:n]
    with np.errstate(over="ignore"):
        return torch.from_numpy(x).to(DTYPES[dtype])


class Case:
    """Tensors with guards around them, for one call."""

    def __init__(self, output, parts, first, device):
        sizes = [GUARD + out_bytes(output, x.numel()) + GUARD for _, x, _, _ in parts]
        starts = np.cumsum([0, *sizes]).tolist()
        self.out = torch.full((starts[-1],), 0x5A, dtype=torch.uint8, device=device)
        spans, laws, self.buffers = [], [], [self.out]
        for (dtype, x, law, offset), start in zip(parts, starts[:-1], strict=True):
            size = x.element_size()
            raw = x.view(INTEGERS[size]).numpy().view(np.uint8)
            lead = GUARD + offset * size
            data = np.full(lead + raw.size + GUARD, 0xA5, np.uint8)
            data[lead : lead + raw.size] = raw
            n = x.numel()
            on_device = torch.from_numpy(data).to(device)
            self.buffers.append(on_device)
            out = self.out.data_ptr() + start + GUARD
            spans.append((on_device.data_ptr() + lead, out, n, first, dtype_named(dtype).code))
            low, high = BITS[dtype](0x1234567890ABCDEF & (2 ** (8 * size) - 1)), BITS[dtype](7)
            laws.append((*law, low, high))
            first += -(-n // 8) * 8
        self.spans = np.array(spans, dtype=_native.SPAN)
        self.laws = np.array(laws, dtype=_native.LAWS["two_point"])

    def run(self, output, key, out=None):
        registry.launch("two_point", output, self.spans, self.laws, key, self.out if out is None else out)

    def result(self):
        return [b.cpu().numpy().copy() for b in self.buffers]


def out_bytes(output, n):
    return {"values": 0, "bits": -(-n // 8), "thresholds": 8 * n}[output]


def check(output, parts, cipher, device, first=0):
    ours, native = Case(output, parts, first, device), Case(output, parts, first, "cpu")
    ours.run(output, key_of(cipher, device))
    _native.launch("two_point", output, native.spans, native.laws, words_of(cipher), "", 1)
    for a, b in zip(ours.result(), native.result(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("dtype", "output"),
    [*((dtype, "values") for dtype in DTYPES), ("float32", "bits"), ("bfloat16", "bits"), ("float64", "thresholds")],
)
def test_same_bits(device, dtype, output):
    rng = np.random.default_rng(1)
    check(output, [(dtype, weights(dtype, 600, law, rng), law, 0) for law in LAWS], "philox", device)


@pytest.mark.parametrize(("output", "dtype"), [("values", "bfloat16"), ("bits", "float32")])
def test_same_bits_by_chacha(device, dtype, output):
    """Of which the interpreter takes a tenth of a second a tile."""
    check(output, [(dtype, weights(dtype, 1500, LAWS[0], np.random.default_rng(1)), LAWS[0], 0)], "chacha20", device)


@pytest.mark.parametrize(("output", "cipher"), [("values", "philox"), ("bits", "chacha20"), ("thresholds", "philox")])
def test_any_number_of_tensors_of_any_size_and_address(device, output, cipher):
    rng = np.random.default_rng(2)
    parts = []
    sizes = [1, 0, 7, 8, 9, 255, 257, 1023, 1025, 31] if cipher == "philox" else [9, 0, 1025]
    for i, n in enumerate(sizes):
        dtype = list(DTYPES)[i % 4]
        parts.append((dtype, weights(dtype, n, LAWS[i % 5], rng), LAWS[i % 5], i % 3))
    check(output, parts, cipher, device, first=2**36 - 1000)  # block numbers of more than 32 bits


@pytest.mark.parametrize("cipher", KEYS)
def test_ties(device, cipher, monkeypatch):
    n, k = 1 << 18, 0x12348765
    if device == "cpu":  # one tile: the interpreter's time goes by operations
        monkeypatch.setattr(table, "BLOCKS", n // (8 if cipher == "philox" else 32))
    x = torch.zeros(n)
    words = words_of(cipher)
    high, low = (
        _native.keystream(words, s, 0, n // (8 if cipher == "philox" else 32), "").view(np.int16) for s in (0, 1)
    )
    ties = high == k >> 16
    decided_low = (low[ties].astype(np.int64) & 0xFFFF) < (k & 0xFFFF)
    assert ties.sum() >= 1
    check("values", [("float32", x, (0.0, 1.0, 0.0, k, k), 0)], cipher, device)
    case = Case("bits", [("float32", x, (0.0, 1.0, 0.0, k, k), 0)], 0, device)
    case.run("bits", key_of(cipher, device))
    decisions = np.unpackbits(case.result()[0][GUARD:-GUARD], bitorder="little").astype(bool)
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
    spans = np.array([(x.ctypes.data, k.ctypes.data, n, 0, dtype_named(dtype).code)], dtype=_native.SPAN)
    laws = np.array([(0.0, 1.0, 0.0, -end, end, 0, 0)], dtype=_native.LAWS["two_point"])
    _native.launch("two_point", "thresholds", spans, laws, words_of("philox"), "", 1)
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


@pytest.mark.parametrize("end", [2**31 - 1, 2**31 - 65, 2**25 + 1, 2**24 + 1, 2**20 + 1])
def test_ends_are_attained(device, end):
    near = [np.float32(end)]
    for direction in (-np.inf, np.inf):
        for _ in range(3):
            near.append(np.nextafter(near[-1], np.float32(direction)))
    x = torch.from_numpy(np.array([*near, *(-x for x in near)]))
    law = (0.0, 1.0, 0.0, -end, end)
    check("thresholds", [("float32", x, law, 0), ("float64", x.double(), law, 0)], "philox", device)


@pytest.mark.parametrize("k", [0, 1, -1, 65535, 65536, 65537, 2**31 - 1, -(2**31) + 1, 2**30 + 1, -(2**24) - 1])
def test_clamped_to_one_threshold(device, k):
    law = (0.0, 2.0**31, 0.0, k, k)
    x = torch.tensor([-np.inf, -1.0, k / 2**31, 0.0, 1.0, np.inf, np.nan, 0.5], dtype=torch.float32).repeat(64)
    for output in ("thresholds", "bits"):
        check(output, [("float32", x, law, 0)], "philox", device)


def test_rounding_is_to_even(device):
    halves = torch.arange(-64, 64, dtype=torch.float32) / 4
    large = torch.tensor([2.0**22 + 0.5, 2.0**22 + 1.5, 2.0**23 - 0.5, -(2.0**23) + 0.5, 2.0**24 + 2, 2.0**30 + 64])
    law = (0.0, 1.0, 0.0, -(2**31) + 1, 2**31 - 1)
    parts = [
        ("float32", torch.cat([halves, large, -large]), law, 0),
        ("float64", torch.cat([halves, large]).double(), law, 0),
    ]
    check("thresholds", parts, "philox", device)


@pytest.mark.parametrize("cipher", KEYS)
@pytest.mark.parametrize(
    ("stream", "first", "blocks"), [(0, 0, 5), (1, 2**32 - 3, 34), (2**32 - 1, 2**64 - 4, 4), (7, 2**63 - 1, 2)]
)
def test_keystream(device, cipher, stream, first, blocks):
    ours = launch.keystream(key_of(cipher, device), stream, first, blocks).cpu().numpy().view(np.uint32)
    np.testing.assert_array_equal(ours, _native.keystream(words_of(cipher), stream, first, blocks, ""))


def test_the_key_is_read_when_the_kernel_runs_and_tables_are_kept(device, tables):
    x = torch.full((1000,), 0.25)
    case = Case("bits", [("float32", x, LAWS[0], 0)], 0, device)
    key = key_of("philox", device)
    case.run("bits", key)
    before = case.result()[0]
    key += 1
    case.run("bits", key)
    assert len(tables.recent) == 1
    assert (case.result()[0] != before).any()
    for i in range(launch.CACHED + 5):
        tables.get(i, torch.device(device), list)
    assert len(tables.recent) == launch.CACHED


@pytest.mark.parametrize("output", ["bits", "thresholds"])
def test_a_call_with_a_new_output_is_known_and_can_be_captured(device, output, tables, monkeypatch):
    case = Case(output, [(d, torch.zeros(99).to(DTYPES[d]), LAWS[0], 0) for d in ("float32", "float16")], 0, device)
    key = key_of("philox", device)
    case.run(output, key)
    moved = torch.full_like(case.out, 0x5A)
    case.spans["out"] = case.spans["out"] - case.out.data_ptr() + moved.data_ptr()
    with monkeypatch.context() as patch:
        patch.setattr(launch, "capturing", lambda _: True)
        case.run(output, key, moved)
        assert torch.equal(moved, case.out)
        assert (len(tables.recent), len(tables.captured)) == (0, 1)
        other = Case(output, [("float32", torch.zeros(99), LAWS[0], 0)], 0, device)
        with pytest.raises(RuntimeError, match="make the same call before it, with tensors that are contiguous"):
            other.run(output, key)
    case.run(output, key, moved)  # the graph's tables serve other calls too
    assert (len(tables.recent), len(tables.captured)) == (0, 1)


def test_bad_keys(device):
    case = Case("bits", [("float32", torch.zeros(8), LAWS[0], 0)], 0, device)
    for bad in (
        torch.zeros(3, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1, 1, dtype=torch.int64),
    ):
        with pytest.raises(ValueError, match="a key is"):
            case.run("bits", bad.to(device))
