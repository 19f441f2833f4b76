# SPDX-License-Identifier: Apache-2.0
# What comes out of the piecewise and hybrid mechanisms: fit to the exact law with power, reports and their sums, torch.
import numpy as np
import pytest

pytest.importorskip("torch")
import ldpkernels
import ldpkernels.ops
from ldpkernels import Aggregate, Report, aggregate, perturb_, report
from tests.cells import DTYPES, MECHANISMS
from tests.statistics import chi_square, fits, mean_test, rejected, variance_test

N = 1 << 20
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*TF32.*:UserWarning"),
]


def sampled_cells(mechanism, w, eps, key, dtype=np.float32, n=N):
    return np.bincount(
        report(np.full(n, w, dtype), 0.0, 1.0, eps, mechanism=mechanism, generator=key).bits, minlength=256
    )


def merged(counts, expected):
    """Neighbouring cells until each bin has an expected count of 20."""
    bins = np.floor(np.cumsum(expected) / 20).astype(int)
    bins = np.minimum(np.unique(bins, return_inverse=True)[1], bins.max())
    bins[bins == bins[-1]] = bins[-1] - 1 if expected[bins == bins[-1]].sum() < 20 and bins[-1] else bins[-1]
    return np.bincount(bins, counts), np.bincount(bins, expected)


@pytest.mark.parametrize("w", [-1.0, -0.31, 0.0, 0.707, 5.0])
@pytest.mark.parametrize("eps", [0.7, 1.0, 4.0, 7.0])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_fit_to_the_exact_law(mechanism, eps, w, key):
    counts = sampled_cells(mechanism, w, eps, key)
    expected = N * np.array([float(p) for p in MECHANISMS[mechanism](eps).law(w, 0.0, 1.0)])
    fits(chi_square(*merged(counts, expected)))


@pytest.mark.parametrize("eps", [1.0, 4.0])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_2_percent_of_eps_are_seen(mechanism, eps, key):
    n = 1 << 23
    counts = sampled_cells(mechanism, 0.25, eps, key, n=n)
    expected = n * np.array([float(p) for p in MECHANISMS[mechanism](1.02 * eps).law(0.25, 0.0, 1.0)])
    rejected(chi_square(*merged(counts, expected)))


@pytest.mark.parametrize("w", [-0.4, 0.0, 0.375])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_mean_and_variance_of_values(mechanism, dtype, w, key):
    """C, R and the weights are numbers of every dtype (-0.4 is clipped to the end), so that the law alone is tested."""
    c, r, eps = 0.125, 0.375, 1.5
    x = perturb_(np.full(N, w, dtype), c, r, eps, mechanism=mechanism, generator=key).astype(np.float64)
    law = [float(p) for p in MECHANISMS[mechanism](eps).law(w, c, r, dtype)]
    outputs = MECHANISMS[mechanism](eps).outputs(c, r, dtype)
    mean, variance = max(w, c - r), float(MECHANISMS[mechanism](eps).variance(w, c, r, dtype))
    fits(mean_test(x, mean, variance))
    fourth = float(np.dot(law, (outputs - mean) ** 4))
    fits(variance_test(x, mean, variance, fourth))
    rejected(variance_test(c + 1.02 * (x - c), mean, variance, fourth))


SIZES = [(3, 5), (), (17,), (0, 4), (2, 2, 33)]


def model(client, dtype=np.float64):
    rng = np.random.default_rng(client)
    return {f"layer.{i}": rng.uniform(-0.5, 1.0, s).astype(dtype) for i, s in enumerate(SIZES)}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aggregate_is_the_mean_of_decoded_reports(mechanism):
    ones = [report(model(i), 0.25, 0.5, 2.0, mechanism=mechanism, generator=ldpkernels.key(i)) for i in range(40)]
    assert ones[0].nbytes == sum(int(np.prod(s)) for s in SIZES)
    mean, at = aggregate(one.to_bytes() for one in ones), 0
    offset, step = MECHANISMS[mechanism](2.0).affine(0.25, 0.5)
    sums = np.sum([one.bits.astype(np.int64) for one in ones], axis=0)
    for name, shape in zip(ones[0].layout.names, SIZES, strict=True):
        size = int(np.prod(shape))
        expected = offset + step / 40 * sums[at : at + size].reshape(shape)
        assert np.allclose(mean[name], expected, rtol=1e-14, atol=1e-14)
        at += size


def test_counters_widen_before_they_overflow():
    from ldpkernels.wire.counters import ByteCounter

    layout = report(np.zeros(3), 0.0, 1.0, 2.0, mechanism="piecewise").layout
    counter = ByteCounter(layout)
    counter.restore(16_843_009, np.array([2**32 - 1, 5, 0], "<u4").tobytes())
    counter.add([np.array([255, 1, 0], np.uint8)], 1)
    assert counter.decode(0, 0.0, 1.0, "float64", 1).tolist() == [2.0**32 + 254, 6.0, 0.0]
    other = ByteCounter(layout)
    other.restore(counter.count, counter.sums().tobytes())
    other.add_sums(counter.count, counter.sums())
    assert other.decode(0, 0.0, 1.0, "float64", 1).tolist() == [2.0**33 + 508, 12.0, 0.0]


def test_mixed_reports_and_forged_ones_are_refused():
    bits, byte, hybrid = (report(np.zeros(8), 0.0, 1.0, 2.0, mechanism=m) for m in ("two-point", "piecewise", "hybrid"))
    total = Aggregate()
    total.add(byte)
    for other in (bits, hybrid):
        with pytest.raises(ValueError, match="mechanism"):
            total.add(other)
    assert total.clients == 1
    assert Report.from_bytes(hybrid.to_bytes()).layout.mechanism == "hybrid"
    from ldpkernels.wire.envelope import decode, encode

    header, payload = decode(byte.to_bytes(), "report")
    for change in (
        {"threshold": 5},
        {"mechanism": "hybrid"},
        {"mechanism": "duchi"},
        {"eps": 0.5, "mechanism": "hybrid"},
    ):
        with pytest.raises(ValueError, match="header"):
            Report.from_bytes(encode({"kind": "report", **header, **change}, payload))
    with pytest.raises(ValueError, match="bytes of weights"):
        Report.from_bytes(encode({"kind": "report", **header}, payload + b"\0"))
