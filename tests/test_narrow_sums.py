# SPDX-License-Identifier: Apache-2.0
# Sums of matrices of few columns in one pass have the bits of two passes, with and without norms, on every backend.
# Those of one column are in test_single_numbers.py.
import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import _native, clipped_noised_mean, clipped_noised_sum, key

ROWS = (1, 5, 63, 64, 1000, 1024, 1025, 2048, 4096, 4097, 9000)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def matrix(rows, columns, dtype, spread):
    generator = torch.Generator().manual_seed(rows * 10 + columns)
    x = torch.randn(rows, *[columns] * (columns > 0), generator=generator)
    x = x * torch.exp(spread * torch.randn(rows, *[1] * (columns > 0), generator=generator))
    if rows > 1000:
        x[5], x[50], x[70], x[90] = float("nan"), float("inf"), 0.0, -0.0
        x[200:210] = 2.0**-130
    return x.to(dtype)


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("columns", [2, 3, 4, 7, 8])
def test_one_pass_has_the_bits_of_two(monkeypatch, columns, noise, isa):
    """C=64 clips next to nothing, so that whole chunks of rows are taken as they are; C=1 clips a half."""
    for rows in ROWS:
        x = matrix(rows, columns, DTYPES[rows % 4], 0.5)
        for C in (1.0, 64.0):
            options = {"noise": noise, "generator": key(rows)}
            with ldpkernels.backend(isa):
                with monkeypatch.context() as patch:
                    patch.setattr(_native, "NARROW", 0)
                    expected, before = clipped_noised_sum(x, C, 0.7, return_info=True, **options)
                found, info = clipped_noised_sum(x, C, 0.7, return_info=True, **options)
                alone = clipped_noised_sum(x, C, 0.7, **options)
                mapped = clipped_noised_sum({"x": x}, C, 0.7, **options)["x"]
            assert torch.equal(found, expected)
            assert torch.equal(alone, expected)
            assert torch.equal(mapped, expected)
            assert alone.dtype == x.dtype
            assert torch.equal(info.norms.nan_to_num(-1.0), before.norms.nan_to_num(-1.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_and_means(dtype):
    x = matrix(5000, 2, dtype, 0.5)
    mean, info = clipped_noised_mean(x, 1.0, 0.7, generator=key(1), return_info=True)
    assert torch.equal(clipped_noised_mean(x, 1.0, 0.7, generator=key(1)), mean)
    assert info.poisoned == 2
    if dtype != torch.bfloat16:
        array = clipped_noised_mean(x.numpy(), 1.0, 0.7, generator=key(1))
        assert array.dtype == x.numpy().dtype
        assert (array == mean.numpy()).all()


def test_spans_of_no_matrix_are_refused():
    spans = np.zeros(1, _native.SPAN)
    spans["numel"] = 9
    with pytest.raises(ValueError, match="one matrix of few columns"):
        _native.narrow_sums(spans, 1, None, 1.0, 0.0, 1.0, 0.0, 0, key(0).uint32(), "", 1)
