# SPDX-License-Identifier: Apache-2.0
# A sample of a single number is clamped: sensitivity, order of additions on every backend, gradient.
import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native, clipped_noised_sum, key
from ldpkernels.common import capabilities
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import span_table
from ldpkernels.launch import dispatch
from ldpkernels.laws import clipped_noise as law

SIXTEEN = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
FORMATS = {"float32": np.float32, "float64": np.float64, **SIXTEEN}


def one_by_one(x, C, noise, isa):
    """The sum of each number alone, by a kernel, and the grid's unit."""
    width = np.float64 if x.dtype == np.float64 else np.float32
    out = np.empty(len(x), width)
    kind = next(kind for kind in DTYPES.values() if kind.name == x.dtype.name)
    spans = span_table([x.ctypes.data], [out.ctypes.data], [1], [kind])
    unit = law.noise_of([C], 0.0, noise, 1).unit
    for i in range(len(x)):
        spans["data"] = x.ctypes.data + i * x.itemsize
        spans["out"] = out.ctypes.data + i * out.itemsize
        _native.narrow_sums(spans, 1, None, C, 0.0, 1.0, unit, 0, key(0).uint32(), isa, 1)
    return out, unit


def check(x, C, noise, isa):
    """Each sum is the clamped number, or what is left of it on the grid, and never beyond C."""
    out, unit = one_by_one(x, C, noise, isa)
    wide = x.astype(out.dtype)
    bound = out.dtype.type(C)
    bound = bound if Fraction(float(bound)) <= Fraction(C) else np.nextafter(bound, out.dtype.type(0))
    assert Fraction(float(bound)) <= Fraction(C) < Fraction(float(np.nextafter(bound, out.dtype.type(np.inf))))
    expected = np.where(np.isfinite(wide), np.clip(wide, -bound, bound), 0).astype(out.dtype)
    if noise == "discrete":
        expected = np.trunc(expected.astype(np.float64) / unit) * unit
        expected = expected.astype(out.dtype)
    assert (out == expected).all()
    assert float(abs(out).max()) <= C
    if noise == "gaussian":
        assert float(abs(out).max()) == float(bound)


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("dtype", SIXTEEN)
def test_no_number_of_16_bits_passes_the_bound(dtype, noise):
    """All of them, alone: what adding or removing one can change is C at most, and with fp32's largest below C, so."""
    x = np.arange(1 << 16, dtype=np.uint16).view(SIXTEEN[dtype])
    with np.errstate(invalid="ignore"):
        check(x, 0.7, noise, _native.isas()[0])


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_number_passes_the_bound(dtype, noise, isa):
    kind = FORMATS[dtype]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 800, np.uint32) if dtype == "float32" else rng.integers(0, 1 << 63, 800, np.uint64)
    for C in (1.0, 0.7, 3e-5, 1 + 2.0**-30, 16777217.0):
        near = [kind(C) * kind(1 + k * np.finfo(kind).eps) for k in range(-4, 5)]
        edges = [0, np.finfo(kind).max, np.finfo(kind).smallest_subnormal, np.nan, np.inf, C, *near]
        with np.errstate(invalid="ignore", over="ignore"):
            x = np.concatenate(
                [bits.view(kind), rng.standard_normal(200).astype(kind) * kind(2 * C), np.array(edges, kind)]
            )
            check(np.concatenate([x, -x]), C, noise, isa)


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_backend_adds_in_the_order_of_the_document(dtype, noise):
    """Fractions of lanes, pieces and groups; with norms and without them."""
    for n in (1, 63, 64, 65, 1000, 1024, 1025, 4096, 4097, 9000):
        x = (np.random.default_rng(n).standard_normal(n) * 2).astype(FORMATS[dtype])
        if n > 1000:
            x[[5, 50, 70, 90]] = [np.nan, np.inf, 0.0, -0.0]
            x[200:210] = -(2.0**-130)
        options = {"noise": noise, "generator": key(n)}
        with ldpkernels.backend("reference"):
            expected, known = clipped_noised_sum(x, 0.7, 0.5, return_info=True, **options)
        for isa in _native.isas():
            with ldpkernels.backend(isa):
                found, info = clipped_noised_sum(x, 0.7, 0.5, return_info=True, **options)
                assert found.tobytes() == expected.tobytes()
                for shaped in (x, x[:, None]):
                    assert clipped_noised_sum(shaped, 0.7, 0.5, **options).tobytes() == expected.tobytes()
            assert np.array_equal(info.norms, abs(x.astype(np.float64)), equal_nan=True)
            assert (info.clipped, info.poisoned) == (known.clipped, known.poisoned)


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_numbers_beside_rows_and_on_several_threads(dtype, noise, monkeypatch):
    monkeypatch.setattr(dispatch, "SMALL", 1)
    x, rows = np.linspace(-2, 2, 5000).astype(FORMATS[dtype]), np.random.default_rng(1).standard_normal((5000, 2))
    x[[7, 1030, 4999]] = [np.nan, -np.inf, 60000]
    for case in ([x], [x, rows], [rows, x]):
        found = set()
        for backend, threads in [("reference", 1), *itertools.product(_native.isas(), (1, 3))]:
            monkeypatch.setattr(capabilities, "threads", lambda n=threads: n)
            with ldpkernels.backend(backend):
                out = clipped_noised_sum(case, 0.7, 0.5, noise=noise, clipping="per-layer", generator=key(3))
            found.add(b"".join(one.tobytes() for one in out))
        assert len(found) == 1


