# SPDX-License-Identifier: Apache-2.0
# The client-level Gaussian: its table to 88 bits, its sampler's exact law, equal bits, the norm in integers, its eps.
import itertools
import math

import mpmath
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native, launch, perturb_vector
from ldpkernels.accounting import composed_epsilon
from ldpkernels.audit import measure
from ldpkernels.calls.vector import vector_mechanism
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.noise_table import gaussian_table, skellam_table, wide_gaussian_table
from ldpkernels.laws.vector_gaussian import GRID_STD, MARGIN, VectorGaussian
from ldpkernels.reference import lattice
from tests.statistics import chi_square, fits, rejected

FLOAT32 = DTYPES["float32"]
KEYS = [ldpkernels.key(5), ldpkernels.Key((1, 2)), ldpkernels.Key((1, 2, 3, 4))]
TABLES = {
    "wide 1": wide_gaussian_table(1),
    "wide 5": wide_gaussian_table(5),
    "wide 16": wide_gaussian_table(16),
    "gaussian": gaussian_table(3.3),
    "gaussian, many entries": gaussian_table(900.0),
    "skellam": skellam_table(4.0),
}


def noise(table, n, key):
    q, out = np.zeros(n, np.int32), np.empty(n, np.uint32)
    spans = span_table([q.ctypes.data], [out.ctypes.data], [n], [FLOAT32])
    launch.add_noise(spans, table, key, bits=32)
    return out.view(np.int32)


def weights_of(name, table):
    """The law without its norm, of magnitudes."""
    if name == "skellam":
        return lambda k: mpmath.besseli(k, mpmath.mpf(table.stddev) ** 2) * (1 if k == 0 else 2)
    both = 1 if table.shift else 2
    deviation = mpmath.mpf(64 if table.shift else table.stddev)
    return lambda k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * deviation**2)) * (1 if k == 0 else both)


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_within_a_unit_of_88_bits(name):
    with mpmath.workdps(50):
        table, weight = TABLES[name], weights_of(name, TABLES[name])
        size = len(table.high)
        rest = sum(weight(k) for k in range(size, size + 400))
        total = sum(weight(k) for k in range(size)) + rest
        assert rest / total < mpmath.mpf(2) ** -89
        before = mpmath.mpf(0)
        distance = mpmath.mpf(0)
        for k in range(size):
            here = (int(table.high[k]) * 2**64 + int(table.low[k])) / mpmath.mpf(2) ** 88
            distance += abs(here - before - weight(k) / total)
            before = here
        assert before == 1
        assert (distance + rest / total) / 2 <= table.distance


def test_what_is_kept_makes_the_wide_law_exactly():
    """P(k) exp(-x) is proportional to exp(-y^2 / (2 S^2)), x the fraction that the kernel compares, below 1/4."""
    with mpmath.workdps(40):
        for a, k, u in itertools.product((1, 4, 16), (0, 1, 63, 700), (0.0, 0.3, 1.0)):
            wide, u = 1 << a, int(u * ((1 << a) - 1))
            x = mpmath.mpf(u * (u + 2 * k * wide)) / mpmath.mpf(2) ** (13 + 2 * a)
            proposed = mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * 64**2))
            wanted = mpmath.exp(-(mpmath.mpf(k * wide + u) ** 2) / (2 * mpmath.mpf(64 * wide) ** 2))
            assert abs(proposed * mpmath.exp(-x) / wanted - 1) < 1e-35
            assert x < 0.25


@pytest.mark.parametrize("key", KEYS, ids=["philox", "aes", "chacha"])
@pytest.mark.parametrize("name", TABLES)
def test_every_backend_has_the_same_bits(name, key):
    drawn = []
    for backend in (*_native.isas(), "reference"):
        with ldpkernels.backend(backend):
            drawn.append(noise(TABLES[name], 701, key))
    assert all((one == drawn[0]).all() for one in drawn)


