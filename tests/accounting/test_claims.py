# SPDX-License-Identifier: Apache-2.0
"""The papers' numbers under their own names, and the verdicts on them."""

import json
import math

import pytest

from ldpkernels.accounting import LOCAL, Claim, PrivacyResult, han_xue_eq18, ldp_fed_claim, ldp_fl_claim

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
