# SPDX-License-Identifier: Apache-2.0
# Adaptive ranges: the methods, what shares one, the warning where min/max feeds on its own noise, the cap.
import math

import ml_dtypes
import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import TwoPoint, _native, launch, perturb_, ranges
from ldpkernels.calls.adaptive_ranges import growth_rate
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import span_table


def model(seed=0):
    rng = np.random.default_rng(seed)
    sizes = {"conv.weight": (30, 20), "conv.bias": (30,), "out.weight": (10, 30), "out.bias": (10,)}
    return {name: rng.normal(i, 0.1 * (i + 1), s) for i, (name, s) in enumerate(sizes.items())}


def layer(m, name):
    return np.concatenate([v.ravel() for k, v in m.items() if k.startswith(name)])


def test_minmax_is_the_papers():
    m = model()
    C, R = ranges(m)
    assert set(C) == set(R) == {"conv", "out"}
    for name in C:
        w = layer(m, name)
        assert (C[name], R[name]) == ((w.min() + w.max()) / 2, (w.max() - w.min()) / 2)


@pytest.mark.parametrize("quantile", [1.0, 0.99, 0.5, 1e-3])
def test_quantile_leaves_the_outermost_out(quantile):
    m = model()
    C, R = ranges(m, method="quantile", quantile=quantile)
    for name in C:
        w = layer(m, name)
        low, high = np.quantile(w, [(1 - quantile) / 2, (1 + quantile) / 2])
        assert (C[name], R[name]) == (pytest.approx((low + high) / 2), pytest.approx((high - low) / 2))
    if quantile == 1.0:
        assert pytest.approx(R) == ranges(m)[1]


def test_noise_subtracted_finds_the_signal_under_the_noise():
    d, n, eps, r = 200_000, 100, 1.0, 0.5
    noise = r * TwoPoint(eps).scale / math.sqrt(n)
    signal = np.random.default_rng(0).normal(0.2, noise, d)
    noisy = {"w": signal + np.random.default_rng(1).normal(0, noise, d)}
    options = {"previous": (0.0, r), "eps": eps, "clients": n}
    with pytest.warns(RuntimeWarning, match=r"reaches 1\.1 of the last radius.*growth=1\.0"):
        C, R = ranges(noisy, method="noise-subtracted", **options)
    assert C[""] == pytest.approx(0.2, abs=6 * noise * math.sqrt(2 / d))
    assert R[""] == pytest.approx(noise * math.sqrt(2 * math.log(d)), rel=0.03)
    only_noise = {"w": np.random.default_rng(2).normal(0, noise, d)}
    hidden = ranges(only_noise, method="noise-subtracted", **options)[1][""]
    assert 0 < hidden < 0.25 * ranges(only_noise)[1][""], "a signal that cannot be seen keeps a small range, not none"


def test_what_shares_a_range():
    m = model()
    assert set(ranges(m, by="tensor")[0]) == set(m)
    everything = np.concatenate([v.ravel() for v in m.values()])
    assert ranges(m, by="model") == (
        (everything.min() + everything.max()) / 2,
        (everything.max() - everything.min()) / 2,
    )
    C, R = ranges(list(m.values()))
    assert (len(C), len(R)) == (4, 4)
    assert C[1] == (m["conv.bias"].min() + m["conv.bias"].max()) / 2
    assert ranges(m["out.bias"]) == ranges(m["out.bias"], by="model")
    assert isinstance(ranges(m["out.bias"])[0], float)


def test_tensors_and_modules_are_as_arrays():
    m = model()
    tensors = {k: torch.from_numpy(v) for k, v in m.items()}
    views = {k: torch.from_numpy(np.array(v, order="F")) for k, v in m.items()}
    for method, options in [
        ("minmax", {}),
        ("quantile", {}),
        ("noise-subtracted", {"previous": ranges(m), "eps": 1.0, "clients": 1000}),
    ]:
        wanted = ranges(m, method=method, **options)
        assert ranges(tensors, method=method, **options) == wanted
        assert ranges(views, method=method, **options) == wanted
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="buffers='perturb'"):
        ranges(module)
    assert set(ranges(module, buffers="keep")[0]) == {"0", "1"}
    assert ranges(module, buffers="perturb")[0]["1"] == 0.5