def test_the_error_is_that_of_sixteen_additions_and_six():
    """64 in a row, as rows of more numbers are added, may lose three times as much."""
    x = np.random.default_rng(0).random(1 << 20, np.float32)
    found = float(clipped_noised_sum(x.astype(np.float64), 2.0, 0.0))
    assert abs(found - math.fsum(x.tolist())) < 1e-9 * found
    pieces = [float(clipped_noised_sum(p, 2.0, 0.0)) - math.fsum(p.tolist()) for p in x.reshape(-1, 1024)]
    assert max(abs(e) for e in pieces) <= 22 * 2.0**-24 * 1024


def test_gradients_and_counts_are_those_of_clamping():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64):
        for C in (1.0, 0.7):
            bound = law.at_most(C, np.float64 if dtype == torch.float64 else np.float32)
            at = torch.tensor(bound, dtype=dtype)
            below, above = (torch.nextafter(at, torch.tensor(end, dtype=dtype)) for end in (0.0, 9.0))
            x = torch.stack(
                [-below, below, at, above, -above, at * 0, torch.tensor(torch.nan), torch.tensor(-torch.inf)]
            )
            x = x.to(dtype).requires_grad_()
            out, info = clipped_noised_sum(x, C, 0.0, return_info=True)
            out.backward()
            kept = 1.0 if bound < C else 0.0  # |x| = C counts as clipped
            assert x.grad.tolist() == [1, 1, kept, 0, 0, 1, 0, 0]
            assert info.clipped == 3 - kept
            assert info.poisoned == 2
            assert torch.equal(info.norms[:6], x.detach().abs().double()[:6])


def test_a_square_that_overflows_poisons_no_single_number():
    out, info = clipped_noised_sum(np.array([1e300, -1e300, 0.25]), 2.0, 0.0, return_info=True)
    assert (float(out), info.clipped, info.poisoned) == (0.25, 2, 0)
    assert info.norms.tolist() == [1e300, 1e300, 0.25]


def test_another_tensor_or_column_makes_it_a_row():
    """The general rule scales with a margin, which a clamped number has not."""
    x = np.full(1, 3.0)
    assert float(clipped_noised_sum(x, 0.7, 0.0)) == 0.7
    assert float(clipped_noised_sum({"x": x}, 0.7, 0.0, clipping="per-layer")["x"]) == 0.7
    beside = clipped_noised_sum([x, np.zeros(1)], 0.7, 0.0)[0]
    assert 0.7 * (1 - 1e-9) < float(beside) < 0.7
    assert 0.7 * (1 - 1e-9) < float(clipped_noised_sum(np.array([[3.0, 0.0]]), 0.7, 0.0)[0]) < 0.7
