# SPDX-License-Identifier: Apache-2.0
"""alpha-CLDP: what alpha means, and that every schedule spends it exactly; the papers' numbers and the verdicts."""

import json
import math
from fractions import Fraction

import pytest

from ldpkernels.accounting import (
    LOCAL,
    Claim,
    PrivacyResult,
    cldp,
    han_xue_eq18,
    ldp_fed_claim,
    ldp_fl_claim,
    rounds_per_layer,
    schedule,
)
from ldpkernels.accounting.metric import worst_case_epsilon

# conv1, bn1, conv2, bn2, fc: the network of 29,034 parameters
SIZES = [416, 32, 12832, 64, 15690]


def test_the_resolved_rounds_of_the_paper_s_table() -> None:
    assert sum(SIZES) == 29034
    # published from the output layer backwards
    assert rounds_per_layer(SIZES, 80)[::-1] == [42, 1, 35, 1, 1]
    assert rounds_per_layer(SIZES, 80 // 5)[::-1] == [7, 1, 6, 1, 1]
    assert rounds_per_layer(SIZES, 80 // 16)[::-1] == [1, 1, 1, 1, 1]
    with pytest.raises(ValueError, match="rounds = 4 in a cycle are too few for 5 layers"):
        rounds_per_layer(SIZES, 4)


def test_rounds_add_up_whatever_the_layers() -> None:
    for sizes in ([1], [5, 5, 5], [1, 1, 1000], [3, 7, 11, 13], [10**6, 1, 1, 1, 1, 10**6]):
        for rounds in range(len(sizes), len(sizes) + 60):
            split = rounds_per_layer(sizes, rounds)
            assert sum(split) == rounds
            assert min(split) >= 1
    # ties go to the layer nearer the output
    assert rounds_per_layer([5, 5], 3) == [1, 2]


@pytest.mark.parametrize("cycles", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("metric", ["linf", "l1"])
@pytest.mark.parametrize("alpha", [1.0, 0.1, Fraction(1, 3)])
def test_a_schedule_spends_alpha_exactly(cycles: int, metric: str, alpha: float | Fraction) -> None:
    plan = schedule(alpha, SIZES, 80, cycles=cycles, metric=metric)
    assert len(plan) == 80
    assert sum(entry.alpha for entry in plan) == Fraction(alpha)
    assert {entry.layer for entry in plan if entry.cycle == cycles - 1} == set(range(5))
    for entry in plan:
        assert entry.alpha_parameter * (entry.size if metric == "linf" else 1) == entry.alpha
    for cycle in range(cycles):
        layers = [entry.layer for entry in plan if entry.cycle == cycle]
        assert layers == sorted(layers, reverse=True)
        # each cycle gets the same budget, each layer its share of it
        for layer, size in enumerate(SIZES):
            share = sum(e.alpha for e in plan if e.cycle == cycle and e.layer == layer)
            assert share == Fraction(alpha) / cycles * Fraction(size, sum(SIZES))


def test_cycles_that_do_not_divide_the_rounds() -> None:
    lengths = [sum(e.cycle == cycle for e in schedule(1.0, SIZES, 82, cycles=4)) for cycle in range(4)]
    assert lengths == [20, 21, 20, 21]
    with pytest.raises(ValueError, match="too few for 5 layers"):
        schedule(1.0, SIZES, 80, cycles=17)


def test_the_epsilon_that_alpha_implies() -> None:
    assert worst_case_epsilon(1.0, 1.0, 10) == 2e10
    assert worst_case_epsilon(1.0, 1.0, 10, metric="l1", size=100) == 2e12
    result = cldp(1.0, 1.0, 10)
    assert result.worst_case.epsilon == 2e10
    assert "alpha = 1 per unit of linf distance" in str(result)
    assert "20,000,000,000" in str(result)
    assert result.to_dict()["worst_case"]["epsilon"] == 2e10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cldp(-1.0, 1.0, 10), "alpha = -1.0"),
        (lambda: cldp(1.0, 0.0, 10), "c = 0.0"),
        (lambda: cldp(1.0, 1.0, -1), "rho = -1"),
        (lambda: cldp(1.0, 1.0, 1, metric="l2"), "metric = 'l2' is unknown: choose one of linf, l1"),
        (lambda: schedule(0.0, SIZES, 80), "alpha = 0.0 is not above 0"),
        (lambda: rounds_per_layer([], 4), "too few for 0 layers"),
        (lambda: rounds_per_layer([3, 0], 4), "layer size = 0"),
    ],
)
def test_bad_input_is_named(call, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


# Table 2 of Han and Xue: B = 256, N = 7,814, T = 1,000 for Adult; B = 128, N = 12,000, T = 10,000 for the other two
ADULT = (256 / 7814, 1000)
MNIST = (128 / 12000, 10000)
TABLE_2 = [
    *((*ADULT, sigma, eps) for sigma, eps in ((1.0, 7.0306), (1.5, 4.6870), (3.0, 2.3435), (5.0, 1.4061))),
    *((*MNIST, sigma, eps) for sigma, eps in ((1.0, 7.2385), (1.5, 4.8257), (3.0, 2.4128), (5.0, 1.4477))),
    # Fashion MNIST: the same parameters, and the same four figures
    *((*MNIST, sigma, eps) for sigma, eps in ((1.0, 7.2385), (1.5, 4.8257), (3.0, 2.4128), (5.0, 1.4477))),
]


def test_all_twelve_of_han_and_xue() -> None:
    claims = [(han_xue_eq18(q, sigma, steps, 1e-5), q, sigma, printed) for q, steps, sigma, printed in TABLE_2]
    assert len(claims) == 12
    for claim, q, sigma, printed in claims:
        # the table prints four decimals
        assert claim.claimed == pytest.approx(printed, abs=0.5e-4 + 1e-9)
        # 4 to 83 % above what a Poisson-sampled Gaussian costs
        assert 1.03 < claim.claimed / claim.honest.epsilon < 1.84
        assert any("epsilon < T q^2" in sentence for sentence in claim.violated)
        assert any("q < 1/(16 sigma)" in sentence for sentence in claim.violated) == (q >= 1 / (16 * sigma))
        assert [result.epsilon for result in claim.also] == [math.inf]
        assert "noisy loss values, and nothing else" in claim.honest.adversary


def test_the_limits_that_are_violated() -> None:
    adult, mnist = han_xue_eq18(ADULT[0], 3.0, ADULT[1], 1e-5), han_xue_eq18(MNIST[0], 3.0, MNIST[1], 1e-5)
    assert "T q^2 = 1.073" in adult.violated[0]
    assert "T q^2 = 1.138" in mnist.violated[0]
    assert "q < 1/(16 sigma)" in adult.violated[1]
    assert any("sigma >= 1" in sentence for sentence in han_xue_eq18(0.01, 0.5, 100, 1e-5).violated)


def test_ldp_fl_in_its_mnist_setting() -> None:
    claim = ldp_fl_claim(21840, 10, 100, 1.0)
    assert claim.claimed == 1.0
    assert any("218,400" in sentence for sentence in claim.violated)
    single = ldp_fl_claim(1, 1, 100, 1.0)
    assert single.honest.epsilon == pytest.approx(1.0, rel=1e-4)
    assert len(single.violated) == 1


def test_ldp_fed() -> None:
    claim = ldp_fed_claim(1.0)
    assert (claim.claimed, claim.honest.epsilon) == (1.0, 2e10)
    selected = ldp_fed_claim(20.0, 0.5, 0, rounds=1, q=0.18)
    assert selected.claimed == pytest.approx(3.6)
    assert selected.honest.epsilon == 20.0
    assert selected.also[0].epsilon == pytest.approx(18.3, abs=0.05)
    assert any("ln(1 + q" in sentence for sentence in selected.violated)


def test_claims_print_and_serialize() -> None:
    for claim in (ldp_fl_claim(10, 1, 5, 1.0), han_xue_eq18(0.01, 5.0, 100, 1e-5), ldp_fed_claim(1.0, q=0.18)):
        text = str(claim)
        assert "claims" in text
        assert "The honest figure: epsilon = " in text
        assert "Violated: " in text
        data = json.loads(json.dumps(claim.to_dict(), allow_nan=False))
        assert data["honest"]["adversary"] == claim.honest.adversary
    assert "No precondition is violated." in str(Claim("x", 1.0, PrivacyResult(1.0, 0.0, LOCAL)))
