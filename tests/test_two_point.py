# SPDX-License-Identifier: Apache-2.0
# The claim: eps, the integers that execute it, unbiasedness. Everything is compared as exact rationals.
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ldpkernels
from ldpkernels import TwoPoint
from tests.kernels import law_of
from tests.laws import RANGES, N, check_thresholds, executed, privacy_ratio, within_exp

DTYPES = ["float32", "float64", "bfloat16", "float16"]
OUTPUTS = ["report", "values"]


def array(values, dtype):
    import ml_dtypes

    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize(
    ("eps", "lowest", "half", "loss"),
    [
        (1e-6, 2147482575, 1073, 6.9e-10),
        (1e-3, 2146409907, 1073741, 6.8e-10),
        (0.1, 2040198855, 107284793, 2.8e-10),
        (1.0, 1155094610, 992389038, 8.0e-10),
        (4.0, 77250184, 2070233464, 5.7e-9),
        (10.0, 194983, 2147288665, 3.3e-6),
        (20.0, 9, 2147483639, 0.0165),
    ],
)
def test_published_table(eps, lowest, half, loss):
    mechanism = TwoPoint(eps)
    assert (mechanism.lowest_threshold, mechanism.half_range) == (lowest, half)
    assert eps - mechanism.effective_eps == pytest.approx(loss, rel=0.08)
    assert mechanism.scale == N / 2 / half


@pytest.mark.parametrize("eps", [22.19, 23.0, 100.0, 1e308])
def test_large_eps_saturates_safely(eps):
    mechanism = TwoPoint(eps)
    assert (mechanism.lowest_threshold, mechanism.half_range) == (1, 2**31 - 1)
    assert mechanism.effective_eps == pytest.approx(math.log(N - 1))
    assert mechanism.effective_eps < 22.181


@given(st.floats(-20.5, 4.0).map(math.exp) | st.floats(1e-9, 30.0))
@example(9.4e-10)
@example(math.log(3))
@example(22.18)
@settings(max_examples=300, deadline=None)
def test_effective_eps_is_what_is_executed_and_never_above(eps):
    mechanism = TwoPoint(eps)
    lowest = mechanism.lowest_threshold
    ratio = Fraction(N - lowest, lowest)
    assert within_exp(ratio, eps)
    assert mechanism.effective_eps <= eps
    assert within_exp(ratio, mechanism.effective_eps), "effective_eps understates what is executed"
    if lowest > 1:
        assert not within_exp(Fraction(N - lowest + 1, lowest - 1), eps), "a lower threshold would have done"


CASES = [
    *RANGES,
    (3.0, 0.5, 1e-6),
    (0.3, 0.7, 22.5),
    # Beside a number of the dtype, in a range narrower than a step of T: T would round to 0 or 2^32.
    *((c, r, 1.0) for c in (1e-38, -1e-38, 2.0**-57, 1 + 2.0**-45) for r in (0.0, 2.0**-96, 1e-25)),
]


