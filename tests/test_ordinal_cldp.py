# SPDX-License-Identifier: Apache-2.0
# The law of ordinal CLDP in exact rationals, from the thresholds that are executed; its claims and its moments.
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from ldpkernels import OrdinalCLDP, _native
from ldpkernels.accounting import MetricEvent
from ldpkernels.laws.ordinal_cldp_thresholds import DIGITS, coins_for, law_row
from ldpkernels.laws.ordinal_cldp_thresholds import RANGE as N

MECHANISMS = ["exponential", "laplace"]
ALPHAS = [1e-30, 1e-9, 1e-3, 0.1, math.log(2), 1.0, 5.0, 20.0, 300.0, 1e308]


def magnitudes(coins, largest):
    """P(g) / P(0) for g from 0 to `largest`, as integers over one denominator."""
    ratios = []
    for g in range(largest + 1):
        ratio = Fraction(coins.quotient, N) ** (g >> len(coins.digits))
        for j, t in enumerate(coins.digits):
            ratio *= Fraction(t, N - t) if g >> j & 1 else 1
        ratios.append(ratio)
    common = math.lcm(*(r.denominator for r in ratios))
    return [int(r * common) for r in ratios]


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
        return  # the thresholds have 128 digits: no ratio is e^2000, as `test_effective_alpha` shows
    bound = exp_bound(exponent)
    left, right = z[w] << 300, z[v] * bound
    for y in range(-m, m + 1):
        assert f[abs(y - v)] * left <= f[abs(y - w)] * right, (alpha, m, v, w, y)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_ratio_of_small_boxes(alpha):
    for m in (0, 1, 2, 3, 7, 16):
        f = magnitudes(coins_for(alpha, m, "exponential"), 2 * m)
        z = masses(f, m)
        for v in range(-m, m + 1):
            for w in range(-m, m + 1):
                check_pair(f, z, m, v, w, alpha)


@pytest.mark.parametrize("alpha", [1e-3, 0.05, 0.7, 6.0])
@pytest.mark.parametrize("m", [31, 33, 64])
def test_every_ratio_of_neighbours(m, alpha):
    """Ratios multiply from neighbour to neighbour, so these imply all others."""
    f = magnitudes(coins_for(alpha, m, "exponential"), 2 * m)
    z = masses(f, m)
    for v in range(-m, m):
        check_pair(f, z, m, v, v + 1, alpha)
        check_pair(f, z, m, v + 1, v, alpha)


def laplace_holds(executed, claimed):
    """Without a box, neighbours' ratios are those of neighbouring magnitudes; here across several quotients."""
    coins = coins_for(executed, 10, "laplace")
    f = magnitudes(coins, min(3 * 2 ** len(coins.digits) + 5, 600))
    bound = exp_bound(Fraction(claimed))
    return all(a << 300 <= b * bound and b << 300 <= a * bound for a, b in pairwise(f))


@pytest.mark.parametrize("alpha", [1e-3, 0.05, math.log(2), 1.0, 6.0, 30.0])
def test_every_ratio_of_laplace(alpha):
    assert laplace_holds(alpha, alpha)
    assert not laplace_holds(alpha * (1 + 1e-12), alpha), "the test has no power"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_effective_alpha(mechanism):
    """From the integers alone, to 80 digits: never above alpha, hardly below, until 128 digits resolve no more."""
    for alpha in (2e-17, 1e-12, 4.3e-7, 1e-3, 0.1, 1.0, 20.0, 80.0, 1e3, 1e308):
        for c, rho in ((1.0, 2), (1.0, 10), (1.0, 18)):
            mechanism_object = OrdinalCLDP(alpha, c, rho, mechanism)
            coins, found = mechanism_object.coins, mechanism_object.effective_alpha
            with localcontext(Context(prec=80)):
                odds = [(Decimal(t) / (N - t)).ln() for t in coins.digits]
                steps = [abs(o - sum(odds[:i])) for i, o in enumerate(odds)]
                if coins.quotient:
                    steps.append(abs((Decimal(coins.quotient) / N).ln() - sum(odds)))
                exact = max(steps) * (2 if mechanism == "exponential" else 1)
                assert exact <= Decimal(found)
            assert found <= alpha
            if 4 * alpha < 256:
                assert found >= alpha * (1 - 1e-9)
    assert OrdinalCLDP(1e308, 1.0, 2).effective_alpha == pytest.approx(256 * math.log(2))


def test_tiny_alpha_is_uniform():
    for alpha in (5e-324, 1e-40):
        mechanism = OrdinalCLDP(alpha, 1.0, 2)
        assert set(mechanism.coins.digits) == {N // 2}
        assert mechanism.effective_alpha == 0
        assert np.array_equal(mechanism.pmf(-100), np.full(201, 1 / 201))


def test_the_whole_range_of_alpha_and_m_has_thresholds():
    """`coins_for` checks alpha itself, exactly; here, that it never has to refuse."""
    for m in (0, 1, 5, 10**10, 2**61, 2**62 - 1):
        for exponent in range(-160, 12):
            coins = coins_for(2.0**exponent * 1.37, m, "exponential")
            assert coins.quotient < N
            assert all(0 < t <= N // 2 for t in coins.digits)
            assert 2 * m < 2 ** len(coins.digits) or coins.quotient


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_table_holds_the_thresholds(mechanism):
    for alpha, m in ((4.3e-7, 10**10), (1.0, 5), (1e-15, 2**61)):
        coins = coins_for(alpha, m, mechanism)
        law = np.array([law_row(alpha, m, mechanism)], _native.LAWS["ordinal_cldp"])[0]
        lanes = [
            sum((int(w) >> lane & 1) << (DIGITS - 1 - i) for i, w in enumerate(law["thresholds"])) for lane in range(64)
        ]
        count = len(coins.digits)
        assert tuple(lanes[:count]) == coins.digits
        assert lanes[count] == 0
        assert int(law["sign"]) == 2**count
        assert sum(lanes[count + 1 :]) == coins.quotient
        assert law["wide"] == (int(law["sign"] | law["quotient"]) >= 2**32)


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.3, 2.0, 9.0])
def test_moments_are_those_of_the_law(alpha):
    m = 60
    y = np.arange(-m, m + 1)
    mechanism = OrdinalCLDP(alpha, 0.6, 2)
    assert mechanism.M == 60
    f = magnitudes(mechanism.coins, 2 * m)
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
    assert mechanism.event == MetricEvent(mechanism.effective_alpha, "linf", 20.0)
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
