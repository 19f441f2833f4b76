# SPDX-License-Identifier: Apache-2.0
# One eps for a whole vector: k-of-d in exact integers, PrivUnitG in its numbers, both unbiased and of the stated error.
import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

import ldpkernels
from ldpkernels import KOfD, Piecewise, PrivUnitG, _native, launch, perturb_vector
from ldpkernels.calls.vector import vector_mechanism
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.flat import clipped
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.k_of_d import subset
from ldpkernels.reference.clipped_noise import normals
from tests.laws import within_exp
from tests.statistics import Z, chi_square, fits, mean_test, rejected

D = 21_840


def keys(n, start=0):
    return [ldpkernels.key(10_000 + start + i) for i in range(n)]


def squared_errors(mechanism, x, n):
    return np.array([np.sum((mechanism.sample(x, key) - x) ** 2) for key in keys(n)])


def test_published_figures():
    """d = 21,840, |x| = 1, eps = 8: 2.9e3 for PrivUnitG and 9.4e3 for k-of-d, measured."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(D)
    x /= np.linalg.norm(x)
    best = PrivUnitG(8.0, D)
    assert best.error(x) == pytest.approx(2.9e3, rel=0.01)
    errors = squared_errors(best, x, 100)
    assert abs(errors.mean() - best.error(x)) < Z * errors.std() / 10
    flat = np.sign(x) / math.sqrt(D)
    some = KOfD(8.0, D, 1.0, 1 / math.sqrt(D))
    assert some.k == 4
    assert some.coordinate.name == "two-point"
    assert some.error(flat) == pytest.approx(9.4e3, rel=0.01)
    errors = squared_errors(some, flat, 300)
    assert abs(errors.mean() - some.error(flat)) < max(Z * errors.std() / math.sqrt(300), 1e-3 * some.error(flat))


X = np.array([0.3, -0.5, 0.1, 0.0, 0.2, -0.05])


@pytest.mark.parametrize(
    "mechanism",
    [
        PrivUnitG(2.0, 6),
        PrivUnitG(0.5, 6, norm=2.0),
        PrivUnitG(9.0, 6),
        KOfD(2.0, 6, 1.0, 1.0),
        KOfD(9.0, 6, 1.0, 0.5),
        KOfD(0.5, 6, 1.0, 0.5),
    ],
    ids=repr,
)
def test_unbiased_and_of_the_stated_error(mechanism):
    n = 4000
    samples = np.array([mechanism.sample(X, key) for key in keys(n)])
    for i in range(6):
        column = samples[:, i]
        fits(mean_test(column, X[i], float(column.var())))
    rejected(mean_test(samples[:, 1], 1.5 * X[1] - 10 * samples[:, 1].std() / math.sqrt(n), float(samples[:, 1].var())))
    errors = ((samples - X) ** 2).sum(1)
    assert abs(errors.mean() - mechanism.error(X)) < Z * errors.std() / math.sqrt(n)
    assert mechanism.error(X) <= mechanism.worst_error + 1e-9


# k of d


def test_every_subset_is_as_likely():
    found = [tuple(subset(5, 2, key)) for key in keys(8000)]
    pairs = list(combinations(range(5), 2))
    fits(chi_square(np.array([found.count(p) for p in pairs]), np.full(10, 800.0)))
    for k in (1, 5):
        assert len(set(subset(5, k, ldpkernels.key(1)).tolist())) == k
    assert subset(10**12, 3, ldpkernels.key(1)).max() < 10**12


def test_eps_of_a_small_vector_exactly():
    """d = 3 and k = 2: the whole law of subset and two reports, for every pair of corner inputs, in rationals."""
    mechanism = KOfD(6.0, 3, 1.0, 1.0)
    assert mechanism.k in (1, 2)
    corners = [(a, b, c) for a in (-1, 0, 1) for b in (-1, 1) for c in (-1, 1)]
    coordinate = mechanism.coordinate
    laws = {w: coordinate.law(float(w), 0.0, 1.0) for w in (-1, 0, 1)}
    worst = Fraction(1)
    for x in corners:
        for y in corners:
            for chosen in combinations(range(3), mechanism.k):
                # The subset's probability is the same for both; a product of maxima is the maximum of products.
                ratio = Fraction(1)
                for j in chosen:
                    ratio *= max(p / q for p, q in zip(laws[x[j]], laws[y[j]], strict=True))
                worst = max(worst, ratio)
    assert within_exp(worst, mechanism.effective_eps)
    assert mechanism.effective_eps <= 6.0
    assert math.log(worst) > 0.99 * 6.0


@pytest.mark.parametrize("eps", [0.1, 1.0, 2.0, 5.0, 8.0, 16.0, 40.0, 300.0])
def test_k_is_the_best(eps):
    """No k in reach, with any mechanism of a coordinate, has less error. Where x is flat, it is about eps / 2.5."""
    from ldpkernels.laws.registry import best_mechanism, mechanism_named

    plan = KOfD(eps, 1000, 1.0, 1000**-0.5)
    assert plan.effective_eps <= eps
    if eps <= 40:
        for k in range(1, int(eps) + 2):
            for name in best_mechanism(eps / k).worst:
                one = mechanism_named(name, eps / k)
                second = float(one.variance(1.0, 0.0, 1.0)) + 1
                assert 1000 * second / k >= plan.worst_error * (1 - 1e-9)
    assert 0.5 * eps / 2.5 - 1 <= plan.k <= 1.5 * eps / 2.5 + 1


def test_coordinates_that_need_not_reach_their_bound_are_reported_by_the_piecewise_mechanism():
    wide = KOfD(8.0, D, 1.0, 1.0)
    assert isinstance(wide.coordinate, Piecewise)
    assert wide.worst_error < 0.02 * D**2


# PrivUnitG


def test_its_numbers():
    for eps in (0.1, 1.0, 8.0, 30.0, 800.0):
        m = PrivUnitG(eps, 1000)
        odds = Fraction(m.threshold, 2**64 - m.threshold) * (1 - Fraction(m.q)) / Fraction(m.q)
        assert within_exp(odds, eps)
        assert m.effective_eps <= eps
        if eps <= 30:
            assert m.effective_eps > eps - 1e-9
        assert m.q == pytest.approx(stats.norm.sf(m.gamma), rel=1e-13)
    m = PrivUnitG(8.0, 1000)
    truncated = m.p * stats.truncnorm.mean(m.gamma, np.inf) + (1 - m.p) * stats.truncnorm.mean(-np.inf, m.gamma)
    assert m.shrinkage == pytest.approx(truncated, rel=1e-9)
    for gamma in (m.gamma - 0.2, m.gamma + 0.2):  # any other cap under the same eps is worse
        q = stats.norm.sf(gamma)
        p = math.exp(8) * q / (math.exp(8) * q + 1 - q)
        other = stats.norm.pdf(gamma) * (p / q - (1 - p) / (1 - q))
        assert 1000 / other**2 > 1000 / m.shrinkage**2


def test_what_is_across_the_update_is_normal(key):
    m = PrivUnitG(3.0, 500_001)
    g = m.sample(np.eye(1, m.dimension)[0], key)[1:] * m.shrinkage  # what is across the update
    assert stats.kstest(g, "norm").pvalue > 1e-6
    assert stats.kstest(1.02 * g, "norm").pvalue < 1e-6


def test_what_is_along_the_update_is_in_the_cap_as_often_as_it_says():
    m, v = PrivUnitG(3.0, 3), np.array([0.6, 0.0, 0.8])
    along = np.array([m.sample(v, k) @ v for k in keys(8000)]) * m.shrinkage
    inside = along >= m.gamma
    assert abs(inside.mean() - m.p) < Z * math.sqrt(m.p * (1 - m.p) / len(along))
    assert stats.kstest(along[inside], stats.truncnorm(m.gamma, np.inf).cdf).pvalue > 1e-6
    assert stats.kstest(along[~inside], stats.truncnorm(-np.inf, m.gamma).cdf).pvalue > 1e-6


KEYS = [ldpkernels.key(5), ldpkernels.Key((1, 2)), ldpkernels.Key((1, 2, 3, 4))]
PARTS = [(1, "float32"), (17, "float64"), (70_001, "float32"), (1000, "float16"), (0, "float32"), (1025, "bfloat16")]


OPTIONS = {
    "privunitg": {"mechanism": "privunitg"},
    "k-of-d": {"mechanism": "k-of-d"},
    "gaussian": {"mechanism": "gaussian", "delta": 1e-5},
}


@pytest.mark.parametrize("key", KEYS, ids=["philox", "aes", "chacha"])
@pytest.mark.parametrize("mechanism", OPTIONS)
def test_every_backend_and_number_of_threads_has_the_same_bits(mechanism, key, monkeypatch):
    rng = np.random.default_rng(0)
    made = [torch.from_numpy(rng.standard_normal(n)).to(getattr(torch, name)) for n, name in PARTS]
    made.append(torch.from_numpy(rng.standard_normal((7, 5))).t())
    small = [one for one in made if one.numel() < 2000]  # for the reference, which is slow

    def bits(update):
        shapes = [(one.shape, one.dtype == torch.float64) for one in update]
        sent = perturb_vector(update, 60.0, **OPTIONS[mechanism], norm=1.0, generator=key)
        assert [(one.shape, one.dtype == torch.float64) for one in sent] == shapes
        return [part.numpy().tobytes() for part in sent]

    found = [bits(small)]
    with ldpkernels.backend("reference"):
        assert bits(small) == found.pop()
    for backend in _native.isas():
        with ldpkernels.backend(backend):
            found.append(bits(made))
    for threads in (1, 3):
        monkeypatch.setattr("ldpkernels.common.capabilities.threads", lambda threads=threads: threads)
        found.append(bits(made))
    assert all(one == found[0] for one in found)


def test_normals_moved_along_a_vector_are_known_numbers():
    """(g + along x) factor of whole numbers x, and their product, in terms of the reference's normals."""
    x = np.arange(-40.0, 41.0)
    out = np.empty_like(x)
    spans = span_table([x.ctypes.data], [out.ctypes.data], [x.size], [DTYPES["float64"]])
    numbers = "-0x1.481625cc67141p+0", "-0x1.32b3dc46e22b3p+1", "0x1.194b3489dc537p+0"
    for key, first in zip(KEYS, numbers, strict=True):
        g = normals(key.uint32(), 0, x.size, 1)
        launch.moved_normals(spans, key, 1, 0.25, 3.0)
        assert (out == (g + 0.25 * x) * 3.0).all()
        assert launch.normal_product(spans, key, 1) == pytest.approx(g @ x, rel=1e-12)
        assert g[0].hex() == first


