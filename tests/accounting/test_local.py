# SPDX-License-Identifier: Apache-2.0
"""The local view: the published table, an independent computation in high precision, and the trap of dp-accounting."""

import math

import pytest

from ldpkernels.accounting import (
    LOCAL,
    GaussianEvent,
    MetricEvent,
    PureEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    composed_epsilon,
    composition,
    local_epsilon,
    local_table,
)
from ldpkernels.accounting.gaussian import gaussian_epsilon
from ldpkernels.common.arrays import Floats

mpmath = pytest.importorskip("mpmath")

# d, rounds, eps, then basic, advanced, rdp, exact as published: whole numbers, so each is good to half a unit
TABLE = [
    (21840, 1, 1.0, 21840, 10802, 10714, 10648),
    (21840, 10, 1.0, 218400, 103169, 102906, 102690),
    (21840, 10, 0.1, 21840, 1315, 1312, 1289),
]


@pytest.mark.parametrize(("d", "rounds", "eps", "basic", "advanced", "rdp", "exact"), TABLE)
def test_the_table(d: int, rounds: int, eps: float, basic: int, advanced: int, rdp: int, exact: int) -> None:
    table = local_table(RandomizedResponseEvent(eps), d=d, rounds=rounds)
    assert [round(result.epsilon) for result in table.values()] == [basic, advanced, rdp, exact]
    assert table["basic"].delta == 0.0
    assert table["exact"].delta == 1e-5


def true_delta(k: int, eps: float, epsilon: float) -> float:
    """The hockey-stick divergence of k randomized responses, summed in 60 digits."""
    with mpmath.workdps(60):
        p = mpmath.exp(eps) / (1 + mpmath.exp(eps))
        total = mpmath.mpf(0)
        for x in range(k + 1):
            loss = mpmath.mpf(eps) * (2 * x - k)
            if loss > epsilon:
                total += mpmath.binomial(k, x) * p**x * (1 - p) ** (k - x) * (1 - mpmath.exp(epsilon - loss))
        return float(total)


@pytest.mark.parametrize(("k", "eps", "delta"), [(1, 1.0, 1e-5), (100, 1.0, 1e-5), (400, 0.05, 1e-9), (30, 6.0, 1e-3)])
def test_exact_is_above_the_truth_and_close(k: int, eps: float, delta: float) -> None:
    epsilon = local_epsilon(RandomizedResponseEvent(eps), d=k, delta=delta).epsilon
    assert true_delta(k, eps, epsilon) <= delta
    assert true_delta(k, eps, epsilon * (1 - 1e-7)) > delta


def test_the_methods_are_ordered_and_below_basic() -> None:
    for eps in (0.01, 0.5, 3.0, 12.0, 40.0):
        for k in (1, 7, 3000):
            figures = [r.epsilon for r in local_table(RandomizedResponseEvent(eps), d=k).values()]
            assert figures[3] <= min(figures) * (1 + 1e-12)
            assert max(figures) <= k * eps * (1 + 1e-15)


def test_more_of_everything_costs_more() -> None:
    def exact(eps: float, k: int, delta: float) -> float:
        return local_epsilon(RandomizedResponseEvent(eps), d=k, delta=delta).epsilon

    assert exact(0.1, 100, 1e-5) < exact(0.1, 101, 1e-5) < exact(0.11, 101, 1e-5) < exact(0.11, 101, 1e-6)


def test_a_hundred_responses_beside_dp_accounting() -> None:
    relation = pytest.importorskip("dp_accounting").NeighboringRelation.REPLACE_ONE
    pld = pytest.importorskip("dp_accounting.pld").privacy_loss_distribution
    law = pld.from_randomized_response(2 / (1 + math.e), 2, neighboring_relation=relation).self_compose(100)
    ours = local_epsilon(RandomizedResponseEvent(1.0), d=100).epsilon
    assert ours == pytest.approx(79.84, abs=0.005)
    # eps = 1 lies on its grid, so its own figure is exact; ours adds the bound on its rounding
    assert law.get_epsilon_for_delta(1e-5) <= ours <= law.get_epsilon_for_delta(1e-5) * (1 + 1e-8)


def test_218_400_reports_cost_some_thousand_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, atoms = [], composition.response_atoms

    def recorded(k: int, eps: float, outside: float) -> tuple[Floats, Floats, float]:
        found = atoms(k, eps, outside)
        sizes.append(len(found[0]))
        return found

    monkeypatch.setattr(composition, "response_atoms", recorded)
    local_epsilon(RandomizedResponseEvent(1.0), d=21840, rounds=10)
    assert 0 < sum(sizes) < 10_000  # of 218,401