def weights(c, r, dtype):
    """Numbers of the dtype at, between and around what matters."""
    special = [0.0, c, c - r, c + r, c - r / 2, c + r / 3, c - 2 * r, c + 2 * r, 1e-45, -1e-45, 6e-8, 65504.0, 3e38]
    x = array([*special, *np.linspace(c - 1.2 * r, c + 1.2 * r, 200), np.inf, -np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        return np.concatenate([x, np.nextafter(x, array(np.inf, dtype)), np.nextafter(x, array(-np.inf, dtype))])


def check_law(c, r, eps, dtype, output):
    law = law_of(c, r, eps, dtype, output)
    t_lo, t_hi = N // 2 + law.k_lo, N // 2 + law.k_hi
    assert within_exp(privacy_ratio(t_lo, t_hi), eps)
    center, radius = executed(c, r, dtype)
    assert law.lower <= center - radius, "an output lies within the range"
    assert law.upper >= center + radius
    x = weights(float(center), float(radius), dtype)
    thresholds = ldpkernels.two_point_threshold(x, c, r, eps, output=output)
    check_thresholds(x, thresholds, law, c, r, dtype)
    if output == "values":
        outputs = TwoPoint(eps).outputs(c, r, dtype)
        assert outputs == (law.lower, law.upper)
        assert tuple(float(v) for v in array(outputs, dtype)) == outputs, "an output is not a number of the dtype"
        executed_eps = TwoPoint(eps).executed_eps(c, r, dtype)
        assert executed_eps <= TwoPoint(eps).effective_eps <= eps
        assert within_exp(privacy_ratio(t_lo, t_hi), executed_eps), "executed_eps understates what is executed"


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("c", "r", "eps"), CASES)
def test_law(c, r, eps, dtype, output):
    in_fp16 = {6e4: 5.0, 3.0: 0.02}  # the outputs' own overflow has its own test
    check_law(c, in_fp16.get(c, r) if dtype == "float16" else r, eps, dtype, output)


@given(
    c=st.floats(-100, 100) | st.floats(-1e30, 1e30),
    r=st.floats(-70, 12).map(math.exp) | st.floats(0, 1e30),
    eps=st.floats(-20.7, 3.4).map(math.exp),
    dtype=st.sampled_from(DTYPES),
    output=st.sampled_from(OUTPUTS),
)
@settings(max_examples=500, deadline=None)
def test_law_anywhere(c, r, eps, dtype, output):
    try:
        law_of(c, r, eps, dtype, output)
    except OverflowError:
        center, radius = executed(c, r, dtype)
        reach = radius * Fraction(N // 2, TwoPoint(eps).half_range)
        largest = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.797e308}[dtype]
        assert abs(center) + reach > Fraction(largest if output == "values" else 1.7e38), "refused without a reason"
    else:
        check_law(c, r, eps, dtype, output)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [0.3, 4.0])
