# SPDX-License-Identifier: Apache-2.0
# The law of ordinal CLDP in exact rationals, from the integers that are executed; its claims and its moments.
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from ldpkernels import OrdinalCLDP, _native
from ldpkernels.accounting import LOCAL, MetricEvent, Unit
from ldpkernels.laws.ordinal_cldp_integers import MASS, alias, magnitudes_for
from ldpkernels.laws.ordinal_cldp_integers import RANGE as N
from ldpkernels.laws.ordinal_cldp_thresholds import law_row
from ldpkernels.reference.ordinal_cldp import loss, wide

MECHANISMS = ["exponential", "laplace"]
ALPHAS = [1e-30, 1e-9, 1e-3, 0.1, math.log(2), 1.0, 5.0, 20.0, 300.0, 1e308]


def record(alpha, m, mechanism):
    """What the kernels are given."""
    return np.array([law_row(alpha, m, mechanism)], _native.LAWS["ordinal_cldp"])[0]


def table(law, number):
    """The masses of an alias table's 64 values, out of 64 * 2^128, as its columns are read."""
    masses = [0] * 64
    for i in range(64):
        place = 64 * number + i
        entry, threshold = int(law["entries"][place // 4]) >> 16 * (place % 4) & 0xFFFF, wide(law["thresholds"], place)
        assert entry >> 6 == threshold >> 118
        masses[i] += threshold
        masses[entry & 63] += N - threshold
    return masses


def magnitudes(law, largest):
    """P(g) for g from 0 to `largest`, as integers over one denominator: of the sampler, from its record."""
    upper, middle, low, tail = table(law, 0), table(law, 1), int(law["low"]), int(law["tail"])
    column, unit = low + int(law["middle"]), int(law["unit"])
    assert unit == tail << column
    assert sum(middle[: 2 ** int(law["middle"])]) == sum(upper[: tail + 1]) == MASS
    kept = [N - loss(digits, law) for digits in range(2**low)]
    f = []
    for g in range(largest + 1):
        quotient, rest = divmod(g, unit)
        value = upper[rest >> column] * middle[rest % 2**column >> low] * kept[rest % 2**low]
        f.append(value * upper[tail] ** quotient * MASS ** (largest // unit - quotient))
    return f


@cache
def exp_bound(x: Fraction):
    """An integer at most 2^300 e^x, and hardly less."""
    with localcontext(Context(prec=1000, Emax=10**9, Emin=-(10**9))):
        exact = (Decimal(x.numerator) / Decimal(x.denominator)).exp() * 2**300
        return int(exact * (1 - Decimal(10) ** -900))


def masses(f, m):
    return {v: sum(f[abs(y - v)] for y in range(-m, m + 1)) for v in range(-m, m + 1)}


def check_pair(f, z, m, v, w, alpha):
    """P(y | v) <= e^(alpha |v - w|) P(y | w) for every y."""
    if v == w:
        return
    exponent = Fraction(alpha) * abs(v - w)
    if exponent > 2000:
        return  # masses have 134 digits: no ratio is e^2000, as `test_effective_alpha` shows
    bound = exp_bound(exponent)
    left, right = z[w] << 300, z[v] * bound
    for y in range(-m, m + 1):
        assert f[abs(y - v)] * left <= f[abs(y - w)] * right, (alpha, m, v, w, y)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_ratio_of_small_boxes(alpha):
    for m in (0, 1, 2, 3, 7, 16):
        f = magnitudes(record(alpha, m, "exponential"), 2 * m)
        z = masses(f, m)
        for v in range(-m, m + 1):
            for w in range(-m, m + 1):
                check_pair(f, z, m, v, w, alpha)


@pytest.mark.parametrize(("m", "alpha"), [*product([31, 33, 64], [1e-3, 0.05, 0.7, 6.0]), (600, 1e-3), (600, 3e-5)])
def test_every_ratio_of_neighbours(m, alpha):
    """Ratios multiply from neighbour to neighbour, so these imply all others."""
    f = magnitudes(record(alpha, m, "exponential"), 2 * m)
    z = masses(f, m)
    for v in range(-m, m):
        check_pair(f, z, m, v, v + 1, alpha)
        check_pair(f, z, m, v + 1, v, alpha)


def laplace_holds(executed, claimed):
    """Without a box, neighbours' ratios are those of neighbouring magnitudes; here across columns and units."""
    law = record(executed, 10, "laplace")
    f = magnitudes(law, max(int(law["unit"]) + 5, 100))
    bound = exp_bound(Fraction(claimed))
    return all(a << 300 <= b * bound and b << 300 <= a * bound for a, b in pairwise(f))


@pytest.mark.parametrize("alpha", [5e-4, 0.01, 0.05, math.log(2), 1.0, 6.0, 30.0])
def test_every_ratio_of_laplace(alpha):
    assert laplace_holds(alpha, alpha)
    assert not laplace_holds(alpha * (1 + 1e-12), alpha), "the test has no power"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_effective_alpha(mechanism):
    """From the integers alone, to 80 digits: never above alpha, hardly below, until the integers resolve no more."""
    for alpha in (2e-17, 1e-12, 4.3e-7, 1e-3, 0.1, 1.0, 20.0, 80.0, 1e3, 1e308):
        for c, rho in ((1.0, 2), (1.0, 10), (1.0, 18)):
            mechanism_object = OrdinalCLDP(alpha, c, rho, mechanism)
            law, found = record(alpha, mechanism_object.M, mechanism), mechanism_object.effective_alpha
            upper, middle, tail = table(law, 0), table(law, 1), int(law["tail"])
            with localcontext(Context(prec=80)):
                fallen, steps = Decimal(0), [Decimal(0)]
                for j in range(int(law["low"])):
                    step = (1 - Decimal(loss(2**j, law)) / N).ln()
                    steps.append(step - fallen)
                    fallen += step
                for masses in (middle[: 2 ** int(law["middle"])], upper[:tail]):
                    steps += [(Decimal(b) / a).ln() - fallen for a, b in pairwise(masses)]
                    fallen += (Decimal(masses[-1]) / masses[0]).ln()
                if mechanism == "laplace" or law["unit"] <= 2 * mechanism_object.M:
                    steps.append((Decimal(upper[tail]) / MASS).ln() - fallen)
                exact = max(abs(step) for step in steps) * (2 if mechanism == "exponential" else 1)
                assert exact <= Decimal(found)
            assert found <= alpha
            if 4 * alpha < 256:
                assert found >= alpha * (1 - 1e-9)
    assert OrdinalCLDP(1e308, 1.0, 2).effective_alpha == pytest.approx(268 * math.log(2))


def test_tiny_alpha_is_uniform():
    for alpha in (5e-324, 1e-40):
        mechanism = OrdinalCLDP(alpha, 1.0, 2)
        assert len(set(mechanism.magnitudes.upper)) == len(set(mechanism.magnitudes.middle)) == 1
        assert mechanism.effective_alpha == 0
        assert np.array_equal(mechanism.pmf(-100), np.full(201, 1 / 201))


def test_the_whole_range_of_alpha_and_m_has_integers():
    """`magnitudes_for` checks alpha itself, exactly; here, that it never has to refuse, and that what is rare is."""
    for m in (0, 1, 5, 10**10, 2**61, 2**62 - 1):
        for exponent in range(-160, 12):
            alpha = 2.0**exponent * 1.37
            found = magnitudes_for(alpha, m, "exponential")
            assert found.bounded == (2 * m < found.unit)
            assert found.unit < 2**64
            assert len(found.losses) <= 52
            assert min(*found.upper, *found.middle) > 2**90
            assert sum(found.losses) < 0.005 * N
            assert found.bounded or found.tail > 0
            if alpha < 14 and not found.bounded:
                assert found.tail <= 0.0012 * MASS
            if exponent % 16 == 0:
                record(alpha, m, "exponential")


def test_alias_tables_have_their_masses():
    rng = np.random.default_rng(0)
    for values in (1, 2, 3, 63, 64):
        shares = rng.integers(0, 2**62, values).astype(object) ** 3
        masses = [int(MASS * s // sum(shares)) for s in shares]
        masses[0] += MASS - sum(masses)
        thresholds, others = alias(masses)
        found = [0] * 64
        for i, (threshold, other) in enumerate(zip(thresholds, others, strict=True)):
            assert 0 <= threshold < N
            found[i] += threshold
            found[other] += N - threshold
        assert found == masses + [0] * (64 - values)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_record_holds_the_integers(mechanism):
    for alpha, m in ((4.3e-7, 10**10), (1.0, 5), (1e-15, 2**61)):
        found, law = magnitudes_for(alpha, m, mechanism), record(alpha, m, mechanism)
        assert table(law, 0)[: len(found.upper) + 1] == [*found.upper, found.tail][:64]
        assert table(law, 1)[: len(found.middle)] == [*found.middle]
        assert [wide(law["losses"], j) for j in range(int(law["low"]))] == [*found.losses]
        assert law["wide"] == (len(found.losses) > 16)
        assert int(law["keep"]) << 113 >= loss(2 ** int(law["low"]) - 1, law), "the first digits may not keep too much"


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.3, 2.0, 9.0])
def test_moments_are_those_of_the_law(alpha):
    m = 60
    y = np.arange(-m, m + 1)
    mechanism = OrdinalCLDP(alpha, 0.6, 2)
    assert mechanism.M == 60
    f = magnitudes(record(alpha, m, "exponential"), 2 * m)
    z = masses(f, m)
    for v in (-m, -7, 0, 41, m):
        exact = [Fraction(f[abs(u - v)], z[v]) for u in range(-m, m + 1)]
        mean = sum(p * u for p, u in zip(exact, y.tolist(), strict=True))
        variance = sum(p * (u - mean) ** 2 for p, u in zip(exact, y.tolist(), strict=True))
        assert np.allclose(mechanism.pmf(v), [float(p) for p in exact], rtol=1e-12, atol=0)
        assert mechanism.bias(v) == pytest.approx(float(mean - v), rel=1e-9, abs=1e-12)
        assert mechanism.variance(v) == pytest.approx(float(variance), rel=1e-9)


def test_moments_of_huge_boxes():
    mechanism = OrdinalCLDP(4.3e-7, 1.0, 10)
    assert mechanism.bias(mechanism.M) == pytest.approx(-2 / 4.3e-7, rel=1e-5)
    assert mechanism.bias(0) == 0
    assert mechanism.variance(0) == pytest.approx(8 / 4.3e-7**2, rel=1e-9)
    flat = OrdinalCLDP(1e-36, 1.0, 18)  # the closed form cancels 100 digits
    assert flat.bias(10**18) == pytest.approx(-1e18, rel=1e-9)
    assert flat.variance(3) == pytest.approx(((2e18 + 1) ** 2 - 1) / 12, rel=1e-9)
    assert OrdinalCLDP(0.1, 1.0, 10, "laplace").variance(5) == pytest.approx(199.8333, rel=1e-6)
    assert OrdinalCLDP(0.1, 1.0, 10, "laplace").bias(5) == 0


def test_worst_case_eps_bounds_every_pair():
    """The exponential mechanism keeps alpha M over the box: half of what the metric alone would say."""
    for alpha in (0.01, 0.3, 2.0):
        for m in (1, 2, 5, 20):
            mechanism = OrdinalCLDP(alpha, m, 0)
            laws = [mechanism.pmf(v) for v in range(-m, m + 1)]
            worst = max(float(np.max(np.log(p / q))) for p in laws for q in laws)
            assert worst <= mechanism.worst_case_eps * (1 + 1e-12)
            assert worst == pytest.approx(mechanism.worst_case_eps, rel=1e-6)
            assert mechanism.worst_case_eps == pytest.approx(alpha * m)
            assert OrdinalCLDP(alpha, m, 0, "laplace").worst_case_eps == pytest.approx(2 * alpha * m)


def test_event():
    mechanism = OrdinalCLDP(0.25, 1.0, 1)
    assert mechanism.event == MetricEvent(mechanism.effective_alpha, "linf", 20.0, scope=LOCAL.per(Unit.WEIGHT))
    assert mechanism.event.pure_epsilon == 2 * mechanism.worst_case_eps == 5
    assert OrdinalCLDP(0.25, 1.0, 1, "laplace").event.pure_epsilon == 5


@pytest.mark.parametrize(
    ("c", "rho", "m"),
    [
        (0.3, 10, 3 * 10**9),
        (1e-5, 7, 100),
        (0.1, 0, 0),
        (2.0**62 - 512, 0, 2**62 - 512),
        (4, 18, 4 * 10**18),
        (0.7, 1, 7),
    ],
)
def test_integers_of_c_and_rho(c, rho, m):
    """c is the decimal number that it prints as: 0.3 is not just below three tenths."""
    assert m == OrdinalCLDP(1.0, c, rho).M


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 2), r"alpha=0\.0 must be a finite number above 0"),
        ((math.inf, 1.0, 2), "alpha=inf must be"),
        ((math.nan, 1.0, 2), "alpha=nan must be"),
        ((1.0, -1.0, 2), r"c=-1\.0 must be a finite"),
        ((1.0, math.inf, 2), "c=inf must be a finite"),
        ((1.0, 2**62 - 1, 0), "c=4611686018427387903 must be a finite fp64 number"),
        ((1.0, 1.0, 19), "c=1.0 with rho=19 makes c 10.rho = 10000000000000000000: use a smaller c or rho"),
        ((1.0, 2.0**62, 0), "makes c 10.rho = 4611686018427387904: use a smaller c"),
        ((1.0, 1.0, 2.5), r"rho=2\.5 must be an integer from 0 to 22"),
        ((1.0, 1.0, -1), "rho=-1 must be an integer"),
        ((1.0, 1.0, True), "rho=True must be an integer"),
        ((1.0, 1.0, 2, "gauss"), "mechanism='gauss' must be 'exponential' or 'laplace'"),
        ((1e-19, 1.0, 2, "laplace"), "alpha=1e-19 makes laplace noise that would be cut off at 9223372036854775807"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        OrdinalCLDP(*arguments)


def test_values_outside_are_refused():
    mechanism = OrdinalCLDP(1.0, 1.0, 10)
    with pytest.raises(ValueError, match="v=10000000001 must be an integer from -M to M, M=10000000000"):
        mechanism.bias(10**10 + 1)
    with pytest.raises(ValueError, match="M=10000000000 is too large to list"):
        mechanism.pmf(0)
