# SPDX-License-Identifier: Apache-2.0
# The noise's law: fit with a false-alarm rate of 1e-6 at fixed keys, and power: a scale 2% off must be rejected.
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import ldpkernels
from ldpkernels import _native, clipped_noised_sum
from ldpkernels.laws import clipped_noise as _clipped
from ldpkernels.reference import clipped_noise as reference

ALPHA = 1e-6
N = 1 << 21


def ks(x, scale):
    """The probability of a distance from N(0, scale^2) at least as large: Kolmogorov's limit law, at this n to 1e-3."""
    cdf = stats.norm.cdf(np.sort(x), scale=scale)
    i = np.arange(len(x))
    distance = max((cdf - i / len(x)).max(), ((i + 1) / len(x) - cdf).max())
    return stats.kstwobign.sf(distance * math.sqrt(len(x)))


def chi_square(y, s):
    """The same for integers and the discrete Gaussian; the bins expect 5 at least, and the last ones hold the tails."""
    reach = 0
    while len(y) * pmf(reach + 1, s) >= 5:
        reach += 1
    expected = len(y) * pmf(np.arange(-reach, reach + 1), s)
    expected[[0, -1]] += (len(y) - expected.sum()) / 2
    observed = np.bincount(np.clip(y, -reach, reach).astype(int) + reach, minlength=2 * reach + 1)
    return stats.chisquare(observed, expected).pvalue


def pmf(k, s):
    z = np.exp(-(np.arange(-40 * math.ceil(s), 40 * math.ceil(s) + 1) ** 2) / (2 * s * s)).sum()
    return np.exp(-(np.asarray(k) ** 2) / (2 * s * s)) / z


def native_noise(n, grid_std, key, unit=1.0):
    out = np.empty(n)
    data = np.empty(0)
    spans = np.array([(data.ctypes.data, out.ctypes.data, n, 0, 1)], dtype=_native.SPAN)
    _native.clipped_sums(spans, np.zeros((0, 1)), 0.0, 0.0, 1.0, unit, grid_std, key.uint32(), _native.isas()[0], 2)
    return out


@pytest.mark.parametrize("key", [ldpkernels.key(11), ldpkernels.Key((1, 2)), ldpkernels.Key((1, 2, 3, 4))])
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_the_noise_is_normal_with_deviation_c_sigma(key, noise):
    n = N if noise == "gaussian" else N // 4
    if noise == "discrete":
        key = key.fold_in(0)
    x = clipped_noised_sum(np.empty((0, n)), 0.3, 2.5, generator=key, noise=noise)
    assert ks(x, 0.75) > ALPHA, f"false alarm once in {1 / ALPHA:.0f} keys"
    assert ks(x, 0.75 * 1.02) < ALPHA
    assert ks(x, 0.75 / 1.02) < ALPHA
    bound = stats.norm.isf(ALPHA / 2)
    for a, b in ((x[::2], x[1::2]), (x[:-2], x[2:]), (x[::2] ** 2, x[1::2] ** 2)):
        assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a)) < bound
    for z in (3.0, 4.0):
        p = 2 * stats.norm.sf(z)
        count = int((abs(x) > z * 0.75).sum())
        assert stats.binomtest(count, n, p).pvalue > ALPHA


def test_single_precision_keeps_the_law():
    x = clipped_noised_sum(np.empty((0, N), np.float32), 1.0, 1.0, generator=ldpkernels.key(12))
    assert x.dtype == np.float32
    assert ks(x.astype(float), 1.0) > ALPHA


@pytest.mark.parametrize("s", [1, 2, 3, 5, 16])
def test_the_discrete_gaussian_has_its_law(s):
    y = native_noise(400_000, s, ldpkernels.key(100 + s))
    assert chi_square(y, s) > ALPHA
    assert chi_square(y, s * 1.02) < ALPHA
    assert chi_square(y, s / 1.02) < ALPHA


def test_the_reference_draws_the_same_integers():
    for key in (ldpkernels.key(3), ldpkernels.Key((5, 6, 7, 8))):
        for s in (1, 2, 7, 2**16 + 1, 2**31):
            y = native_noise(40, s, key)
            words = [reference.words(key.uint32(), e) for e in range(40)]
            assert y.tolist() == [float(reference.discrete_gaussian(w, s)) for w in words]