def test_unequal_pure_events_compose_on_a_grid_from_above() -> None:
    even = composed_epsilon([(PureEvent(1.0), 200)], 1e-5)
    mixed = composed_epsilon([(PureEvent(1.0), 100), (PureEvent(1.0 - 1e-9), 100)], 1e-5)
    # two groups of nearly equal events: the grid may only add, and adds little
    assert even * (1 - 1e-6) <= mixed <= even * (1 + 1e-4)
    both = composed_epsilon([(PureEvent(1.0), 100), (PureEvent(0.5), 200)], 1e-5)
    assert composed_epsilon([(PureEvent(1.0), 100)], 1e-5) < both < composed_epsilon([(PureEvent(1.0), 300)], 1e-5)
    assert both < composed_epsilon([(PureEvent(1.0), 100), (PureEvent(0.5), 200)], 1e-5, "rdp")


def test_the_grid_is_above_brute_force_for_unequal_events() -> None:
    import itertools

    epsilons = (0.3, 0.3, 0.7, 0.7, 0.7, 1.1)
    epsilon = composed_epsilon([(PureEvent(0.3), 2), (PureEvent(0.7), 3), (PureEvent(1.1), 1)], 0.05)

    def delta(at: float) -> float:
        total = 0.0
        for signs in itertools.product((1, -1), repeat=len(epsilons)):
            loss = sum(s * e for s, e in zip(signs, epsilons, strict=True))
            mass = math.prod(1 / (1 + math.exp(-s * e)) for s, e in zip(signs, epsilons, strict=True))
            total += mass * max(0.0, -math.expm1(at - loss))
        return total

    assert delta(epsilon) <= 0.05
    assert delta(epsilon * 0.999) > 0.05


def test_gaussian_against_high_precision() -> None:
    for mu, delta in ((0.1, 1e-5), (1.0, 1e-5), (30.0, 1e-10)):
        epsilon = gaussian_epsilon(mu, delta)
        with mpmath.workdps(60):
            for scale, above in ((1, False), (1 - 1e-6, True)):
                e = mpmath.mpf(epsilon) * scale
                true = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
                assert (true > delta) is above
    assert local_epsilon(GaussianEvent(10.0), d=100).epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-12)


def test_gaussian_and_pure_mix() -> None:
    alone = composed_epsilon([(GaussianEvent(10.0, scope=LOCAL), 100)], 1e-5)
    mixed = composed_epsilon([(GaussianEvent(10.0, scope=LOCAL), 100), (PureEvent(0.01), 200)], 1e-5)
    renyi = composed_epsilon([(GaussianEvent(10.0, scope=LOCAL), 100), (PureEvent(0.01), 200)], 1e-5, "rdp")
    # 200 responses of 0.01 are nearly a Gaussian of mu = sqrt(200) * 0.01
    assert alone < mixed < renyi
    assert mixed == pytest.approx(gaussian_epsilon(math.hypot(1.0, math.sqrt(200) * 0.01), 1e-5), rel=2e-3)


def test_a_metric_event_counts_as_its_worst_case() -> None:
    assert composed_epsilon([(MetricEvent(0.5, "linf", 2.0), 3)], 0.0, "basic") == 3.0
    assert composed_epsilon([], 1e-5) == 0.0
    assert composed_epsilon([(PureEvent(0.0), 5)], 1e-5) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: local_epsilon(PureEvent(1.0), d=0), "d = 0 is not a whole number of 1 or more"),
        (lambda: local_epsilon(PureEvent(1.0), rounds=1.5), "rounds = 1.5"),  # type: ignore[arg-type]
        (lambda: local_epsilon(PureEvent(1.0), d=math.inf), "d = inf"),  # type: ignore[arg-type]
        (lambda: local_epsilon(PureEvent(1.0), d="many"), "d = 'many'"),  # type: ignore[arg-type]
        (lambda: local_epsilon(PureEvent(1.0), delta=1.0), r"delta = 1.0 is outside \[0, 1\)"),
        (lambda: local_epsilon(PureEvent(1.0), method="best"), "method = 'best' is unknown: choose one of basic"),
        (lambda: local_epsilon(GaussianEvent(1.0), method="advanced"), "'advanced' needs events"),
        (lambda: local_epsilon(ShuffledEvent(1.0, 10)), "central, not local"),
        (lambda: PureEvent(-1.0), "eps = -1.0"),
        (lambda: PureEvent(math.nan), "eps = nan"),
        (lambda: GaussianEvent(0.0), "noise_multiplier = 0.0"),
    ],
)
def test_bad_input_is_named(call, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
