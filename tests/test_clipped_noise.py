# SPDX-License-Identifier: Apache-2.0
# Clipping, the edges, and the same bits everywhere. The noise's law is in test_clipped_noise_law.py.
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native, clipped_noised_mean, clipped_noised_sum
from ldpkernels.common import capabilities
from ldpkernels.inputs import checks
from ldpkernels.launch import dispatch
from ldpkernels.laws import clipped_noise as _clipped

KEYS = {"philox": ldpkernels.key(0x0123456789ABCDEF), "aes": ldpkernels.Key((2**64 - 1, 5))}
KEYS["chacha20"] = ldpkernels.Key((2**64 - 1, 5, 0, 2**63))
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NATIVE = _native.isas()


def rows(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def plain(x, C):
    """The sum as it is written, in fp64."""
    flat = x.reshape(len(x), -1).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1)
    return (flat / np.maximum(1, norms / C)[:, None]).sum(0).reshape(x.shape[1:])


@pytest.mark.parametrize("shape", [(5,), (1, 7), (300, 3), (9, 4, 5), (70, 2050), (4100, 6), (9000, 1), (2, 70_001)])
def test_the_sum_is_that_of_clipped_rows(shape):
    x = rows(shape)
    C = float(np.median(np.linalg.norm(x.reshape(len(x), -1), axis=1)))
    out, info = clipped_noised_sum(x, C, 0.0, return_info=True)
    assert out.shape == shape[1:]
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, plain(x, C), rtol=2e-6, atol=2e-6 * C * np.sqrt(len(x)))
    assert 0 < info.clipped <= len(x) // 2 + 1
    np.testing.assert_allclose(info.norms, np.linalg.norm(x.reshape(len(x), -1).astype(float), axis=1), rtol=1e-14)
    np.testing.assert_allclose(clipped_noised_mean(x, C, 0.0), out / len(x), rtol=1e-6)
    np.testing.assert_allclose(clipped_noised_mean(x, C, 0.0, batch_size=2.5), out / 2.5, rtol=1e-6)