def test_a_report_is_on_its_side_of_the_cap_and_normal_across():
    """Along the update it has the inverted draw; across, the normals less their part along it. For any length."""
    m = PrivUnitG(2.0, 300)
    x = np.random.default_rng(2).standard_normal(300)
    v = x / np.linalg.norm(x)
    for key in KEYS:
        g = normals(key.uint32(), 0, 300, 1)
        cap, where = (int(w) for w in _native.keystream(key.uint32(), 0, 0, 4, "").view("<u8")[1:3])
        part = ((where >> 11) + 0.5) * 2.0**-53
        along = stats.norm.isf(part * m.q) if cap < m.threshold else stats.norm.ppf(part * (1 - m.q))
        for length in (2.0**-1000, 2.0**-530, 1e-9, 0.5, 1.0, 2.0**600, math.inf):
            y = m.sample(v * length if length < math.inf else np.where(np.arange(300) == 7, math.inf, x), key)
            u = v if length < math.inf else np.eye(300)[7]
            found = float(y @ u) * m.shrinkage
            assert abs(found) == pytest.approx(abs(along), rel=1e-9)
            assert np.allclose(y * m.shrinkage, g + (found - g @ u) * u, atol=1e-9)
            assert length < 1.0 or found == pytest.approx(along, rel=1e-9)