@pytest.mark.parametrize("by", ["module", "tensor", "model"])
def test_the_result_fits_perturb(by):
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 1, bias=False))
    weights = [p.detach().double() for p in module.parameters()]
    for container in (module, dict(module.named_parameters()), list(module.parameters()), module[1].weight):
        C, R = ranges(container, by=by)
        assert perturb_(container, C, R, 4.0) is container
        assert ldpkernels.aggregate([ldpkernels.report(container, C, R, 4.0)]) is not None
    assert all((p.detach().double() != w).all() for p, w in zip(module.parameters(), weights, strict=True))


def test_the_warning_where_a_range_feeds_on_noise():
    m = {"big.weight": np.linspace(-1, 1, 20_000), "small.weight": np.linspace(-1, 1, 2)}
    assert growth_rate(0.5, 100, 20_000) == pytest.approx(1.82, abs=0.005)
    with pytest.warns(RuntimeWarning, match=r"layer 'big': at eps=0.5 with 100 clients.*1\.8 times") as caught:
        ranges(m, eps=0.5, clients=100)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    ranges(m, eps=4.0, clients=100)
    ranges(m, eps=0.5, clients=100, growth=1.5, previous=(0.0, 1.0))
    ranges(m, eps=0.5, clients=100, method="quantile")
    ranges(m, eps=0.5)


def test_the_growth_cap():
    m = model()
    C, R = ranges(m)
    before = ({"conv": 0.0, "out": 0.0}, {"conv": R["conv"] / 10, "out": R["out"] * 10})
    capped = ranges(m, growth=1.5, previous=before)
    assert capped == (C, {"conv": 1.5 * R["conv"] / 10, "out": R["out"]})
    assert ranges(m, growth=2.0, previous=(0.0, 1e-3))[1] == {"conv": 2e-3, "out": 2e-3}
    assert ranges(list(m.values()), growth=1.0, previous=([0] * 4, [1e-3, 1e3, 1e-3, 1e3]))[1][::2] == [1e-3, 1e-3]
    assert ranges(m, by="model", growth=1.0, previous=(0.0, 1e-3))[1] == 1e-3
    assert ranges(m, growth=1.5, previous=(0.0, 0.0)) == (C, R), "a layer that had no range starts anew"
    quantiles = ranges(m, method="quantile", growth=1.0, previous=(0.0, 1e-3))
    assert set(quantiles[1].values()) == {1e-3}


@pytest.mark.parametrize("method", ["minmax", "quantile"])
def test_nan_and_infinities_do_not_count(method):
    for make in (np.array, torch.tensor):
        w = {"w": make([math.nan, 1.0, math.inf, -math.inf, 3.0, -math.nan])}
        assert ranges(w, method=method, quantile=1.0) == ({"": 2.0}, {"": 1.0})
        with pytest.raises(ValueError, match=r"'a\.b' has no finite weight"):
            ranges({"a.b.w": make([math.nan, math.inf])}, method=method)


