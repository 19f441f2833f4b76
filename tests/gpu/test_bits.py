# SPDX-License-Identifier: Apache-2.0
"""The GPU's bits are the CPU's, for every operation, dtype, cipher, length, law and view."""

import math

import pytest
import torch

import ldpkernels
from benchmarks.gpu.operations import DTYPES, EPS, KEYS, C, R, on, same, weights
from ldpkernels.laws.registry import MECHANISMS
from tests.test_ordinal_cldp_bits import IDS, LAWS, integers

LENGTHS = [0, 1, 2, 7, 8, 9, 15, 31, 32, 33, 63, 255, 256, 257, 1023, 4097, 8191, 65_537, 100_003, 1 << 20]


def test_every_operation(operation, key, on_gpu):
    """Three times, of which the later take what the first has left behind."""
    for dtype in operation.dtypes:
        expected = operation.call(operation.make(dtype), key)
        for _ in range(3):
            found = on_gpu(operation.call, on("cuda", operation.make(dtype)), key)
            assert [same(a, b) for a, b in zip(found, expected, strict=True)] == [True] * len(expected), dtype


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_of_every_length(on_gpu, key, dtype, mechanism):
    options = {"mechanism": mechanism, "generator": key}
    for n in LENGTHS:
        x = weights(n, dtype)
        report = on_gpu(ldpkernels.report, x.cuda(), C, R, EPS, **options)
        assert report.to_bytes() == ldpkernels.report(x, C, R, EPS, **options).to_bytes(), n
        values = on_gpu(ldpkernels.perturb_, x.cuda(), C, R, EPS, **options)
        assert same(values, ldpkernels.perturb_(x, C, R, EPS, **options)), n


@pytest.mark.parametrize("output", ["report", "values"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_thresholds_of_all_patterns(on_gpu, dtype, output):
    if dtype.itemsize == 2:
        x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    else:
        bits = torch.randint(-(2**63), 2**63 - 1, (1 << 20,), generator=torch.Generator().manual_seed(1))
        x = torch.cat([bits.view(dtype), weights(1 << 20, dtype)])
    for c, r, eps in ((C, R, EPS), (0.0, 1e-3, 8.0), (1.0, 2.0**-20, 0.01), (0.0, 0.0, 1.0)):
        found = on_gpu(ldpkernels.two_point_threshold, x.cuda(), c, r, eps, output=output)
        assert same(found, ldpkernels.two_point_threshold(x, c, r, eps, output=output))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_model_of_many_tensors(on_gpu, key, mechanism):
    sizes = [0, 1, 3, 8, 17, 256, 1000, 4096, 10_007]
    tensors = [weights(sizes[i % len(sizes)], DTYPES[i % 4], seed=i) for i in range(600)] + [torch.tensor(0.5)]
    ranges = [i / 600 for i in range(601)], [1 + i / 600 for i in range(601)], EPS
    options = {"mechanism": mechanism, "generator": key}
    report = on_gpu(ldpkernels.report, [t.cuda() for t in tensors], *ranges, **options)
    assert report.to_bytes() == ldpkernels.report(tensors, *ranges, **options).to_bytes()
    found = on_gpu(ldpkernels.perturb_, [t.cuda() for t in tensors], *ranges, **options)
    expected = ldpkernels.perturb_(tensors, *ranges, **options)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


VIEWS = {
    "rows and columns": lambda t: t[1:-1, 3:],
    "transposed": lambda t: t.T,
    "strided": lambda t: t[::2, ::3],
    "unaligned": lambda t: t.view(-1)[5:],
    "one": lambda t: t[3, 4],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_and_nothing_outside(on_gpu, key, dtype, view):
    for mechanism in ("two-point", "piecewise"):
        cpu = weights(33 * 70, dtype).view(33, 70)
        gpu = cpu.cuda()
        on_gpu(ldpkernels.perturb_, VIEWS[view](gpu), C, R, EPS, mechanism=mechanism, generator=key)
        ldpkernels.perturb_(VIEWS[view](cpu), C, R, EPS, mechanism=mechanism, generator=key)
        assert same(gpu, cpu)


@pytest.mark.parametrize("law", LAWS, ids=IDS)
def test_integers_of_every_law(on_gpu, key, law):
    alpha, m, mechanism = law
    v = torch.from_numpy(integers(20_000, m, 6))
    options = {"mechanism": mechanism, "generator": key}
    found = on_gpu(ldpkernels.cldp_sample, v.cuda(), alpha, m, **options)
    assert same(found, ldpkernels.cldp_sample(v, alpha, m, **options))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_weights_of_many_thread_blocks(on_gpu, key, rounding):
    """Whose chunks are as long as they get; a third of the weights is at an end, where samples are rejected."""
    x = weights(10_000_019, torch.float32)
    for alpha in (1e-3, 0.5):
        found = on_gpu(ldpkernels.cldp_, x.cuda(), alpha, 1.0, 4, rounding=rounding, generator=key)
        expected = ldpkernels.cldp_(x.clone(), alpha, 1.0, 4, rounding=rounding, generator=key)
        assert same(found, expected), alpha


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_many_rows_and_columns(on_gpu, key, dtype, noise):
    shapes = ((300, 70_000), (300, 7, 3), (300,)) if noise == "gaussian" else ((4099, 90), (4099, 5))
    x = [torch.randn(shape).to(dtype) for shape in shapes]
    x[1][3, 2] = torch.nan
    for clipping in ("flat", "per-layer"):
        options = {"generator": key, "noise": noise, "clipping": clipping}
        expected = ldpkernels.clipped_noised_sum(x, 30.0, 0.7, **options)
        found = on_gpu(ldpkernels.clipped_noised_sum, [t.cuda() for t in x], 30.0, 0.7, **options)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_sums_of_more_matrices_than_a_launch_takes(on_gpu, key, noise):
    x = [torch.randn(130, 1 + i % 37, generator=torch.Generator().manual_seed(i)) for i in range(120)]
    for clipping in ("flat", "per-layer"):
        options = {"generator": key, "noise": noise, "clipping": clipping, "return_info": True}
        expected, info = ldpkernels.clipped_noised_sum(x, 30.0, 0.7, **options)
        found, found_info = on_gpu(ldpkernels.clipped_noised_sum, [t.cuda() for t in x], 30.0, 0.7, **options)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))
        assert same(found_info.norms, info.norms)


def test_more_than_2_to_the_31_elements(on_gpu):
    n = 2**31 + 77
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of GPU memory")
    x = torch.zeros(n, dtype=torch.bfloat16)
    found = on_gpu(ldpkernels.perturb_, x.cuda(), C, R, EPS, generator=KEYS["philox"])
    expected = ldpkernels.perturb_(x, C, R, EPS, generator=KEYS["philox"])
    for start in range(0, n, 1 << 28):
        assert same(found[start : start + (1 << 28)], expected[start : start + (1 << 28)])


def test_reports_of_gpu_and_cpu_add_up(on_gpu):
    x = torch.full((10_000,), 0.5)
    reports = [on_gpu(ldpkernels.report, x.cuda(), 0.0, 1.0, 2.0) for _ in range(50)]
    reports += [ldpkernels.report(x, 0.0, 1.0, 2.0) for _ in range(50)]
    mean = ldpkernels.aggregate(reports)
    sigma = ldpkernels.TwoPoint(2.0).variance(0.5, 0.0, 1.0) ** 0.5 / math.sqrt(100 * len(x))
    assert abs(float(mean.double().mean()) - 0.5) < 6 * sigma