def test_zero_and_one_dimension():
    for mechanism in (PrivUnitG(1.0, 1), KOfD(1.0, 1, 1.0, 1.0)):
        for x in (0.0, 1.0, -0.5):
            samples = np.array([mechanism.sample(np.array([x]), key)[0] for key in keys(1000)])
            fits(mean_test(samples, x, float(samples.var())))


# perturb_vector


def test_clipping():
    assert np.allclose(clipped(np.array([3.0, 4.0]), 1.0), [0.6, 0.8])
    assert clipped(np.array([0.3, 0.4]), 1.0).tolist() == pytest.approx([0.3, 0.4])
    assert clipped(np.array([np.nan, 0.5]), 1.0).tolist() == [0.0, 0.5]
    assert np.allclose(clipped(np.array([np.inf, -np.inf, 1.0]), 2.0), [2**0.5, -(2**0.5), 0.0])
    assert np.allclose(clipped(np.full(4, 1e308), 1.0), 0.5)
    assert clipped(np.zeros(3), 1.0).tolist() == [0.0] * 3


@pytest.mark.parametrize("mechanism", OPTIONS)
def test_what_is_no_number_counts_as_nothing_and_infinities_as_the_direction(mechanism, key):
    options = {**OPTIONS[mechanism], "norm": 1.0, "generator": key}
    numbers = np.random.default_rng(0).standard_normal(600)

    def sent(x):
        return np.concatenate(perturb_vector([x[:200].astype(np.float32), x[200:]], 60.0, **options))

    missing = np.where(np.arange(600) % 7 == 0, np.nan, numbers)
    assert np.allclose(sent(missing), sent(np.nan_to_num(missing, nan=0.0)), rtol=1e-5, atol=1e-6)
    infinite = np.where(np.arange(600) % 7 == 0, np.sign(numbers) * math.inf, numbers)
    signs = np.where(np.isinf(infinite), np.sign(numbers), 0.0)
    assert np.allclose(sent(infinite), sent(signs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mechanism", OPTIONS)
def test_containers_dtypes_and_keys(mechanism, key):
    x, options = {"a": np.full((2, 3), 0.1, np.float32), "b": np.full(4, -0.2)}, {**OPTIONS[mechanism], "norm": 1.0}
    before = {k: v.copy() for k, v in x.items()}
    one = perturb_vector(x, 4.0, **options, generator=key)
    two = perturb_vector(x, 4.0, **options, generator=key)
    assert all(np.array_equal(one[k], two[k]) and np.array_equal(x[k], before[k]) for k in x)
    assert (one["a"].dtype, one["b"].dtype, one["a"].shape) == (np.float32, np.float64, (2, 3))
    tensors = {k: torch.from_numpy(v.copy()) for k, v in x.items()}
    same = perturb_vector(tensors, 4.0, **options, generator=key)
    assert all(np.array_equal(one[k], same[k].numpy()) for k in x)
    net = torch.nn.Linear(3, 2).bfloat16()
    sent = perturb_vector(net, 4.0, **options)
    assert sent["weight"].dtype == torch.float32
    assert isinstance(perturb_vector([x["b"]], 4.0, **options), list)
    seeded = [torch.Generator().manual_seed(1) for _ in range(2)]
    a, b = (perturb_vector(torch.ones(5), 1.0, **options, generator=g) for g in seeded)
    assert torch.equal(a, b)


def test_bad_arguments_are_refused():
    x = np.zeros(3)
    for bad, match in (
        ({"mechanism": "gauss"}, "mechanism='gauss'"),
        ({"norm": 0.0}, "norm=0.0"),
        ({"norm": math.nan}, "norm=nan"),
        ({"bound": 1.0}, "bound=1.0"),
        ({"mechanism": "k-of-d", "bound": -1.0}, "bound=-1.0"),
        ({"eps": 0.0}, "eps=0"),
    ):
        with pytest.raises(ValueError, match=match):
            perturb_vector(x, **{"eps": 1.0, "norm": 1.0, **bad})
    with pytest.raises(ValueError, match="dimension=0"):
        perturb_vector(np.zeros(0), 1.0, norm=1.0)
    with pytest.raises(TypeError, match="int64"):
        perturb_vector(np.zeros(3, np.int64), 1.0, norm=1.0)
    assert vector_mechanism("k-of-d", 1.0, 3, 2.0).bound == 2.0
