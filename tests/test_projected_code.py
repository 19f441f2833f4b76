# SPDX-License-Identifier: Apache-2.0
# A whole update in a few bits: the law in exact integers, its moments, unbiased and of the stated error.
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import ldpkernels
from ldpkernels import KOfD, PrivUnitG, ProjectedCode, _native
from ldpkernels.laws.projected_code import moments, threshold_of
from ldpkernels.updates import mean_of_codes, report_code
from ldpkernels.updates.projected import chosen_code, codeword, near_codes, normals
from tests.laws import within_exp
from tests.statistics import Z, binomial_test, chi_square, fits, rejected

SHARED = ldpkernels.key(41)
DOCUMENT = Path(__file__).parents[1] / "docs" / "mechanisms" / "projected_code.md"


@pytest.mark.parametrize("eps", [0.01, 0.5, 1.0, 4.0, 8.0, 20.0, 60.0])
@pytest.mark.parametrize("bits", [2, 3, 8, 11])
def test_the_law_of_every_pair_of_inputs_in_integers(eps, bits):
    """A codeword is near or not: two probabilities, whatever the vectors are. Their ratio is at most e^eps."""
    law = ProjectedCode(eps, 1000, bits=bits)
    near = Fraction(law.threshold, 2**64 * law.near)
    far = Fraction(2**64 - law.threshold, 2**64 * (2 * law.projected - law.near))
    assert near * law.near + far * (2 * law.projected - law.near) == 1
    assert within_exp(near / far, eps)
    assert within_exp(near / far, law.effective_eps * (1 + 1e-12) + 1e-12)
    assert law.effective_eps <= eps
    if eps <= 20:
        assert not within_exp(near / far, eps * (1 - 1e-6))


@pytest.mark.parametrize("bits", [3, 5])
def test_as_many_codewords_are_near_whatever_the_vector(bits):
    law = ProjectedCode(2.0, 16, bits=bits)
    k = law.projected
    for v in (np.zeros(k), np.eye(1, k)[0], np.full(k, np.nan), np.arange(k) - 3.0, np.full(k, 1e300)):
        codes = near_codes(v, law, SHARED)
        assert len(set(codes.tolist())) == law.near
        assert 0 <= codes.min() <= codes.max() < 2 * k


def test_what_is_sent_has_the_law(key):
    """8,000 codes of one projection: the near ones with probability p, alike among each other, so are the others."""
    law, n = ProjectedCode(3.0, 64, bits=4), 8_000
    u = np.linspace(-1, 1, law.projected)
    near = near_codes(u / np.linalg.norm(u), law, SHARED)
    u *= law.norm * law.stretch / np.linalg.norm(u)  # of full length: no sign is drawn
    codes = np.array([chosen_code(u, law, SHARED, ldpkernels.key(i)) for i in range(n)])
    hits = np.isin(codes, near)
    fits(binomial_test(int(hits.sum()), n, law.threshold / 2**64))
    rejected(binomial_test(int(hits.sum()), n, law.threshold / 2**64 + 0.05))
    counts = np.bincount(codes, minlength=16)
    others = np.setdiff1d(np.arange(16), near)
    fits(chi_square(counts[others], np.full(len(others), counts[others].sum() / len(others))))


@pytest.mark.parametrize(("k", "near"), [(2, 1), (2, 2), (8, 3), (128, 5), (1024, 40)])
def test_moments_of_order_statistics(k, near):
    """Against an average over random unit vectors; and sqrt of 1/k E|sum| in closed form where all are near."""
    g = np.random.default_rng(k).standard_normal((40_000 // max(1, k // 64), k))
    z = np.sort(np.abs(g / np.linalg.norm(g, axis=1)[:, None]), axis=1)[:, -near:]
    for found, sample in zip(moments(k, near), (z.sum(1), (z**2).sum(1)), strict=True):
        assert abs(sample.mean() - found) < Z * sample.std() / math.sqrt(len(z)) + 1e-6
    if near == k:
        assert moments(k, near)[1] == pytest.approx(1.0, abs=1e-6)
        length = math.sqrt(2) * math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2))
        assert moments(k, near)[0] == pytest.approx(k * math.sqrt(2 / math.pi) / length, rel=1e-6)


def test_codewords_are_a_rotation_and_its_opposite():
    k = 16
    columns = np.array([codeword(c, k, SHARED) for c in range(2 * k)])
    assert np.allclose(columns[:k] @ columns[:k].T, np.eye(k), atol=1e-12)
    assert np.allclose(columns[k:], -columns[:k], atol=1e-12)
    v = np.linspace(-1, 2, k)
    law = ProjectedCode(2.0, 16, bits=5)
    products = columns @ v
    assert set(near_codes(v, law, SHARED).tolist()) == set(np.argsort(-products)[: law.near].tolist())


def test_rotations_are_uniform(key):
    """A column's numbers over many keys, with signs of their own: mean 0, and fourth moment 3 / (k (k + 2))."""
    k, n = 4, 4000
    found = np.array([codeword(1 + k * (i % 2), k, ldpkernels.key(i)) for i in range(n)])
    fourth = (found**4).mean()
    assert abs(fourth - 3 / (k * (k + 2))) < Z * (found**4).std() / math.sqrt(n)
    assert np.abs(found.mean(0)).max() < Z * 0.5 / math.sqrt(n)


