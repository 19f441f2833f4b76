# SPDX-License-Identifier: Apache-2.0
# The hybrid mechanism's coin, in exact integers; and which mechanism is best where.
import math
from fractions import Fraction

import numpy as np
import pytest

import ldpkernels
from ldpkernels import Hybrid, Piecewise, TwoPoint, best_mechanism
from ldpkernels.reference.hybrid import hybrid_cell
from tests.cells import DTYPES, N, cells_of, counts_of, record, some_turns
from tests.laws import within_exp

EPS = [0.3, 0.62, 1.0, 2.0, 4.0, 6.5, 10.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("eps", EPS)
def test_whole_law(eps, dtype):
    """Joint counts of coin and circle are within e^eps of each other, so their sums are; and they add up to 2^32."""
    for output, c, r in (("report", 0.0, 1.0), ("report", 0.3, 0.01), ("values", 0.1, 0.7), ("values", 1.0, 0.01)):
        cells = cells_of("hybrid", c, r, eps, dtype, output)
        counts = counts_of(cells, some_turns(cells, 300))
        assert (counts.sum(1) == N).all()
        assert within_exp(cells.ratio(), eps)
        ratios = counts.max(0) / counts.min(0)
        column = int(ratios.argmax())
        assert within_exp(Fraction(int(counts[:, column].max()), int(counts[:, column].min())), eps)
        turn = int(some_turns(cells)[9])
        assert cells.counts(turn) == counts_of(cells, [turn])[0].tolist()


@pytest.mark.parametrize("eps", EPS)
def test_coin(eps):
    cells = cells_of("hybrid", 0.0, 1.0, eps, np.float64, "report")
    coin, span = cells.coin, cells.k_hi - cells.k_lo
    low, high = coin.lowest, coin.upper_draws(span)
    assert within_exp(Fraction(high, low), eps)
    assert within_exp(Fraction(coin.draws - low, coin.draws - high), eps)
    assert coin.draws + cells.circle.draws == N
    # The two cells are the first at or outside the two-point mechanism's own values.
    reach = cells.step * (coin.upper - Fraction(255, 2))
    assert coin.upper + coin.lower == 255
    scale = TwoPoint(eps).scale
    assert scale * (1 - 1e-6) <= float(reach) < scale + float(cells.step)
    # Unbiased in itself: its mean at a weight is the weight.
    for raised in (0, span // 3, span // 2, span):
        share = Fraction(coin.upper_draws(raised), coin.draws)
        weight = Fraction(2 * raised, span) - 1
        assert abs((2 * share - 1) * reach - weight) < Fraction(4, coin.draws) * reach + Fraction(1, 10**8)


def test_draws_one_by_one_at_the_seam_between_circle_and_coin():
    cells = cells_of("hybrid", 0.0, 1.0, 1.0, np.float64, "report")
    law, last = record("hybrid", cells)[0], cells.circle.draws - 1
    for k in (cells.k_lo, -12345, 0, cells.k_hi):
        upper = cells.coin.upper_draws(k - cells.k_lo)
        first_coins = [hybrid_cell(k, last + 1 + i, law) for i in range(3)]
        assert first_coins == [cells.coin.upper] * 3
        assert hybrid_cell(k, last + upper, law) == cells.coin.upper
        assert hybrid_cell(k, last + 1 + upper, law) == cells.coin.lower
        assert hybrid_cell(k, N - 1, law) == cells.coin.lower


def test_variance_is_nearly_the_same_for_every_weight():
    for eps in (0.7, 1.0, 3.0, 5.0):
        variances = Hybrid(eps).variance(np.linspace(-1, 1, 1001), 0.0, 1.0)
        assert variances.max() / variances.min() < 1.003


@pytest.mark.parametrize(("eps", "published"), [(1.0, 4.289), (2.0, 1.042), (4.0, 0.219)])
def test_no_worse_than_the_published_mechanism(eps, published):
    assert Hybrid(eps).worst_variance < published
    assert math.isclose(Hybrid(eps).worst_variance, published, rel_tol=0.3)


def test_crossovers():
    """Two-point up to about 0.61, then hybrid, and piecewise where the coin gains nothing."""
    names = [(eps, best_mechanism(float(eps)).name) for eps in np.arange(0.4, 9.0, 0.02)]
    first_hybrid = min(eps for eps, name in names if name == "hybrid")
    last_two_point = max(eps for eps, name in names if name == "two-point")
    assert 0.60 < first_hybrid < 0.64
    assert last_two_point < 0.64
    first_piecewise = min(eps for eps, name in names if name == "piecewise")
    assert 6.5 < first_piecewise < 8.5
    assert {name for eps, name in names if 0.64 < eps < 6.5} == {"hybrid"}


@pytest.mark.parametrize(
    ("eps", "kind"), [(1e-7, TwoPoint), (0.5, TwoPoint), (1.0, Hybrid), (10.0, Piecewise), (1e6, Piecewise)]
)
def test_executed(eps, kind):
    assert type(Hybrid(eps).executed) is kind
    assert Hybrid(eps).executed.effective_eps <= eps
    x = np.zeros(5)
    one = ldpkernels.report(x, 0.0, 1.0, eps, mechanism="hybrid", generator=ldpkernels.key(0))
    same = ldpkernels.report(x, 0.0, 1.0, eps, mechanism=kind.name, generator=ldpkernels.key(0))
    assert one.layout == same.layout
    assert np.array_equal(one.bits, same.bits)


def test_choice_is_of_the_executed_laws():
    choice = best_mechanism(4.0)
    assert choice.name == min(choice.worst, key=choice.worst.get)
    assert choice.worst["two-point"] == TwoPoint(4.0).scale ** 2
    assert choice.worst["piecewise"] == Piecewise(4.0).worst_variance
    assert choice.center["hybrid"] == pytest.approx(Hybrid(4.0).variance(0.0, 0.0, 1.0))
    assert str(choice).startswith("At eps=4 use 'hybrid'")
    with pytest.raises(ValueError, match="eps=0"):
        best_mechanism(0)


def test_where_a_coarse_dtype_leaves_no_room_for_the_coin_the_circle_has_all_draws():
    laws = [cells_of("hybrid", 1.0, r, 1.0, DTYPES[2], "values") for r in (0.01, 1e-3, 0.0)]
    assert any(law.coin is None for law in laws)
    assert all(law.circle.draws == N for law in laws if law.coin is None)
