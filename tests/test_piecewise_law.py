# SPDX-License-Identifier: Apache-2.0
# The claim of the piecewise mechanism and the integers that execute it, in exact rationals; and those of every cell.
import hashlib
import math
import random
from fractions import Fraction

import numpy as np
import pytest

import ldpkernels
from ldpkernels import Hybrid, Piecewise
from ldpkernels.common.dtypes import DTYPES as FORMATS
from ldpkernels.laws.piecewise_circle import best_circle, circle_of, exp_down
from ldpkernels.laws.registry import KINDS, law_table
from ldpkernels.laws.two_point import checked_range
from ldpkernels.reference.piecewise import piecewise_cell
from tests.cells import DTYPES, N, cells_of, counts_of, draws_below, run, some_turns
from tests.laws import RANGES, executed, within_exp

EPS = [1e-4, 0.01, 0.5, 1.0, 2.0, 4.0, 8.0, 14.0, 21.0]
KEY = ldpkernels.key(0)


def small_circles():
    """Circles of few draws and places, whose law can be counted draw by draw."""
    rng = np.random.default_rng(0)
    while True:
        cells, bits = int(rng.integers(2, 9)), int(rng.integers(1, 6))
        band, draws = int(rng.integers(1, cells)), int(rng.integers(cells << bits, 4 * cells << bits))
        circle = circle_of(cells, band, bits, draws, int(rng.integers(draws * band // cells, draws)))
        if circle is not None and circle.fewest >= 1:
            yield circle


def test_small_circles_draw_by_draw():
    """Every draw at every turn: the counts are those of the formula, and within the proved bounds."""
    from ldpkernels.laws.piecewise_cells import Cells

    for _, circle in zip(range(60), small_circles(), strict=False):
        placed = Cells(circle, *[Fraction(1)] * 4, 0, 0, 0)
        law = placed.piecewise_record()
        names = ["center", "slope", "fallback", "k_lo", "k_hi", "origin", "band_draws", "band_scale", "rest_scale"]
        law = dict(zip([*names, "rest_shift", "band_end", "places", "cell_bits"], law, strict=False))
        for turn in range(circle.turn + 1):
            reported = [piecewise_cell(turn, draw, law) for draw in range(circle.draws)]
            counts = np.bincount(reported, minlength=circle.cells)
            assert counts.tolist() == circle.counts(turn) == counts_of(placed, [turn])[0].tolist()
            assert circle.fewest <= counts.min()
            assert counts.max() <= circle.most


@pytest.mark.parametrize("cells", [2, 3, 17, 256, 1023])
@pytest.mark.parametrize("eps", EPS)
def test_eps_of_the_executed_integers(eps, cells):
    circle = best_circle(eps, cells)
    assert within_exp(Fraction(circle.most, circle.fewest), eps)
    assert circle.band_scale < N
    assert circle.rest_scale < N
    assert 0 < circle.turn < 2**31
    assert circle.draws == N
    # A circle with one more draw in the band in 10^4 would break it: nothing is given away.
    if eps < 10:
        loose = circle_of(cells, circle.band, circle.cell_bits, N, circle.band_draws + (N - circle.band_draws) // 500)
        assert loose is None or loose.most > exp_down(eps) * loose.fewest


@pytest.mark.parametrize("eps", EPS)
def test_counts_at_many_turns(eps):
    """The whole law: every ratio between any two weights is within e^eps, and the probabilities add up."""
    cells = cells_of("piecewise", 0.0, 1.0, eps, np.float64, "report")
    counts = counts_of(cells, some_turns(cells, 2000))
    assert (counts.sum(1) == N).all()
    assert counts.min() >= cells.circle.fewest
    assert counts.max() <= cells.circle.most
    assert within_exp(Fraction(int(counts.max()), int(counts.min())), eps)
    assert within_exp(Fraction(int(counts.max()), int(counts.min())), Piecewise(eps).effective_eps)
    exact = cells.circle.counts(int(some_turns(cells)[7]))
    assert exact == counts_of(cells, some_turns(cells)[7:8])[0].tolist()


@pytest.mark.parametrize("kind", [Piecewise, Hybrid])
def test_what_a_ledger_counts_is_what_both_calls_execute(kind):
    """`perturb_` has other integers than a report: those of 14.0 on bfloat16 cost more than its report."""
    for eps in (0.5, 4.0, 7.739, 14.0, 21.0):
        for c, r in ((0.0, 1.0), (1.0, 0.01), (-2.0, 0.5)):
            mechanism = kind(eps).executed
            values = [mechanism.executed_eps(c, r, dtype) for dtype in DTYPES]
            assert max(mechanism.effective_eps, *values) <= mechanism.event.pure_epsilon <= eps
    assert Piecewise(14.0).executed_eps(1.0, 0.01, "bfloat16") > Piecewise(14.0).effective_eps


@pytest.mark.parametrize("eps", [pytest.param(0.3, marks=pytest.mark.exhaustive), 6.0])
def test_every_interval_at_the_seams(eps):
    """Where the bounds are tightest, at the ends of band and rest: every place within a cell of them, 2^24 and more."""
    circle = best_circle(eps, 256)
    size, places = 1 << circle.cell_bits, circle.cells << circle.cell_bits
    seen = []
    for seam in (circle.band * size, places):
        for begin in range(seam - 2 * size, seam + size, 2**20):
            starts = np.arange(begin, begin + 2**20) % places
            ends = starts + size
            wrapped = ends > places
            counts = draws_below(circle, np.where(wrapped, ends - places, ends)) - draws_below(circle, starts)
            counts += wrapped * circle.draws
            seen += [int(counts.min()), int(counts.max())]
    assert circle.fewest <= min(seen) <= circle.fewest + 2
    assert circle.most - 2 <= max(seen) <= circle.most


def exact_mean_and_variance(cells, turn):
    """Of the cell's number y, of which a value is lowest + step * y: 2^32 of 1,023^2 are exact in int64."""
    counts, y = counts_of(cells, [turn])[0], np.arange(cells.circle.cells, dtype=np.int64)
    mean, square = Fraction(int(counts @ y), N), Fraction(int(counts @ (y * y)), N)
    return cells.lowest + cells.step * mean, cells.step**2 * (square - mean**2)


def bias_bound(cells):
    """Places and draws are whole: 2 / S cells and a draw for each cell's border (docs/mechanisms/piecewise.md)."""
    return cells.step * (Fraction(2, 1 << cells.circle.cell_bits) + Fraction(cells.circle.cells, N))


def cases(mechanism, dtype):
    """Those that can be executed: no coin at a tiny eps, no reach past fp16's largest number."""
    return [
        (c, r, eps)
        for c, r, eps in (*RANGES, (3.0, 0.5, 1e-4), (0.3, 0.7, 21.0))
        if not (mechanism == "hybrid" and eps < 0.05) and not (dtype == np.float16 and (eps < 1e-3 or c > 5e4))
    ]


@pytest.mark.parametrize("output", ["report", "values"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("mechanism", ["piecewise", "hybrid"])
def test_unbiased_and_of_the_stated_variance(mechanism, dtype, output):
    for c, r, eps in cases(mechanism, dtype):
        cells = cells_of(mechanism, c, r, eps, dtype, output)
        assert within_exp(cells.ratio(), eps)
        assert 0 <= cells.origin + cells.k_lo <= cells.origin + cells.k_hi <= cells.circle.turn
        center, radius = executed(c, r, dtype.name)
        turns = some_turns(cells, 3)
        for turn in turns[:: max(1, len(turns) // 12)]:
            mean, variance = exact_mean_and_variance(cells, int(turn))
            w = center + (int(turn) - cells.origin) / cells.slope if cells.step else center
            assert abs(mean - w) <= bias_bound(cells) + radius * Fraction(1, 2**22)  # the slope is an fp32 number
            stated = cells.variance(float(w - center), 0.0)
            # A draw more or less in each cell, which is much only where a cell has few: at eps = 21.
            slack = float(cells.step) ** 2 * cells.circle.cells**3 / (8 * N)
            assert float(variance) == pytest.approx(stated, rel=2e-5, abs=slack)
        ends = exact_mean_and_variance(cells, cells.origin + cells.k_hi)[0] if cells.step else center + radius
        assert abs(ends - center - radius) <= bias_bound(cells) + radius * Fraction(1, 2**22)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_values_are_numbers_of_the_dtype(dtype):
    every = [(mechanism, case) for mechanism in ("piecewise", "hybrid") for case in cases(mechanism, dtype)]
    for mechanism, (c, r, eps) in every:
        cells = cells_of(mechanism, c, r, eps, dtype, "values")
        values = [cells.lowest + cells.step * y for y in range(cells.circle.cells)]
        with np.errstate(all="ignore"):
            rounded = np.array([float(v) for v in values]).astype(dtype).astype(np.float64)
        assert [Fraction(v) for v in rounded.tolist()] == values


def test_overflow_and_bad_arguments_are_refused():
    with pytest.raises(OverflowError, match="float16"):
        cells_of("piecewise", 6.5e4, 2e4, 1.0, np.float16, "values")
    for eps in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="eps="):
            Piecewise(eps)
    with pytest.raises(ValueError, match="two-point"):
        Piecewise(1e-9)
    with pytest.raises(ValueError, match="mechanism='duchi'"):
        ldpkernels.perturb_(np.zeros(3), 0.0, 1.0, 1.0, mechanism="duchi")


@pytest.mark.parametrize(("c", "r"), [(0.0, 1.0), (1.0, 0.01), (-0.37, 0.2)])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize == 2], ids=lambda d: d.name)
def test_every_16_bit_pattern(dtype, c, r):
    """Turns stay in bounds, rise with the weight, and every law at them is private and unbiased."""
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        numbers = x.astype(np.float64)
    cells = cells_of("piecewise", c, r, 1.0, dtype, "report")
    turns = run("piecewise", "turns", x, cells, KEY, "scalar")
    assert turns.min() == 0
    assert turns.max() == cells.circle.turn
    assert set(turns[np.isnan(numbers)]) == {cells.origin}
    order = np.argsort(numbers[~np.isnan(numbers)], kind="stable")
    assert (np.diff(turns[~np.isnan(numbers)][order]) >= 0).all()
    distinct = np.unique(turns)
    counts = counts_of(cells, distinct)
    assert counts.min() >= cells.circle.fewest
    assert counts.max() <= cells.circle.most
    center, radius = (float(v) for v in executed(c, r, dtype.name))
    means = float(cells.lowest) - center + float(cells.step) * (counts @ np.arange(256.0)) / N
    known = ~np.isnan(numbers)
    clipped = np.clip(np.nan_to_num(numbers, nan=center) - center, -radius, radius)
    assert np.abs(means[np.searchsorted(distinct, turns)] - clipped)[known].max() < 6e-7 * radius


def test_variance_of_arrays_tensors_and_numbers_and_the_worst():
    torch = pytest.importorskip("torch")

    for eps in (0.7, 1.0, 3.0, 9.0):
        for mechanism in (Piecewise(eps), ldpkernels.Hybrid(eps)):
            grid = np.linspace(-1, 1, 20_001)
            variances = mechanism.variance(grid, 0.0, 1.0)
            tensor = mechanism.variance(torch.from_numpy(grid), 0.0, 1.0).numpy()
            assert np.allclose(tensor, variances, rtol=1e-12)
            assert mechanism.variance(0.25, 0.0, 1.0) == pytest.approx(mechanism.variance(np.array(0.25), 0.0, 1.0))
            assert variances.max() <= mechanism.worst_variance * (1 + 1e-6)
            assert variances.max() >= mechanism.worst_variance * (1 - 1e-4)
            assert mechanism.bias(3.0, 0.0, 1.0) == -2.0


@pytest.mark.parametrize(("eps", "center", "end"), [(1.0, 3.68, 5.22), (2.0, 0.646, 1.228), (4.0, 0.085, 0.241)])
def test_no_worse_than_the_published_mechanism(eps, center, end):
    """At the end of the range better, and at the center within 4%: the band is wider than the published one."""
    mechanism = Piecewise(eps)
    assert mechanism.worst_variance < end
    assert mechanism.variance(0.0, 0.0, 1.0) < 1.04 * center
    published = best_circle(eps, 256, band=round(256 / (math.exp(eps / 2) + 1)))
    from ldpkernels.common.dtypes import FLOAT64
    from ldpkernels.laws.piecewise_cells import report_cells

    cells = report_cells(Fraction(0), Fraction(1), FLOAT64, published)
    assert float(cells.variance(0.0, 0.0)) == pytest.approx(center, rel=0.015)
    assert float(cells.variance(1.0, 0.0)) == pytest.approx(end, rel=0.015)


def ranges(rng, count):
    """Of ordinary sizes, of all sizes, and with zeros."""
    for i in range(count):
        scale = 10 ** rng.uniform(-4, 1) if i % 3 else 2.0 ** rng.uniform(-130, 120)
        c = 0.0 if i % 11 == 0 else rng.gauss(0, scale)
        yield c, 0.0 if i % 13 == 0 else abs(rng.gauss(0, scale)) * (1 if i % 5 else 1e-6)


@pytest.mark.parametrize("kind", [Piecewise, Hybrid])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("eps", [0.7, 4.0])
def test_cells_of_any_range_are_private_unbiased_and_numbers_of_the_dtype(eps, name, kind):
    """Both ends of the range decode to themselves on average, and the center; no turn leaves the circle."""
    seen, dtype = 0, FORMATS[name]
    for c, r in ranges(random.Random(f"{eps} {name} {kind.name}"), 60):
        try:
            center, radius = checked_range(c, r, dtype)
            cells = kind(eps).cells(c, r, dtype, "values")
        except OverflowError:
            continue
        assert within_exp(cells.ratio(), eps)
        assert 0 <= cells.origin + cells.k_lo <= cells.origin + cells.k_hi <= cells.circle.turn
        last = cells.circle.cells - 1
        assert all(dtype.holds(cells.lowest + cells.step * y) for y in (0, 1, last // 2, last))
        if cells.step:
            slack = bias_bound(cells) + radius * Fraction(1, 2**20)
            for turn, w in ((cells.k_lo, center - radius), (0, center), (cells.k_hi, center + radius)):
                assert abs(exact_mean_and_variance(cells, cells.origin + turn)[0] - w) <= slack, (c, r)
        else:
            assert (cells.lowest, radius) == (center, 0)
        seen += 1
    assert seen > 20


def test_laws_are_what_they_were():
    """A report is decoded by its law: another law for a range would be another version of the format."""
    rng, digest = random.Random(7), hashlib.sha256()
    for i in range(1000):
        mechanism, dtype, unit = (
            KINDS[i % 4](rng.choice([0.7, 4.0])),
            rng.choice(list(FORMATS.values())),
            rng.randint(-30, 0),
        )
        c, r = (math.ldexp(rng.randint(0, 2**24), unit + rng.randint(-9, 9)) for _ in range(2))
        for output in ("values", "report"):
            try:
                digest.update(law_table(mechanism, [c], [r], [dtype], output).tobytes())
            except OverflowError as error:
                digest.update(str(error).encode())
    assert digest.hexdigest() == "a1ad1c7aff847f82fdce167a09875c80c345dc1fc53791dcdfd4226b757a6a7f"
