# SPDX-License-Identifier: Apache-2.0
# What adaptive ranges need of weights on a device: the CPU's bits, and NumPy's quantiles; and the server's ranges.
import operator
from functools import reduce

import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import span_table
from tests.bfloat16 import SOME

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from ldpkernels.triton import quantiles, summary  # noqa: E402
from ldpkernels.triton.summary import summarize  # noqa: E402

FORMATS = (np.float32, np.float64, np.float16, *SOME)
EXHAUSTIVE = pytest.mark.exhaustive
LARGE = (2047, 65_536, 65_537, 1_000_003, 9_000_001) if torch.cuda.is_available() else ()


def weights(dtype, n, seed=0):
    x = np.random.default_rng(seed).normal(0.3, 2.0, n).astype(dtype)
    x[3:40:5], x[4:9:4] = np.nan, np.inf
    return x


def spans_of(arrays, device="cpu"):
    """The table of arrays on a device, and what keeps them there."""
    there = [torch.from_numpy(np.ascontiguousarray(a).view(np.uint8)).to(device) for a in arrays]
    kinds = [DTYPES[a.dtype.name] for a in arrays]
    return span_table([t.data_ptr() for t in there], [0] * len(there), [a.size for a in arrays], kinds), there


def numbers(summaries):
    return repr([(s.min, s.max, s.sum, s.sum_squares, s.finite) for s in summaries])


def check(arrays, device):
    on_device, kept = spans_of(arrays, device)
    on_host, also_kept = spans_of(arrays)
    assert numbers(summarize(on_device, torch.device(device))) == numbers(_native.summarize(on_host, "scalar", 1))
    del kept, also_kept


def test_summaries_have_the_bits_of_the_cpu(device):
    check([weights(d, n, i) for i, n in enumerate((0, 1, 15, 17, 500, *LARGE)) for d in FORMATS], device)
    zeros = np.zeros(40, np.float32)
    zeros[::2] = -0.0
    check([zeros, -zeros, np.full(20, np.nan), np.array([1e308, 1e308, -1e308, 5e-324])], device)
    check([np.zeros(0)], device)


def sums_of_chunks(x, chunk):
    """The sum of each chunk by 16 lanes, which are added in order, as the chunks are."""
    total = 0.0
    for start in range(0, x.size, chunk):
        part = x[start : start + chunk]
        lanes = np.zeros(16)
        for row in np.pad(part, (0, -part.size % 16)).reshape(-1, 16):
            lanes += row
        total += reduce(operator.add, lanes.tolist(), 0.0)  # sum() compensates from Python 3.12 on
    return total


def test_chunks_are_added_in_their_order(device, monkeypatch):
    """Numbers of which every other order gives another sum; a third chunk begins another program.

    The CPU adds chunks of 2^16 as it is written here. The interpreter, which takes 16 numbers at a time, has smaller.
    """
    x = np.random.default_rng(1).standard_cauchy(2 * 65536 + 5).astype(np.float32)
    spans, kept = spans_of([x])
    (host,) = _native.summarize(spans, "scalar", 1)
    assert (host.sum, host.sum_squares) == (sums_of_chunks(x, 65536), sums_of_chunks(x.astype(float) ** 2, 65536))
    if device == "cpu":
        monkeypatch.setattr(summary, "CHUNK", summary.tl.constexpr(1 << 10))
        x = x[: 2 * 1024 + 5]
    chunk = int(summary.CHUNK)
    spans, also_kept = spans_of([weights(np.float16, 99), x], device)
    found = summarize(spans, torch.device(device))[1]
    assert (found.sum, found.sum_squares) == (sums_of_chunks(x, chunk), sums_of_chunks(x.astype(float) ** 2, chunk))
    del kept, also_kept


@pytest.mark.parametrize(
    ("formats", "sizes"),
    [(FORMATS[2:], (5, 1, 700, 2049)), pytest.param(FORMATS, (5, 70, 204), marks=() if LARGE else EXHAUSTIVE)],
    ids=["narrow", "all"],
)
def test_quantiles_are_numpys(device, formats, sizes):
    """Of weights of one tile, and of several; fp64 has all of them take twice as many passes."""
    arrays = [weights(d, n, n) for d in formats for n in sizes]
    arrays[2][50:600], arrays[3][:100], arrays[3][100:200] = 0.25, -0.0, 0.0
    arrays += [np.array([-65504, 65504, 6e-8], arrays[-1].dtype), *(weights(d, n, n) for d in formats for n in LARGE)]
    layers = np.array([*([0, 0, 1, 2, 3][: len(sizes)] * len(formats)), 1, *[0] * len(LARGE) * len(formats)])
    q = np.array([0.005, 0.0, 1.0, 1 / 3])
    together = [np.concatenate([a.astype(np.float64) for a, k in zip(arrays, layers, strict=True) if k == i])
                for i in range(len(sizes) - 1)]  # fmt: skip
    finite = [x[np.isfinite(x)] for x in together]
    spans, kept = spans_of(arrays, device)
    found = quantiles.quantiles(spans, layers, np.array([x.size for x in finite]), q, torch.device(device))
    np.testing.assert_array_equal(found, [np.quantile(x, q) for x in finite])
    del kept


def test_order_statistics_of_neighbours_and_of_equal_weights(device):
    x = np.array([3, -1, -1, -1, 2, -np.inf, np.nan, 7, 1e-45, -1e-45], np.float32)
    spans, kept = spans_of([x], device)
    found = quantiles.order_statistics(spans, np.array([0]), np.arange(8)[None, ::-1].copy(), torch.device(device))
    np.testing.assert_array_equal(found[0], np.sort(x[np.isfinite(x)])[::-1])
    del kept


@pytest.mark.parametrize(
    ("method", "by"),
    [("minmax", "module"), ("quantile", "module"), ("quantile", "model"), ("noise-subtracted", "tensor")],
)
def test_ranges_are_those_of_the_cpu(device, method, by):
    generator = torch.Generator().manual_seed(1)
    model = {
        "a.weight": torch.randn(70, 31, generator=generator),
        "a.bias": torch.randn(31, generator=generator).to(torch.bfloat16),
        "b.weight": torch.randn(9, 5, generator=generator, dtype=torch.float64).t(),
        "c.weight": torch.zeros(0, 3),
    }
    model["a.weight"][3, 4], model["a.weight"][5, 6] = torch.nan, torch.inf
    previous = {name: 1.0 for name in ("a", "b", "c", "", *model)}
    options = {"method": method, "by": by, "quantile": 0.9}
    if method == "noise-subtracted":
        options |= {"previous": (0.0, 1.0 if by == "model" else previous), "eps": 4.0, "clients": 10}
    expected = ldpkernels.ranges(model, **options)
    with ldpkernels.backend("triton"):
        assert ldpkernels.ranges({name: t.to(device) for name, t in model.items()}, **options) == expected
