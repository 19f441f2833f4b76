# SPDX-License-Identifier: Apache-2.0
# Shares of noise: the theorems' constants by convolution in 40 digits, the rounding's norm by enumeration, sums.
import itertools
import math

import mpmath
import numpy as np
import pytest

import ldpkernels
from ldpkernels import DistributedGaussian, DistributedSkellam
from ldpkernels.accounting import ConcentratedEvent, SkellamEvent, composed_epsilon
from ldpkernels.accounting.gaussian import rdp_of, skellam_rdp
from ldpkernels.laws.distributed import WRAP, executed_row, rounded_square
from ldpkernels.updates import decode, encode, rotate_
from tests.statistics import Z

KINDS = [DistributedGaussian, DistributedSkellam]
ROUND = ldpkernels.key(77)


def gaussian_law(stddev, reach):
    weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(stddev) ** 2)) for k in range(-reach, reach + 1)]
    total = mpmath.fsum(weights)
    return [w / total for w in weights]


def skellam_law(variance, reach):
    return [mpmath.exp(-variance) * mpmath.besseli(abs(k), variance) for k in range(-reach, reach + 1)]


def convolved(law, other):
    out = [mpmath.mpf(0)] * (len(law) + len(other) - 1)
    for i, p in enumerate(law):
        for j, q in enumerate(other):
            out[i + j] += p * q
    return out


def divergence(law, shift, order):
    """Renyi's of a law on the integers and the law shifted."""
    order = mpmath.mpf(order)
    terms = [law[i] ** order * law[i - shift] ** (1 - order) for i in range(shift, len(law))]
    return mpmath.log(mpmath.fsum(terms)) / (order - 1)


# The theorems