@pytest.mark.parametrize("name", ["wide 16", "gaussian, many entries"])
def test_a_draw_on_an_edge_of_the_table_takes_64_bits_more(name):
    table, key, n = TABLES[name], KEYS[0], 1 << 19
    first = _native.keystream(key.uint32(), 0, 0, n // 2, "").view("<u8") >> np.uint64(40)
    edges = np.flatnonzero(np.isin(first, table.high))[:12]
    assert len(edges) >= 8
    found = noise(table, n, key)
    twins = [int(lattice.noise(table, key.uint32(), int(e), 1)[0]) for e in edges]
    assert found[edges].tolist() == twins
    shifted = np.searchsorted(table.high, first[edges], side="left")
    assert (np.abs(found[edges]) >> table.shift >= shifted).sum() >= len(
        edges
    ) - 3  # not below it, but for a second draw


def fit(values, stddev, bins=40):
    """Chi-square in bins of about the same probability, from the law's exact cumulative sums."""
    most = int(12 * stddev)
    k = np.arange(-most, most + 1)
    p = np.exp(-(k.astype(np.float64) ** 2) / (2 * stddev**2))
    p /= p.sum()
    edges = np.searchsorted(np.cumsum(p), np.linspace(0, 1, bins + 1)[1:-1])
    group = np.searchsorted(edges, np.arange(len(k)), side="left")
    expected = np.bincount(group, p) * len(values)
    counts = np.bincount(np.searchsorted(edges, values + most, side="left"), minlength=len(expected))
    held = expected > 5
    return chi_square(
        np.append(counts[held], counts[~held].sum() + 5), np.append(expected[held], expected[~held].sum() + 5)
    )


@pytest.mark.parametrize("name", ["wide 1", "wide 5", "gaussian", "gaussian, many entries"])
def test_the_law_and_the_power_to_see_another(name, key):
    table = TABLES[name]
    drawn = noise(table, 1 << 21, key)
    fits(fit(drawn, table.stddev))
    rejected(fit(drawn, table.stddev * 1.01))


def test_small_skellam_by_every_value(key):
    drawn, variance = noise(TABLES["skellam"], 1 << 20, key), 4.0
    k = np.arange(-10, 11)
    p = np.array([float(mpmath.exp(-variance) * mpmath.besseli(abs(int(i)), variance)) for i in k])
    p[[0, -1]] += (1 - p.sum()) / 2
    counts = np.bincount(np.clip(drawn, -10, 10) + 10, minlength=21)
    fits(chi_square(counts, p / p.sum() * len(drawn)))
    rejected(fit(drawn, math.sqrt(variance)))  # a discrete Gaussian of the same variance is another law


# The norm


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [1, 7, 1000, 70_001])
def test_no_vector_is_longer_than_the_norm_in_integers(dtype, size):
    law = VectorGaussian(0.7, size, norm=0.9)
    rng = np.random.default_rng(size)
    for scale in (0.0, 1e-6, 0.9 / math.sqrt(size), 0.9 / math.sqrt(size) * (1 + 2**-23), 10.0, 6e4):
        x = (rng.choice([-1.0, 1.0], size) * scale).astype(dtype)
        q = np.empty(size, np.int32)
        spans = span_table([x.ctypes.data], [q.ctypes.data], [size], [DTYPES[dtype]])
        norm = launch.norm(spans)
        squares = launch.quantise(spans, min(1.0, 0.9 / (norm * (1 + 2.0**-32)) if norm else 1.0) / law.unit, None)
        assert squares == sum(int(i) ** 2 for i in q) <= law.square_bound
        assert (np.abs(q) * law.unit <= np.abs(x.astype(np.float64)) * (1 + 1e-12)).all()
        if scale >= 10:
            assert squares > 0.999 * law.square_bound * (1 - size * 2.0**-20)


def test_what_is_longer_is_not_released(monkeypatch):
    """The comparison of integers is the guarantee: were the norm in fp64 wrong, nothing would leave."""
    law, out = VectorGaussian(1.0, 100, norm=1.0), np.zeros(100)
    x = np.full(100, 0.2)
    monkeypatch.setattr(launch, "norm", lambda spans, device: 1.0)
    with pytest.raises(ArithmeticError, match="were expected"):
        law.write([x.ctypes.data], [DTYPES["float64"]], [out], KEYS[0])
    assert (out == 0).all()


def test_quantised_alike_on_every_backend(key):
    x = np.random.default_rng(1).standard_normal(3000).astype(np.float32)
    x[[5, 6, 7]] = np.nan, np.inf, -np.inf
    for by in (None, key):
        found = []
        for backend in (*_native.isas(), "reference"):
            q = np.empty(3000, np.int32)
            with ldpkernels.backend(backend):
                spans = span_table([x.ctypes.data], [q.ctypes.data], [3000], [FLOAT32])
                found.append((launch.quantise(spans, 12345.678, by), q.tolist()))
        assert all(one == found[0] for one in found)
    assert found[0][0] > 2 * 2**61


# The claim


def gaussian_delta(eps, mu):
    with mpmath.workdps(40):
        eps, mu = mpmath.mpf(eps), mpmath.mpf(mu)
        return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)


def calibrated(settings):
    rng = np.random.default_rng(7)
    for _ in range(settings):
        eps, delta = 10 ** rng.uniform(-1, 1.2), 10 ** rng.uniform(-9, -3)
        yield eps, delta, VectorGaussian.calibrated(eps, delta, dimension=int(10 ** rng.uniform(0, 7)), norm=2.0)