def exact_bernoulli_exp(p, terms=40):
    """The probability that `bernoulli_exp` is true, from its definition, with p a Fraction: bounds from both sides."""
    total, survive = Fraction(0), Fraction(1)
    for k in range(1, terms):
        fail = survive * (1 - p / k)
        total += fail if k % 2 else 0
        survive *= p / k
    return total, total + survive


def test_the_samplers_law_is_exact():
    # The probability with which (u, v, sign) is kept, assembled from the events as they are drawn, against
    # exp(-y^2 / (2 s^2)): the logarithms are compared as fractions, so equality is exact.
    for s in (1, 2, 3, 7):
        constants = set()
        for u in range(s):
            for v in range(6):
                exponent = Fraction(u, s) + v  # of the discrete Laplace proposal
                if v == 0:
                    exponent += Fraction(s - u, s) ** 2 / 2
                else:
                    a = v - 1
                    exponent += a * a * Fraction(1, 2) + a * Fraction(u, s) + Fraction(u, s) ** 2 / 2
                y = u + s * v
                constants.add(exponent - Fraction(y * y, 2 * s * s))
        assert constants == {Fraction(1, 2)}
    for p in (Fraction(0), Fraction(1, 7), Fraction(1, 2), Fraction(1)):
        low, high = exact_bernoulli_exp(p)
        assert float(low) <= math.exp(-p) * (1 + 1e-15)
        assert float(high) >= math.exp(-p) * (1 - 1e-15)
        assert high - low < Fraction(1, 10**40)


def test_uniform_integers_are_uniform():
    source = reference.words(ldpkernels.key(9).uint32(), 0)
    for m in (2, 3, 5, 6):
        counts = np.bincount([reference.below(source, m) for _ in range(3000)], minlength=m)
        assert len(counts) == m
        assert stats.chisquare(counts).pvalue > ALPHA


def test_the_grid_is_fine_and_its_noise_is_never_too_small():
    for C in (1e-7, 0.3, 1.0, 2.0**30):
        for sigma in (2.0**-20, 0.001, 0.3, 1.0, 7.7, 1e6):
            law = _clipped.noise_of([C], sigma, "discrete", 64)
            executed = Fraction(law.grid_std) * Fraction(law.unit)
            asked = Fraction(C) * Fraction(sigma)
            assert asked <= executed <= asked * (1 + Fraction(1, 2**16))
            assert 2**16 <= law.grid_std <= 2**31
            assert math.frexp(law.unit)[0] == 0.5
            assert law.unit <= C * 2.0**-26 or sigma > 16
    with pytest.raises(ValueError, match="rows are too many"):
        _clipped.noise_of([1.0], 1.0, "discrete", 2**26 + 1)


def test_discrete_sums_lie_on_the_grid():
    x = np.random.default_rng(0).standard_normal((30, 500))
    out = clipped_noised_sum(x, 1.0, 1.0, noise="discrete", generator=ldpkernels.key(1))
    units = out / _clipped.noise_of([1.0], 1.0, "discrete", 30).unit
    assert (units == np.rint(units)).all()


def test_polynomials_are_within_an_ulp():
    rng = np.random.default_rng(0)
    u = np.concatenate(
        [rng.random(100_000), 1 - rng.random(1000) * 1e-9, 2.0 ** -(65 * rng.random(1000)), [1.0, 2.0**-65]]
    )
    x = np.concatenate([(rng.random(100_000) - 0.5) * math.pi / 2, rng.random(1000) * 1e-12, [0.0, math.pi / 4]])
    sine, cosine = reference.sine_cosine(x)
    for ours, exact in (
        (reference.natural_log(u), np.log(u.astype(np.longdouble))),
        (sine, np.sin(x.astype(np.longdouble))),
        (cosine, np.cos(x.astype(np.longdouble))),
    ):
        assert (abs(ours - exact) <= np.spacing(abs(exact).astype(float))).all()


def test_the_tails_end_where_the_document_says():
    words = np.array([[0, 0, 0, 0], [2**32 - 1] * 4, [0, 0, 0, 2**29], [0, 0, 0, 3 * 2**30 + 2**29]], np.uint32)
    pairs = reference.normals_of(words).reshape(-1, 2)
    assert np.hypot(*pairs[0]) == pytest.approx(math.sqrt(2 * 65 * math.log(2)), rel=1e-15)
    assert np.hypot(*pairs[1]) == 0
    assert pairs[2] == pytest.approx([9.492583, 0.0], abs=1e-6)
    assert pairs[3] == pytest.approx([0.0, -9.492583], abs=1e-6)
