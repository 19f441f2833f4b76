# SPDX-License-Identifier: Apache-2.0
# Adaptive clipping: the split of a budget in 40 digits, the bits' noise, the quantile that it finds.
import math

import mpmath
import numpy as np
import pytest

import ldpkernels
from ldpkernels import AdaptiveClipping
from ldpkernels.accounting import GaussianEvent, composed_epsilon
from tests.statistics import Z


@pytest.mark.parametrize("z", [0.1, 0.7, 1.0, 5.0])
@pytest.mark.parametrize("spread", [3.0, 5.0, 1e3])
def test_both_together_are_worth_z(z, spread):
    law = AdaptiveClipping(z, 100, bit_stddev=spread)
    with mpmath.workdps(40):
        both = 1 / mpmath.mpf(law.update_multiplier) ** 2 + 1 / mpmath.mpf(law.bit_multiplier) ** 2
        assert both <= 1 / mpmath.mpf(z) ** 2
        assert both > (1 - 1e-11) / mpmath.mpf(z) ** 2
    parts = [(GaussianEvent(law.update_multiplier), 3), (GaussianEvent(law.bit_multiplier), 3)]
    assert composed_epsilon(parts, 1e-5) <= composed_epsilon([(GaussianEvent(z), 3)], 1e-5) * (1 + 1e-9)


def test_it_finds_the_quantile():
    """Lengths with median 3: the norm goes there from far below, and stays within some percent."""
    rng = np.random.default_rng(5)
    for quantile in (0.5, 0.9):
        law, norm, late = AdaptiveClipping(1.0, 500, quantile=quantile), 0.01, []
        for step in range(200):
            lengths = 3 * np.exp(0.3 * rng.standard_normal(500))
            total = law.noised([law.bit(float(x), norm) for x in lengths], generator=ldpkernels.key(step))
            norm = law.next_norm(norm, total, 500)
            late.append(norm)
        wanted = 3 * math.exp(0.3 * {0.5: 0.0, 0.9: 1.2816}[quantile])
        assert abs(np.mean(late[100:]) / wanted - 1) < 0.1


def test_noise_of_either_trust_has_its_deviation():
    law, n = AdaptiveClipping(1.0, 100, bit_stddev=6.0), 3000
    central = np.array([law.noised([1, 1, -1], generator=ldpkernels.key(i)) for i in range(n)]) - 1.0
    shares = np.array([law.share(1.0, 2.0, generator=ldpkernels.key(i)) for i in range(n)]) - 1.0
    for drawn, deviation in ((central, 12.0), (shares, 1.2)):
        assert abs(drawn.mean()) < Z * deviation / math.sqrt(n)
        assert abs(drawn.var() / deviation**2 - 1) < Z * math.sqrt(2.8 / n)
        assert abs(drawn.var() / (1.2 * deviation) ** 2 - 1) > Z * math.sqrt(2.8 / n)  # power
    assert law.event.variance == pytest.approx(144.0)
    assert AdaptiveClipping(1.0, 100_000).noised([], generator=ldpkernels.key(0)) != 0


def test_bits_and_refusals():
    law = AdaptiveClipping(1.0, 100)
    assert [law.bit(x, 1.0) for x in (0.5, 1.0, 1.5, math.nan, math.inf)] == [1, 1, -1, -1, -1]
    assert law.fraction(0, 10) == 0.5
    assert law.next_norm(2.0, 0, 10) == 2.0
    assert law.next_norm(1.0, 10**9, 10) == law.next_norm(1.0, 10**6, 10)
    with pytest.raises(ValueError, match="bits are 1 or -1"):
        law.noised([0, 1])
    with pytest.raises(ValueError, match=r"pass more than 5\.0"):
        AdaptiveClipping(10.0, 100)
    for wrong in ({"noise_multiplier": 0.0}, {"quantile": 1.5}, {"rate": -1.0}, {"bit_stddev": 0.1}, {"clients": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AdaptiveClipping(**{"noise_multiplier": 0.1, "clients": 100, **wrong})
