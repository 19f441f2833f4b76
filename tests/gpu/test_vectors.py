# SPDX-License-Identifier: Apache-2.0
"""Whole vectors on a GPU: the CPU's bits, at every size of a pass, and where the results lie."""

import numpy as np
import pytest
import torch

import ldpkernels
from benchmarks.gpu.operations import DTYPES, same
from ldpkernels import launch, updates

SIZES = [1, 2, 33, 257, 4097, 65_537, 100_003, (1 << 20) + 1]


@pytest.fixture
def triton(gpu_backend):
    """The one that has kernels of whole vectors."""
    if gpu_backend != "triton":
        pytest.skip(f"the {gpu_backend} backend has no vectors kernel")


def update(n, dtype):
    return torch.randn(n, generator=torch.Generator().manual_seed(n)).mul_(3.0).to(dtype)


@pytest.mark.parametrize("law", [{"mechanism": "gaussian", "sigma": 0.8}, {"eps": 8.0}], ids=["gaussian", "privunitg"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reports_stay_on_the_device(triton, on_gpu, key, dtype, law):
    for n in SIZES:
        parts = [update(n, dtype), update(7, torch.float32), torch.zeros(0), update(n, dtype).view(1, -1).T]
        options = law | {"norm": 1.0, "generator": key}
        found = on_gpu(ldpkernels.perturb_vector, [t.cuda() for t in parts], **options)
        expected = ldpkernels.perturb_vector(parts, **options)
        assert all(t.is_cuda for t in found)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True)), n


def test_without_force_too(key):
    x = update(10_001, torch.float32)
    options = {"mechanism": "gaussian", "sigma": 0.8, "norm": 1.0, "generator": key}
    found = ldpkernels.perturb_vector({"w": x.cuda()}, **options)["w"]
    assert found.is_cuda == ("triton" in ldpkernels.backends())
    assert same(found, ldpkernels.perturb_vector({"w": x}, **options)["w"])


def test_what_is_no_number_is_cleaned(triton, on_gpu, key):
    x = update(5000, torch.float32)
    x[7], x[100], x[4000] = torch.nan, torch.inf, -torch.inf
    options = {"mechanism": "gaussian", "sigma": 0.8, "norm": 1.0, "generator": key}
    found = on_gpu(ldpkernels.perturb_vector, x.cuda(), **options)
    assert same(found, ldpkernels.perturb_vector(x, **options))


@pytest.mark.parametrize("levels", [0, 1, 4, 5, 11, 12, 13, 17, 20, 24])
def test_rotations(triton, on_gpu, key, levels):
    x = np.random.default_rng(levels).standard_normal(1 << levels).astype(np.float32)
    for inverse in (False, True):
        there, here = torch.from_numpy(x.copy()).cuda(), x.copy()
        on_gpu(launch.rotate, there, key, inverse=inverse)
        launch.rotate(here, key, inverse=inverse)
        assert same(there, torch.from_numpy(here))


@pytest.mark.parametrize("n", [100, 5001, 300_000])
def test_secure_sums_and_codes(triton, on_gpu, key, n):
    x, shared = update(n, torch.float32), ldpkernels.key(3)
    law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=n, clients=1000, bits=26)
    found = on_gpu(updates.encode, x.cuda(), law, shared, generator=key)
    assert (found == updates.encode(x, law, shared, generator=key)).all()
    skellam = ldpkernels.DistributedSkellam.calibrated(8.0, 1e-5, dimension=n, clients=1000, bits=26)
    found = on_gpu(updates.encode, x.cuda(), skellam, shared, generator=key)
    assert (found == updates.encode(x, skellam, shared, generator=key)).all()
    pytest.importorskip("scipy", reason="a code's law needs it")
    code = ldpkernels.ProjectedCode(8.0, dimension=n, bits=8)
    found = on_gpu(updates.report_code, x.cuda(), code, shared, generator=key)
    assert found == updates.report_code(x, code, shared, generator=key)