def test_calibration_is_never_above_its_target():
    for eps, delta, law in calibrated(25):
        assert law.epsilon(delta) <= eps
        distance = law.dimension * (law.table.distance + 2.0**-90) * (1 + math.exp(eps))
        assert gaussian_delta(eps, 2 * law.norm / law.sigma) + distance <= delta
        assert gaussian_delta(eps, 2 * law.norm / law.sigma * 1.001) > delta  # and it is not far below


@pytest.mark.exhaustive
def test_calibration_in_10_000_settings():
    for eps, delta, law in calibrated(10_000):
        assert gaussian_delta(eps, 2 * law.norm / law.sigma) <= delta


def test_the_floor_of_the_noise():
    """Where e^eps times the table's distance passes delta, inf."""
    assert 32 < VectorGaussian(0.416, 10_000).epsilon(1e-5) < 33
    assert VectorGaussian(0.41, 10_000).epsilon(1e-5) == math.inf
    assert 26 < VectorGaussian(0.475, 10**6).epsilon(1e-5) < 27
    assert VectorGaussian(0.46, 10**6).epsilon(1e-5) == math.inf


@pytest.mark.parametrize("shift", [1, 7, 40])
def test_the_discrete_law_by_enumeration_is_within_its_margin(shift):
    """A grid of deviation 2^10, every output counted: the true delta(eps) beside a Gaussian's with the margin."""
    deviation = 1 << 10
    shift *= deviation // 16
    y = np.arange(-14 * deviation, 14 * deviation + shift + 1).astype(np.float64)
    p = np.exp(-(y**2) / (2.0 * deviation**2))
    q = np.exp(-((y - shift) ** 2) / (2.0 * deviation**2))
    p, q = p / p.sum(), q / q.sum()
    mu = shift / deviation
    for eps in (0.01 * mu, mu, mu * mu / 2 + 2 * mu, mu * mu / 2 + 4 * mu):
        exact = np.clip(p - math.exp(eps) * q, 0, None).sum()
        assert exact <= float(gaussian_delta(eps, mu * (1 + MARGIN))) * (1 + 1e-9) + 1e-13
        assert exact > 0.99 * float(gaussian_delta(eps, mu))


def test_event_composes_and_refusals():
    law = VectorGaussian.calibrated(8.0, 1e-5, dimension=1000, norm=1.0)
    assert composed_epsilon([(law, 4)], 1e-5) < 4 * 8.0 * 0.75
    assert law.noise_multiplier < law.sigma / 2
    assert law.unit * GRID_STD == law.sigma
    for sigma in (0.0, -1.0, math.nan, 1e-3, 1e6):
        with pytest.raises(ValueError, match="sigma"):
            VectorGaussian(sigma, 10**6)
    update = np.ones(3)
    for wrong in ({"eps": 1.0}, {"eps": 1.0, "delta": 1e-5, "sigma": 1.0}, {}):
        with pytest.raises(ValueError, match="pass eps and delta, or sigma alone"):
            perturb_vector(update, mechanism="gaussian", norm=1.0, **wrong)
    with pytest.raises(ValueError, match="are for mechanism='gaussian'"):
        perturb_vector(update, 1.0, norm=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="eps is missing"):
        perturb_vector(update, norm=1.0)


# What users call


def test_a_report_of_a_model(key):
    rng = np.random.default_rng(3)
    update = {"w": rng.standard_normal((50, 41)).astype(np.float32), "b": rng.standard_normal(13)}
    length = math.sqrt(sum((v.astype(np.float64) ** 2).sum() for v in update.values()))
    sent = perturb_vector(update, sigma=0.003, mechanism="gaussian", norm=1.0, generator=key)
    assert sent["w"].dtype == np.float32
    assert sent["b"].dtype == np.float64
    error = np.concatenate([(sent[k] - update[k] / length).ravel() for k in update]) / 0.003
    assert abs(error.std() - 1) < 6 / math.sqrt(2 * error.size)


def test_an_audit_passes_it_and_catches_half_of_the_noise():
    law = vector_mechanism("gaussian", 1.0, 1, 1.0, delta=1e-3)

    def at(sigma):
        calls = itertools.count()

        def draw(x, n):  # n vectors of one weight: each is a tensor of its own, and the norm is of each
            scaled = VectorGaussian(sigma, n, norm=math.sqrt(n))
            return scaled.sample(np.full(n, x), ldpkernels.key(next(calls)))

        return draw

    assert measure(at(law.sigma), -1.0, 1.0, law.epsilon(1e-3), delta=1e-3).ok
    assert not measure(at(law.sigma / 2), -1.0, 1.0, law.epsilon(1e-3), delta=1e-3).ok