def test_normals_are_the_same_on_every_backend(key):
    drawn = []
    for backend in (*_native.isas(), "reference"):
        with ldpkernels.backend(backend):
            drawn.append(normals(301, key).tolist())
    assert all(one == drawn[0] for one in drawn)


@pytest.mark.parametrize(
    ("law", "x"),
    [
        (ProjectedCode(6.0, 16, bits=5), np.linspace(-0.3, 0.4, 16)),
        (ProjectedCode(6.0, 24, bits=4), np.eye(1, 24)[0] * 0.9),  # padded, projected
        (ProjectedCode(3.0, 50, norm=2.0, bits=6), np.full(50, 2 / math.sqrt(50))),
        (ProjectedCode(5.0, 3, bits=2), np.array([0.5, 0.0, -0.2])),
    ],
    ids=lambda v: "" if isinstance(v, np.ndarray) else f"{v.eps:g}, {v.dimension} in {v.bits} bits",
)
def test_unbiased_and_of_the_stated_error(law, x):
    n = 3000
    keys = [ldpkernels.key(1000 + i) for i in range(n)]
    codes = [report_code(x, law, key, generator=ldpkernels.key(10**6 + i)) for i, key in enumerate(keys)]
    each = np.array([mean_of_codes([c], law, [key]) for c, key in zip(codes, keys, strict=True)]).astype(np.float64)
    deviation = each.std(0) / math.sqrt(n)
    assert (np.abs(each.mean(0) - x) < Z * deviation).all()
    assert (np.abs(each.mean(0) - x - 3 * Z * deviation[0] * np.eye(1, len(x))[0]) > Z * deviation).any()  # power
    error = (each**2).sum(1)
    assert error.mean() < law.worst_error * 1.01 + Z * error.std() / math.sqrt(n)
    assert error.mean() > 0.65 * law.worst_error  # which counts padding and the smallest k in full
    assert np.allclose(mean_of_codes(codes[:9], law, keys[:9]), each[:9].mean(0), atol=1e-4)


def test_near_to_the_best_at_eleven_bits():
    """d = 10^6, eps = 8: 18% more error than PrivUnitG's 32 million bits."""
    assert ProjectedCode(8.0, 10**6).worst_error < 1.19 * PrivUnitG(8.0, 10**6).worst_error
    assert ProjectedCode(8.0, 10**6, bits=13).worst_error < 1.1 * PrivUnitG(8.0, 10**6).worst_error


def sqkr_error(odds, d, k, square):
    """SQKR's E of the squared length of a report: D B^2 d / (k lambda^2), as docs/mechanisms/projected_code.md has it.

    odds are e^eps, and square is D B^2, the squared length of a vector of bounds; padding D is d here.
    """
    shrinkage = (odds - 1) / (odds + 2**k - 1)
    return square * d / (k * shrinkage**2)


def test_the_table_of_errors_is_so():
    """docs/mechanisms/projected_code.md: each figure is the law's, at a million weights, by its last digit."""
    d, text = 10**6, DOCUMENT.read_text()
    rows = [[float(cell) for cell in line.strip("| ").split("|")] for line in re.findall(r"^\| \d+ \|.*$", text, re.M)]
    assert [row[0] for row in rows] == [4, 8, 12]
    for eps, *figures in rows:
        codes = [ProjectedCode(eps, d, bits=bits).worst_error / d for bits in (13, 11, 8)]
        sqkr = min(sqkr_error(math.exp(eps), d, k, 9.0) / d for k in range(1, int(eps / math.log(2)) + 1))
        laws = [PrivUnitG(eps, d).worst_error / d, *codes, sqkr, KOfD(eps, d, 1.0, 4 / math.sqrt(d)).worst_error / d]
        for figure, law in zip(figures, laws, strict=True):
            digits = len(f"{figure:g}".partition(".")[2])
            assert abs(figure - law) <= 0.51 * 10.0**-digits, (eps, figure, law)


def test_a_published_threshold():
    """eps = ln 3, one of four codewords near: odds 3 : 3, exactly one half."""
    assert abs(threshold_of(math.log(3), 1, 4) - 2**63) < 2**12


def test_containers_backends_and_edges():
    law = ProjectedCode(4.0, 10, bits=6)
    update = {"a": np.linspace(-1, 1, 6, dtype=np.float32), "b": np.array([1.0, np.nan, np.inf, 0.0])}
    sent = []
    for backend in (*_native.isas(), "reference"):
        with ldpkernels.backend(backend):
            sent.append([report_code(update, law, SHARED, generator=ldpkernels.key(i)) for i in range(3)])
    assert all(one == sent[0] for one in sent)
    assert report_code(np.zeros(10), law, SHARED) < 64
    assert law.effective_eps - 1e-4 < law.epsilon(1e-5) < law.epsilon(0.0) == law.effective_eps
    assert law.mean_error(10) == law.worst_error / 10
    with pytest.raises(ValueError, match="the update has 9 weights"):
        report_code(np.zeros(9), law, SHARED)
    with pytest.raises(ValueError, match="is not a report of this law"):
        mean_of_codes([64], law, [SHARED])
    with pytest.raises(ValueError, match="no codes"):
        mean_of_codes([], law, [])
    for bits in (1, 14):
        with pytest.raises(ValueError, match="bits"):
            ProjectedCode(1.0, 10, bits=bits)