def test_constant_empty_and_single_weights():
    assert ranges({"w": np.full(7, 0.3)}) == ({"": 0.3}, {"": 0.0})
    assert ranges({"w": np.zeros((0, 3)), "v.w": np.ones(1)}) == ({"": 0.0, "v": 1.0}, {"": 0.0, "v": 0.0})
    assert ranges(np.array(2.0)) == (2.0, 0.0)
    options = {"method": "noise-subtracted", "previous": (0.0, 1.0), "eps": 1.0, "clients": 10}
    assert math.isfinite(ranges(np.array(2.0), **options)[1])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "mean"}, "method='mean'"),
        ({"by": "layer"}, "by='layer'"),
        ({"quantile": 0.0}, "quantile=0.0"),
        ({"quantile": 1.01}, "quantile=1.01"),
        ({"quantile": math.nan}, "quantile=nan"),
        ({"growth": 0.9, "previous": (0, 1)}, "growth=0.9"),
        ({"growth": math.nan, "previous": (0, 1)}, "growth=nan"),
        ({"growth": 1.5}, "growth needs previous"),
        ({"clients": 0}, "clients=0"),
        ({"method": "noise-subtracted"}, "needs previous"),
        ({"method": "noise-subtracted", "eps": 1.0, "clients": 5}, "needs previous"),
        ({"method": "noise-subtracted", "previous": (0, 1), "eps": 1.0}, "needs previous"),
        ({"eps": -1.0, "clients": 5}, "eps=-1.0"),
        ({"growth": 1.5, "previous": ({}, {"conv": 1.0})}, "no range for layer 'out'"),
        ({"buffers": "drop"}, "buffers='drop'"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        ranges(model(), **options)


def test_bad_tensors():
    with pytest.raises(TypeError, match="dtype int64"):
        ranges({"w": np.arange(3)})
    with pytest.raises(TypeError, match=r"dtype torch\.int64"):
        ranges({"w": torch.arange(3)})


def summary(arrays, isa, threads):
    sizes, dtypes = [a.size for a in arrays], [DTYPES[a.dtype.name] for a in arrays]
    spans = span_table([a.ctypes.data for a in arrays], [0] * len(arrays), sizes, dtypes)
    return [(s.min, s.max, s.sum, s.sum_squares, s.finite) for s in _native.summarize(spans, isa, threads)]


def test_sums_are_numpys_and_the_same_on_every_machine():
    rng, wide = np.random.default_rng(0), (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
    arrays = [rng.normal(0.3, 2.0, n).astype(d) for d in wide for n in (0, 1, 15, 16, 17, 1000, 2**16 + 1, 300_001)]
    for a in arrays:
        a[3:40:5], a[4:9:4] = np.nan, np.inf
    found = {(isa, t): summary(arrays, isa, t) for isa in _native.isas() for t in (1, 2, 7)}
    first = next(iter(found.values()))
    assert all(repr(s) == repr(first) for s in found.values()), "the result depends on threads or instruction set"
    for a, (low, high, total, squares, finite) in zip(arrays, first, strict=True):
        x = a.astype(np.float64)
        x = x[np.isfinite(x)]
        assert finite == x.size
        if finite:
            assert (low, high) == (x.min(), x.max())
            assert total == pytest.approx(math.fsum(x), rel=1e-12, abs=1e-12 * finite)
            assert squares == pytest.approx(math.fsum(x * x), rel=1e-12)
        else:
            assert (low, high, total, squares) == (math.inf, -math.inf, 0.0, 0.0)


def test_no_range_that_is_none_comes_out():
    huge, fine = np.array([-1.7e308, 1.7e308]), np.array([0.0, 5.0])
    for arguments in ({}, {"method": "quantile"}):
        with pytest.raises(ValueError, match="too large for a range"), np.errstate(all="ignore"):
            ranges(huge, **arguments)
    for wrong in (math.nan, math.inf, -1.0):
        with pytest.raises(ValueError, match="previous has the radius"):
            ranges(fine, growth=1.5, previous=(0.0, wrong))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_order_statistics_are_those_of_a_sort(threads):
    """Of all formats at once, of equal numbers, of numbers of all magnitudes and signs, without what is not finite."""
    random = np.random.default_rng(threads)
    cases = [
        [random.normal(size=n).astype(dtype) for n, dtype in ((5000, "float32"), (1, "float64"), (333, "float16"))],
        [np.repeat([1.0, -1.0, 0.0, -0.0], 50)],
        [np.exp(random.uniform(-700, 700, 3000)) * random.choice([-1, 1], 3000)],
        [np.array([np.nan, np.inf, 3.0, -np.inf, 2.0, 5e-324, -5e-324])],
        [np.full(10, 7.0, np.float32), np.array([7.0000000001])],
    ]
    for arrays in cases:
        dtypes = [DTYPES[a.dtype.name] for a in arrays]
        spans = span_table([a.ctypes.data for a in arrays], [0] * len(arrays), [a.size for a in arrays], dtypes)
        everything = np.concatenate([a.astype(np.float64) for a in arrays])
        ordered = np.sort(everything[np.isfinite(everything)])
        ranks = [0, 1, 2, ordered.size // 3, ordered.size // 2, ordered.size - 2, ordered.size - 1, 1]
        ranks = [min(rank, ordered.size - 1) for rank in ranks]
        assert _native.order_statistics(spans, ranks, threads) == ordered[ranks].tolist()
        with pytest.raises(ValueError, match="rank"):
            _native.order_statistics(spans, [ordered.size], threads)
        q = random.uniform(size=20)
        found = launch.quantiles(spans, np.zeros(len(arrays), int), np.array([ordered.size]), q, None)
        assert found[0].tolist() == np.quantile(ordered, q).tolist()