@pytest.mark.parametrize("stddev", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_tau_says(n, stddev):
    """log(P / Q) is within tau, by convolution; and tau is no idle bound: within 30 times at n = 2."""
    with mpmath.workdps(40):
        one = gaussian_law(stddev, 16)
        many = one
        for _ in range(n - 1):
            many = convolved(many, one)
        reach = (len(many) - 1) // 2
        wanted = gaussian_law(math.sqrt(n) * stddev, reach)
        middle = range(reach - 8, reach + 9)  # far from the ends of the lists
        off = max(abs(mpmath.log(many[i] / wanted[i])) for i in middle)
        tau = 10 * mpmath.fsum(mpmath.exp(-2 * (mpmath.pi * stddev) ** 2 * k / (k + 1)) for k in range(1, n))
        assert off <= tau
        if n == 2:
            assert tau < 30 * off
        if stddev >= 1:
            law = DistributedGaussian(1, 1.0, n, 5.0, stddev, 16, n)
            assert law.tau == pytest.approx(float(tau), rel=1e-9)
            assert law.tau >= tau


@pytest.mark.parametrize("stddev", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_concentrated_bound_of_a_sum_of_discrete_gaussians(n, stddev):
    """Every order by enumeration, for one weight and shifts 1 to 4: Delta / (sqrt(n) s) + tau."""
    with mpmath.workdps(40):
        one = gaussian_law(stddev, int(10 * stddev) + 42)  # a tilted law of order 10 lies 40 away
        many = one
        for _ in range(n - 1):
            many = convolved(many, one)
        tau = 10 * mpmath.fsum(mpmath.exp(-2 * (mpmath.pi * stddev) ** 2 * k / (k + 1)) for k in range(1, n))
        for shift, order in itertools.product((1, 2, 4), (1.1, 2, 5, 10)):
            rho = (shift / (mpmath.sqrt(n) * stddev) + tau) ** 2 / 2
            found = divergence(many, shift, order)
            assert found <= order * rho * (1 + mpmath.mpf(10) ** -12)
            if stddev >= 1 and order <= 5:
                assert found > 0.9 * order * (shift / (mpmath.sqrt(n) * stddev)) ** 2 / 2  # and it is near


@pytest.mark.parametrize("variance", [1.0, 4.0, 25.0])
def test_renyi_bound_of_skellam(variance):
    """The bound by enumeration, at whole orders and, rounded up, others; half is too low."""
    with mpmath.workdps(40):
        law = skellam_law(mpmath.mpf(variance), int(12 * math.sqrt(variance)) + 40)
        for shift, order in itertools.product((1, 2, 3), (1.2, 2, 2.5, 3, 8, 16)):
            event = SkellamEvent(variance, shift, shift)
            found = divergence(law, shift, order)
            assert found <= skellam_rdp(order, event)
            if order in (2, 3) and shift <= math.sqrt(variance) / 2:
                assert found > 0.5 * skellam_rdp(order, event)


def test_skellam_shares_add_up_exactly():
    with mpmath.workdps(40):
        share, whole = skellam_law(mpmath.mpf(2), 40), skellam_law(mpmath.mpf(6), 60)
        total = convolved(convolved(share, share), share)
        middle = len(total) // 2
        assert all(abs(total[middle + k] - whole[60 + k]) < mpmath.mpf(10) ** -30 for k in range(-20, 21))


@pytest.mark.parametrize("x", [(0.5, 0.5, 0.5), (1.3, 0.2, -0.7), (2.5, -2.5, 0.0), (0.01, 0.02, 0.03)])
@pytest.mark.parametrize("beta", [0.5, 0.1, 0.01])
def test_a_rounded_norm_passes_its_bound_as_rarely_as_it_says(x, beta):
    """All 2^3 roundings, with their probabilities."""
    c = math.sqrt(sum(v * v for v in x))
    bound, above = rounded_square(c, 3, beta), 0.0
    for up in itertools.product((0, 1), repeat=3):
        p = math.prod((v - math.floor(v)) if u else 1 - (v - math.floor(v)) for v, u in zip(x, up, strict=True))
        square = sum((math.floor(v) + u) ** 2 for v, u in zip(x, up, strict=True))
        above += p * (square > bound * (1 + 1e-12))
    assert above <= beta


@pytest.mark.parametrize("kind", KINDS)
def test_wrapping_is_as_rare_as_it_says(kind):
    """One weight and three clients at the largest integers: the law of the sum by convolution."""
    with mpmath.workdps(40):
        law = kind(1, 1.0, 3, 4.0, 2.0, 6, 3)
        share = gaussian_law(2.0, 40) if kind is DistributedGaussian else skellam_law(mpmath.mpf(4), 60)
        total = convolved(convolved(share, share), share)
        centre = len(total) // 2
        for c in (0, 4):  # integers of a client; the sum's range is [-32, 32)
            outside = sum(p for i, p in enumerate(total) if not -32 <= i - centre + 3 * c < 32)
            assert outside <= law.wrap_probability(3)
        assert kind(1, 1.0, 3, 4.0, 2.0, 12, 3).wrap_probability(3) < 1e-9


# Calibration


@pytest.mark.parametrize("kind", KINDS)
def test_calibration_is_never_above_its_target(kind):
    rng = np.random.default_rng(11)
    for _ in range(4):
        eps, delta, rounds = 10 ** rng.uniform(-0.5, 1.2), 10 ** rng.uniform(-8, -4), int(10 ** rng.uniform(0, 3))
        n, d = int(10 ** rng.uniform(1.5, 4)), int(10 ** rng.uniform(1, 6))
        law = kind.calibrated(eps, delta, dimension=d, clients=n, bits=26, rounds=rounds)
        assert law.epsilon(delta, rounds) <= eps
        assert law.wrap_probability(n) <= WRAP
        # an independent numeric: the divergences from the papers' formulas, converted in 40 digits
        assert converted(law, rounds, delta) <= eps * (1 + 2e-3)  # of fewer orders


def converted(law, rounds, delta):
    with mpmath.workdps(40):
        best = mpmath.inf
        l2 = mpmath.sqrt(law.square_bound)
        rate = 2 * (mpmath.pi * law.stddev) ** 2
        tau = 10 * sum(mpmath.exp(-rate * k / (k + 1)) for k in range(1, min(law.clients, 40)))
        for order in [1 + mpmath.mpf(10) ** (mpmath.mpf(i) / 20) for i in range(-60, 61)] + list(range(2, 200)):
            if isinstance(law, DistributedGaussian):
                value = order * (l2 / (mpmath.sqrt(law.clients) * law.stddev) + tau * mpmath.sqrt(law.padded)) ** 2 / 2
            else:
                mu, whole = law.clients * mpmath.mpf(law.stddev) ** 2, mpmath.ceil(order)
                l1 = min(mpmath.sqrt(law.padded) * l2, l2**2)
                value = whole * l2**2 / (2 * mu)
                value += min(((2 * whole - 1) * l2**2 + 6 * l1) / (4 * mu**2), 3 * l1 / (2 * mu))
            total = rounds * value + mpmath.log(1 - 1 / mpmath.mpf(order))
            best = min(best, total - (mpmath.log(delta) + mpmath.log(order)) / (order - 1))
        return float(best)


def test_a_concentrated_event_composes():
    event = ConcentratedEvent(0.5)
    assert rdp_of(event, (2.0, 3.0)) == [1.0, 1.5]
    assert 4 < composed_epsilon([(event, 1)], 1e-5) < 6


@pytest.mark.parametrize("kind", KINDS)
def test_dropouts_cost_privacy_and_are_refused(kind):
    law = kind.calibrated(4.0, 1e-5, dimension=50, clients=100, bits=20, invited=120)
    assert law.epsilon(1e-5) <= 4.0
    assert law.with_clients(50).epsilon(1e-5) > 5.0
    assert law.with_clients(120).epsilon(1e-5) < 4.0
    total = np.zeros(law.padded, np.uint32)
    for clients in (99, 121):
        with pytest.raises(ValueError, match="must be from 100 to 120"):
            decode(total, law, ROUND, clients=clients)


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_bits_are_refused(kind):
    with pytest.raises(ValueError, match="cannot hold the sum"):
        kind.calibrated(1.0, 1e-5, dimension=1000, clients=1000, bits=8)
    with pytest.raises(ValueError, match="stddev"):
        kind(10, 1.0, 10, 1.0, 0.1, 16, 10)


# Sums


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_has_the_mean_and_the_error_that_its_law_says(kind):
    """37 clients of 300 weights, some of whom are clipped: the error's sum of squares is near its expectation."""
    law = kind.calibrated(8.0, 1e-5, dimension=300, clients=37, norm=2.0, bits=20)
    rng = np.random.default_rng(2)
    updates = rng.standard_normal((37, 300)) * 0.1
    lengths = np.linalg.norm(updates, axis=1)
    updates[:5] *= 3.0
    clipped = updates * np.minimum(1, law.norm / np.linalg.norm(updates, axis=1))[:, None]
    assert (lengths < 2).all()
    total = np.zeros(law.padded, np.uint64)
    for i, update in enumerate(updates):
        sent = encode(update, law, ROUND, generator=ldpkernels.key(100 + i))
        assert sent.dtype == np.uint32
        assert sent.max() < 2**law.bits
        total += sent
    mean = decode(total, law, ROUND, clients=37)
    error = float(((mean - clipped.mean(0)) ** 2).sum())
    assert abs(error / law.mean_error(37) - 1) < Z * math.sqrt(2 / 300)


@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_sends_the_same_integers(kind):
    law = kind(100, 1.0, 10, 50.0, 3.0, 12, 10)
    update = {"a": np.linspace(-1, 1, 60, dtype=np.float32), "b": np.linspace(0, 1, 40)}
    sent = []
    for backend in (*ldpkernels._native.isas(), "reference"):
        with ldpkernels.backend(backend):
            sent.append(encode(update, law, ROUND, generator=ldpkernels.key(4)).tolist())
    assert all(one == sent[0] for one in sent)
    like = decode(np.array(sent[0]) * 10, law, ROUND, clients=10, like=update)
    assert like["a"].shape == (60,)
    assert like["b"].shape == (40,)


@pytest.mark.parametrize("size", [4, 128, 1 << 14])
def test_fp32_brings_two_long_sums_no_further_apart_than_is_counted(size):
    """As they are read and rotated: where a row is a millionth of a sum, the roundings are most of the distance."""
    rng, most = np.random.default_rng(size), 0.0
    for trial in range(20):
        row, rest = rng.standard_normal((2, size))
        row, rest = row / np.linalg.norm(row), rest * 1e6 / np.linalg.norm(rest)
        two = [rotate_(x.astype(np.float32), ldpkernels.key(trial)).astype(np.float64) for x in (rest + row, rest)]
        most = max(most, float(np.linalg.norm(two[0] - two[1])))
    assert 1.0005 < most <= executed_row(1.0, 1e6, size)


def test_rounding_is_unbiased_and_noise_is_on_top():
    """Many reports of one update, without the noise's share: its average is the rotated update."""
    law = DistributedSkellam(16, 1.0, 1, 3.3, 0.5, 16, 1)
    x = np.full(16, 0.2, np.float32)
    wanted = rotate_(np.array(x), ROUND) / law.unit
    sent = np.array([encode(x, law, ROUND, generator=ldpkernels.key(i)) for i in range(4000)]).astype(np.int64)
    signed = (sent + 2**15) % 2**16 - 2**15
    assert (np.abs(signed.mean(0) - wanted) < Z * math.sqrt((0.25 + 0.25) / 4000)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_an_update_that_is_no_number_is_sent_too(bad):
    law = DistributedGaussian(4, 1.0, 1, 1000.0, 1.0, 20, 1)
    sent = encode(np.array([bad, 0.0, 0.0, 0.0]), law, ROUND, generator=ldpkernels.key(1))
    mean = decode(sent, law, ROUND, clients=1)
    assert np.abs(mean - [0.0 if math.isnan(bad) else 1.0, 0, 0, 0]).max() < 0.02


def test_refusals():
    law = DistributedGaussian(4, 1.0, 1, 10.0, 1.0, 20, 1)
    with pytest.raises(ValueError, match="the update has 5 weights, and the law is of 4"):
        encode(np.zeros(5), law, ROUND)
    for total in (np.zeros(4), np.zeros(5, np.int64)):
        with pytest.raises(ValueError, match="pass 4 integers"):
            decode(total, law, ROUND, clients=1)
