# SPDX-License-Identifier: Apache-2.0
"""What ranges and sums of reports need, at the sizes of a device: tests/triton has the small and the strange."""

import concurrent.futures

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import _native
from ldpkernels.triton.quantiles import quantiles
from ldpkernels.triton.summary import summarize
from ldpkernels.triton.tally import BitTally, ByteTally
from tests.bfloat16 import SOME
from tests.triton.test_summary import FORMATS, numbers, spans_of, weights

CUDA = torch.device("cuda", 0)


@pytest.fixture
def layers():
    """Tensors of all formats on both sides of every unit of work, dealt to three layers."""
    sizes = (1, 2047, 65_536, 65_537, 1_000_003, 9_000_001)
    arrays = [weights(d, n, n) for d in FORMATS for n in sizes]
    return arrays, np.arange(len(arrays)) % 3


def test_summaries_have_the_bits_of_the_cpu(layers):
    arrays, _ = layers
    on_device, kept = spans_of(arrays, "cuda")
    on_host, also_kept = spans_of(arrays)
    for _ in range(2):
        assert numbers(summarize(on_device, CUDA)) == numbers(_native.summarize(on_host, "scalar", 2))
    del kept, also_kept


@pytest.mark.parametrize("kept", [(np.float32, np.float16, *SOME), FORMATS], ids=["32 bits", "64 bits"])
def test_quantiles_are_numpys(layers, kept):
    arrays, numbers_of = layers
    chosen = [i for i, a in enumerate(arrays) if a.dtype in [np.dtype(k) for k in kept]]
    arrays, numbers_of = [arrays[i] for i in chosen], numbers_of[chosen]
    spans, alive = spans_of(arrays, "cuda")
    q = np.array([0.005, 0.5, 0.995])
    together = [
        np.concatenate([a.astype(np.float64) for a, k in zip(arrays, numbers_of, strict=True) if k == layer])
        for layer in range(3)
    ]
    finite = [x[np.isfinite(x)] for x in together]
    found = quantiles(spans, numbers_of, np.array([x.size for x in finite]), q, CUDA)
    np.testing.assert_array_equal(found, [np.quantile(x, q) for x in finite])
    del alive


def test_reports_are_added_as_on_the_cpu():
    size, count = 3_000_001, 47
    reports = np.random.default_rng(0).integers(0, 256, (count, size), dtype=np.uint8)
    there = [torch.from_numpy(r).to(CUDA) for r in reports]
    bits, native, by_bytes = BitTally(size, CUDA), _native.Tally(size, "scalar"), ByteTally(size, CUDA)
    for start in range(0, count, 20):
        bits.add(there[start : start + 20])
        by_bytes.add(there[start : start + 20])
    native.add(list(reports), 2)
    assert np.array_equal(bits.sums(), native.planes())
    assert np.array_equal(by_bytes.sums(), reports.sum(0, dtype=np.uint32))


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise"])
def test_an_aggregate_counts_reports_where_they_lie(mechanism):
    """From threads, each on a stream of its own: the tally's kernels run one after another."""
    model = torch.linspace(-1, 1, 300_007, device=CUDA)
    made = [
        ldpkernels.report(model, 0.0, 1.0, 2.0, mechanism=mechanism, generator=ldpkernels.key(i)) for i in range(40)
    ]
    host, there = ldpkernels.Aggregate(), ldpkernels.Aggregate()
    host.add(*(ldpkernels.Report(r.layout, r.bits) for r in made))

    def work(some):
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            for report in some:
                there.add(report)

    torch.cuda.synchronize()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [made[i::4] for i in range(4)]))
    assert there.clients == 40
    assert there._counter._host.count == 0, "they were copied to the host"
    assert there.to_bytes() == host.to_bytes()
    assert torch.equal(there.mean(), host.mean())