def test_rows_below_at_and_above_the_bound():
    losses = np.array([0.5, -0.5, 2.0, -2.0, 2.5, 1e150, -1e150, 0.0, 5e-324])
    each = [float(clipped_noised_sum(losses[i : i + 1], 2.0, 0.0)) for i in range(len(losses))]
    assert each[:2] == [0.5, -0.5]
    np.testing.assert_allclose(each[2:7], [2, -2, 2, 2, -2], rtol=3e-10)
    assert all(abs(v) <= 2.0 for v in each)
    assert each[7:] == [0.0, 5e-324]
    out, info = clipped_noised_sum(np.array([[1e160, 0.0], [0.5, 0.5]]), 2.0, 0.0, return_info=True)
    assert out.tolist() == [0.5, 0.5]  # 1e160 squared is no fp64 number: poisoned
    assert (info.poisoned, info.clipped) == (1, 0)
    x = np.array([[3e38, 3e38], [0.5, 0.5]], np.float32)
    np.testing.assert_allclose(clipped_noised_sum(x, 2.0, 0.0), 0.5 + np.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("poison", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_poisoned_row_is_left_out_and_disturbs_no_other(poison, dtype, noise):
    x = rows((70, 33), dtype=DTYPES[dtype])
    y = rows((70, 5), 1, DTYPES[dtype])
    clean = [np.delete(x, [3, 66], 0), np.delete(y, [3, 66], 0)]
    zeroed = [x.copy(), y.copy()]
    for z in zeroed:
        z[[3, 66]] = 0
    x[3, 32], y[66, 0] = poison, poison
    for clipping in ("flat", "per-layer"):
        options = {"generator": KEYS["philox"], "noise": noise, "clipping": clipping}
        out, info = clipped_noised_sum([x, y], 2.0, 1.0, return_info=True, **options)
        same = clipped_noised_sum(zeroed, 2.0, 1.0, **options)
        assert info.poisoned == 2
        assert info.clipped <= 68
        for a, b, c in zip(out, same, clean, strict=True):
            assert np.isfinite(a.astype(float)).all()
            assert (a == b).all()
            assert c.shape[1:] == a.shape


def test_all_rows_poisoned_or_zero_leave_the_noise():
    noise = clipped_noised_sum(np.empty((0, 9)), 1.0, 1.0, generator=KEYS["philox"])
    assert (noise != 0).all()
    for x in (np.full((5, 9), np.nan), np.zeros((5, 9))):
        assert (clipped_noised_sum(x, 1.0, 1.0, generator=KEYS["philox"]) == noise).all()
    assert (clipped_noised_sum(np.empty((0, 9)), 1.0, 0.0) == 0).all()
    assert clipped_noised_sum(np.empty((4, 0)), 1.0, 1.0).shape == (0,)
    assert (clipped_noised_mean(np.empty((0, 9)), 1.0, 1.0, batch_size=4, generator=KEYS["philox"]) == noise / 4).all()


def test_noise_is_added_once_and_scaled_by_the_bound_and_the_divisor():
    unit = clipped_noised_sum(np.zeros((1, 50)), 1.0, 1.0, generator=KEYS["philox"])
    for B in (1, 2, 300):
        assert (clipped_noised_sum(np.zeros((B, 50)), 0.5, 4.0, generator=KEYS["philox"]) == 2 * unit).all()
        assert (clipped_noised_mean(np.zeros((B, 50)), 4.0, 1.0, generator=KEYS["philox"]) == 4 * unit / B).all()


@pytest.mark.parametrize("cipher", KEYS)
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_instruction_set_and_thread_count_gives_the_bits_of_the_reference(dtype, noise, cipher, monkeypatch):
    x = rows((75, 1037), dtype=DTYPES[dtype])
    x[5, 5] = np.nan
    small = {"a": x[:, :31], "b": rows((75, 3, 3), 1, np.float64), "c": x[:, 40]}
    for case in (small, {"x": x}):
        if noise == "discrete" and case is not small:
            continue  # the reference draws slowly
        for clipping in ("flat", "per-layer"):
            options = {"generator": KEYS[cipher], "noise": noise, "clipping": clipping}
            with ldpkernels.backend("reference"):
                expected = clipped_noised_sum(case, 4.0, 0.8, **options)
            for isa in NATIVE:
                for threads in (1, 3):
                    monkeypatch.setattr(capabilities, "threads", lambda n=threads: n)
                    monkeypatch.setattr(dispatch, "SMALL", 1)
                    with ldpkernels.backend(isa):
                        out = clipped_noised_sum(case, 4.0, 0.8, **options)
                    assert out.keys() == case.keys()
                    for name in case:
                        assert out[name].dtype == case[name].dtype
                        assert out[name].tobytes() == expected[name].tobytes(), (isa, threads, name)


@pytest.mark.parametrize("shape", [(4200, 40), (3, 140_000), (200, 9000)])
def test_threads_and_instruction_sets_agree_on_large_matrices(shape, monkeypatch):
    x = rows(shape)
    monkeypatch.setattr(dispatch, "SMALL", 1)
    found = set()
    for isa in NATIVE:
        for threads in (1, 2, 5):
            monkeypatch.setattr(capabilities, "threads", lambda n=threads: n)
            with ldpkernels.backend(isa):
                out, info = clipped_noised_sum(x, 3.0, 0.5, generator=KEYS["philox"], return_info=True)
            found.add(out.tobytes() + info.norms.tobytes())
    assert len(found) == 1


def test_the_reference_agrees_on_rows_of_several_stretches_and_groups():
    for shape in ((4100, 2), (2, 66_600)):
        x = rows(shape)
        out = []
        for name in (NATIVE[0], "reference"):
            with ldpkernels.backend(name):
                out.append(clipped_noised_sum(x, 3.0, 0.5, generator=KEYS["philox"]).tobytes())
        assert out[0] == out[1]


def test_strided_expanded_and_transposed_rows():
    x = rows((12, 20, 6))
    views = [x[::2], x[:, ::-1], x.transpose(0, 2, 1), x[:, 3], np.broadcast_to(x[0], (5, 20, 6)), x.T]
    for view in views:
        a = clipped_noised_sum(view, 2.0, 0.5, generator=KEYS["philox"])
        b = clipped_noised_sum(np.ascontiguousarray(view), 2.0, 0.5, generator=KEYS["philox"])
        assert (a == b).all()


def test_flat_and_per_layer_clipping_of_a_model():
    model = {"w": rows((40, 6, 7)), "b": rows((40, 3), 1, np.float64)}
    joined = np.concatenate([model["w"].reshape(40, -1), model["b"]], 1)
    flat = clipped_noised_sum(model, 2.0, 0.0)
    np.testing.assert_allclose(flat["w"].reshape(-1), plain(joined, 2.0)[:42], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(flat["b"], plain(joined, 2.0)[42:], rtol=1e-9)
    one, info = clipped_noised_sum(model, 2.0, 0.0, clipping="per-layer", return_info=True)
    each = clipped_noised_sum(list(model.values()), [0.5, 3.0], 0.0, clipping="per-layer")
    assert info.norms.shape == (40, 2)
    assert sum(b * b for b in info.bounds) <= 4
    for i, name in enumerate(model):
        np.testing.assert_allclose(one[name], plain(model[name], 2 / np.sqrt(2)), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(each[i], plain(model[name], (0.5, 3.0)[i]), rtol=1e-5, atol=1e-6)
    zeros = [np.zeros((1, 64)), np.zeros((1, 64))]
    noise = clipped_noised_sum(zeros, [3.0, 4.0], 2.0, clipping="per-layer", generator=KEYS["philox"])
    base = clipped_noised_sum(zeros, 1.0, 1.0, generator=KEYS["philox"])
    np.testing.assert_allclose(noise, [10 * b for b in base], rtol=1e-14)  # 2 * norm of (3, 4)
    assert not (base[0] == base[1]).any()


def test_a_row_of_the_grid_is_within_the_bound_exactly():
    for seed, d in enumerate((1, 2, 3, 1000, 70_000)):
        for size in (1 - 1e-9, 1.0, 1 + 1e-12, 1e6):
            for C in (1.0, 0.7, 3e-5):
                x = rows((1, d), seed, np.float64)
                x *= C * size / np.linalg.norm(x)
                unit = Fraction(_clipped.noise_of([C], 0.0, "discrete", 1).unit)
                out = clipped_noised_sum(x, C, 0.0, noise="discrete")
                integers = out / float(unit)
                assert (integers == np.rint(integers)).all()
                norm = sum(int(v) ** 2 for v in integers.tolist())
                assert norm <= (Fraction(C) / unit) ** 2
                assert norm >= (Fraction(C) / unit * Fraction(9, 10)) ** 2 or d == 70_000


def test_grid_sums_are_the_sums_of_their_rows():
    x = rows((90, 50), dtype=np.float64) * 10.0 ** rows(90, 1)[:, None]
    each = sum(clipped_noised_sum(x[i : i + 1], 1.0, 0.0, noise="discrete") for i in range(90))
    assert (clipped_noised_sum(x, 1.0, 0.0, noise="discrete") == each).all()


@pytest.mark.parametrize("columns", [1, 3, 100])
def test_no_row_decides_whether_a_sum_overflows(columns):
    """At the largest bounds that there are: 35 rows of 1e37 had an infinite fp32 sum, where 34 had none."""
    for kind, C, noise in (
        (np.float32, 1e30, "gaussian"),
        (np.float64, 1e100, "gaussian"),
        (np.float32, 1e100, "discrete"),
    ):
        x = np.full((5000, columns), np.finfo(kind).max if columns == 1 else 1e37, kind)
        mean = clipped_noised_mean(
            x, C, 1.0, batch_size=1e75 if noise == "discrete" else 1e9, generator=ldpkernels.key(0), noise=noise
        )
        assert np.isfinite(mean).all()
        assert (mean != 0).all()


def test_products_are_within_the_bound_where_they_are_smallest():
    """A million of C / 1000 each: as multiples of 2^-149 they would have rounded up, to twice the bound."""
    x = np.full((1, 1_000_000), 1e-38, np.float32)
    out = clipped_noised_sum(x, 1e-30, 0.0).astype(np.float64)
    assert 0 < np.linalg.norm(out) <= 1e-30 * (1 + 2.0**-23)
    x = np.full((1, 1_000_000), 3e-36, np.float32)
    assert 0.99e-33 < np.linalg.norm(clipped_noised_sum(x.astype(np.float64), 1e-33, 0.0)) <= 1e-33
    out = clipped_noised_sum(x * np.float32(1e6), 1e-30, 0.0).astype(np.float64)
    assert 0.99e-30 < np.linalg.norm(out) <= 1e-30 * (1 + 2.0**-23)


X = np.ones((3, 2), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X, 0.0, 1.0), {}, ValueError, "C=0.0 must be a positive bound"),
        ((X, -1.0, 1.0), {}, ValueError, "C=-1.0"),
        ((X, np.nan, 1.0), {}, ValueError, "C=nan"),
        ((X, np.inf, 1.0), {}, ValueError, "C=inf"),
        (
            (X, 1e31, 1.0),
            {},
            ValueError,
            "C=1e.31 must be from 1e-30 to 1e30 for rows that are added in fp32: pass fp64",
        ),
        ((X[:, 0], 1e-31, 1.0), {}, ValueError, "C=1e-31 must be from 1e-30 to 1e30"),
        ((X.astype(np.float16), 1e31, 1.0), {}, ValueError, "or noise='discrete'"),
        (([X, X.astype(float)], [1.0, 1e31], 1.0), {"clipping": "per-layer"}, ValueError, "C=1e.31"),
        ((X.astype(float), 1e101, 1.0), {}, ValueError, "from 1e-100 to 1e100"),
        ((X, "1x", 1.0), {}, TypeError, "C='1x' must be a number"),
        ((X, [1.0, 2.0], 1.0), {}, ValueError, "C has 2 values for 1 tensors"),
        (([X, X + 1], [1.0, 2.0], 1.0), {}, ValueError, "pass one number, or with 'per-layer'"),
        ((X, 1.0, -0.5), {}, ValueError, "sigma=-0.5 must be finite"),
        ((X, 1.0, np.nan), {}, ValueError, "sigma=nan"),
        ((X, 1.0, 1e-9), {"noise": "discrete"}, ValueError, "too small for discrete noise"),
        ((X, 1.0, 1.0), {"noise": "laplace"}, ValueError, "'gaussian' or 'discrete'"),
        ((X, 1.0, 1.0), {"clipping": "layer"}, ValueError, "'flat' or 'per-layer'"),
        ((X, 1.0, 1.0), {"batch_size": 0}, ValueError, "batch_size=0 must be positive"),
        ((X[:0], 1.0, 1.0), {}, ValueError, "pass batch_size"),
        ((X[0, 0], 1.0, 1.0), {}, TypeError, "x is a float32"),
        ((np.array(1.0), 1.0, 1.0), {}, ValueError, "no dimension"),
        (([X, X[:2]], 1.0, 1.0), {}, ValueError, "tensor '1' has 2 rows and the first tensor 3"),
        ((X.astype(int), 1.0, 1.0), {}, TypeError, "dtype int64"),
        (([], 1.0, 1.0), {}, ValueError, "no tensors"),
        ((X, 1.0, 1.0), {"generator": 3}, TypeError, "generator=a int"),
    ],
)
def test_errors_name_the_argument_and_the_cure(arguments, options, error, message):
    with pytest.raises(error, match=message):
        clipped_noised_mean(*arguments, **options)


def test_losses_of_torch_are_added_in_one_pass_in_a_process_that_has_called_nothing_else(monkeypatch):
    torch = pytest.importorskip("torch")
    calls = []
    monkeypatch.setattr(dispatch._native, "narrow_sums", lambda *args: calls.append(args[2]))
    checks.PLAIN_KINDS.discard(torch.Tensor)
    checks.torch_dtypes.cache_clear()
    x = torch.ones(3)
    for _ in range(2):
        clipped_noised_sum(x, 1.0, 0.0)
    assert calls[-1] is None, "norms were kept, which nobody asks for"