def test_ranges_about_a_power_of_two(eps, dtype):
    """Numbers are spaced otherwise on each side of it, so that the outputs' middle may be no number to subtract."""
    for c in (1.0, -2.0, 0.5, 1.0 - 2.0**-8):
        for r in 10.0 ** np.linspace(-6.5, -1, 23):
            check_law(c, float(r), eps, dtype, "values")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_ends_of_the_range_have_the_last_thresholds(dtype):
    for r in np.exp(np.random.default_rng(0).uniform(-60, 60, 300)).astype(dtype):
        for eps in (0.01, 1.0, 9.0):
            found = ldpkernels.two_point_threshold(np.array([-r, 0, r], dtype), 0.0, float(r), eps)
            assert found.tolist() == [TwoPoint(eps).lowest_threshold, N // 2, N - TwoPoint(eps).lowest_threshold]


def test_a_zero_radius_has_one_threshold():
    for dtype in DTYPES:
        x = array([-5, 0.1, 7, np.inf, -np.inf, np.nan], dtype)
        assert set(ldpkernels.two_point_threshold(x, 0.1, 0.0, 1.0)) == {2**31}
        both = ldpkernels.two_point_threshold(x, 0.1, 0.0, 1.0, output="values")
        assert len(set(both)) == 1
        law = law_of(0.1, 0.0, 1.0, dtype, "values")
        mean = law.lower + (law.upper - law.lower) * Fraction(int(both[0]), N)
        assert abs(mean - executed(0.1, 0.0, dtype)[0]) <= (law.upper - law.lower) / N


def test_a_tiny_radius_is_promoted():
    same = [ldpkernels.two_point_threshold(np.float32([1e-30, -2e-29, 0]), 0.0, r, 1.0) for r in (1e-300, 2.0**-96)]
    assert np.array_equal(*same)
    assert len(set(same[0])) == 3


@pytest.mark.parametrize("eps", [0, -1.0, math.nan, math.inf, -math.inf, 9e-10, 1e-300])
def test_bad_eps(eps):
    with pytest.raises(ValueError, match="eps="):
        TwoPoint(eps)


@pytest.mark.parametrize(
    ("c", "r", "error", "match"),
    [
        (math.nan, 1.0, ValueError, "C=nan must be finite"),
        (-math.inf, 1.0, ValueError, "C=-inf must be finite"),
        (0.0, math.nan, ValueError, "R=nan"),
        (0.0, math.inf, ValueError, "R=inf"),
        (0.0, -1e-9, ValueError, "at least 0"),
        (1e39, 1.0, OverflowError, "exceeds float32"),
        (3e38, 1e38, OverflowError, "exceeds float32"),
        (0.0, 2e38, OverflowError, "overflow float32"),
    ],
)
def test_bad_ranges(c, r, error, match):
    x = np.zeros(3, np.float32)
    for call in (ldpkernels.perturb_, ldpkernels.report, ldpkernels.two_point_threshold):
        with pytest.raises(error, match=match):
            call(x, c, r, 1.0)
    assert not x.any()


def test_fp16_overflow_is_refused_and_its_edge_is_not():
    x = np.zeros(100, np.float16)
    with pytest.raises(OverflowError, match="overflow float16"):
        ldpkernels.perturb_(x, 0.0, 40000.0, 1.0)
    with pytest.raises(OverflowError, match="overflow float16"):
        ldpkernels.perturb_(x, 65500.0, 3.0, 1.0)
    assert not x.any()
    assert np.isfinite(ldpkernels.perturb_(x, 0.0, 30000.0, 1.0)).all()
    assert ldpkernels.report(x, 0.0, 40000.0, 1.0).nbytes == 13  # a report decodes in a wider format


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_outputs_at_the_top_of_the_format(dtype):
    """Where the upper output is the largest number, and the lower one's binade has finer spacing."""
    step, top = {"bfloat16": 2.0**120, "float32": 2.0**104}[dtype], 2.0**127
    for c in (top, top - step / 2, top - step, -top + step / 2):
        for gap in (2, 3, 4, 5):
            check_law(c, (top - gap * step) + (top - abs(c)), 30.0, dtype, "values")


@pytest.mark.parametrize("x", [0.7, -0.2, 1.0, 5.0, np.linspace(-2, 2, 9)])
@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_variance_and_bias_against_enumeration(x, dtype):
    """The two outputs weighted by the executed thresholds are the whole law, so this is no estimate."""
    c, r, eps = 0.25, 0.5, 1.5
    mechanism = TwoPoint(eps)
    # fp64 weights with the law of each dtype's outputs: enumeration without a rounding of x
    law = law_of(c, r, eps, dtype or "float64", "values" if dtype else "report")
    lower, upper = float(law.lower), float(law.upper)
    clipped = np.clip(x, c - r, c + r)
    p = np.clip(np.rint((clipped - lower) / (upper - lower) * N), N // 2 + law.k_lo, N // 2 + law.k_hi) / N
    mean = lower + (upper - lower) * p
    variance = (upper - mean) ** 2 * p + (lower - mean) ** 2 * (1 - p)
    assert mechanism.bias(x, c, r) == pytest.approx(mean - x, abs=1e-8)
    assert mechanism.variance(x, c, r, dtype) == pytest.approx(variance, rel=1e-7)
    assert mechanism.outputs(c, r, dtype) == (lower, upper)


def test_variance_takes_tensors_and_is_the_papers_at_the_center():
    torch = pytest.importorskip("torch")
    mechanism = TwoPoint(0.8)
    w = torch.tensor([0.1, 0.6, 4.0], dtype=torch.float64)
    expected = (0.5 * mechanism.scale) ** 2 - (w.clip(-0.4, 0.6) - 0.1) ** 2
    assert torch.allclose(mechanism.variance(w, 0.1, 0.5), expected)
    assert torch.allclose(mechanism.bias(w, 0.1, 0.5), w.clip(-0.4, 0.6) - w)


def test_unsupported_dtype_and_output():
    with pytest.raises(TypeError, match="int8 is not supported"):
        TwoPoint(1.0).outputs(0.0, 1.0, "int8")
    with pytest.raises(ValueError, match="output='both'"):
        ldpkernels.two_point_threshold(np.zeros(1), 0.0, 1.0, 1.0, output="both")
    with pytest.raises(TypeError, match="pass one tensor"):
        ldpkernels.two_point_threshold([np.zeros(1)], 0.0, 1.0, 1.0)
