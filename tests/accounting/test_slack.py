# SPDX-License-Identifier: Apache-2.0
"""What is executed is in the account: an event's eps, a law's own, and what an adversary sees of executed integers."""

import inspect
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import ldpkernels
from ldpkernels import (
    AdaptiveClipping,
    CentralGaussian,
    DistributedGaussian,
    DistributedSkellam,
    Hybrid,
    KOfD,
    OrdinalCLDP,
    Piecewise,
    PrivUnitG,
    ProjectedCode,
    TwoPoint,
    VectorGaussian,
)
from ldpkernels.accounting import (
    LOCAL,
    SHUFFLED,
    BudgetExceeded,
    GaussianEvent,
    Ledger,
    PureEvent,
    composed_epsilon,
    local_epsilon,
    shuffle_epsilon,
)
from ldpkernels.common.arrays import Floats
from ldpkernels.laws.noise_table import FINE, NoiseTable, skellam_table
from ldpkernels.laws.registry import KINDS
from ldpkernels.laws.sign import Sign
from ldpkernels.planning.plan import plan

DELTAS = (1e-3, 1e-5, 1e-9, 1e-15, 1e-24)
Attack = Callable[[float], float]  # from eps to a delta that the executed integers have at least


def magnitudes(table: NoiseTable) -> Floats:
    """The probabilities of a table's entries, from its integers."""
    edges = [0, *(int(high) << 64 | int(low) for high, low in zip(table.high, table.low, strict=True))]
    return np.array([float(b - a) for a, b in itertools.pairwise(edges)]) / 2.0**88


def noise(table: NoiseTable) -> Floats:
    """The law of a draw, from the least number on; of a wide table that of whole entries, either side of 0."""
    found = magnitudes(table)
    if table.shift:  # an entry's numbers are kept with exp(-x), x as the kernel compares it
        u = np.arange(0, 1 << table.shift, 16) + 7.5
        scale = 2.0 ** -(2 * math.log2(FINE) + 1 + 2 * table.shift)
        found = found * [np.exp(-u * (u + 2.0 * k * 2**table.shift) * scale).mean() for k in range(len(found))]
        return np.concatenate([found[::-1], found]) / found.sum() / 2
    return np.concatenate([found[:0:-1] / 2, found[:1], found[1:] / 2])


def shifted(one: Floats, shift: int, times: int = 1) -> Attack:
    """Whoever sees the sum of so many draws, moved or not, and asks whether it is beyond some number."""
    total = one
    for _ in range(times - 1):
        total = np.convolve(total, one)
    above = np.cumsum(total[::-1])[::-1]
    near, far = above[: len(above) - shift], above[shift:]
    beyond = float(above[max(0, len(above) - shift)]) if shift else 0.0  # where only the one that is moved can be
    return lambda eps: max(beyond, float(np.max(near - math.exp(min(eps, 700.0)) * far, initial=0.0)))


def outcome(p: Fraction | float, q: Fraction | float) -> Attack:
    """One output has probability p under one input, and q under another."""
    return lambda eps: float(p) * (1 - 1e-12) - math.exp(min(eps, 700.0)) * float(q)


def weightwise(law: Any) -> Attack:
    if law.reported == "bits":
        return outcome(1 - Fraction(law.lowest_threshold, 2**32), Fraction(law.lowest_threshold, 2**32))
    return outcome(
        *max(zip(law.law(1.0, 0.0, 1.0), law.law(-1.0, 0.0, 1.0), strict=True), key=lambda pq: pq[0] / pq[1])
    )


def code(law: ProjectedCode) -> Attack:
    p, others = Fraction(law.threshold, 2**64), 2 * law.projected - law.near
    return outcome(p / law.near, (1 - p) / others)


def vector_gaussian(law: VectorGaussian) -> Attack:
    return shifted(noise(law.table), math.floor(2 * law.norm / law.sigma * FINE))


def central_gaussian(law: CentralGaussian) -> Attack:
    return shifted(noise(law.grid.table), math.floor(law.norm / law.sigma * FINE))


def sums(law: Any) -> Attack:
    return shifted(noise(law.table), math.floor(law.grid_norm), law.clients)


LAWS: dict[type, tuple[Callable[[Any], Attack], list[Any]]] = {
    TwoPoint: (weightwise, [TwoPoint(eps) for eps in (1e-8, 1.0, 22.0, 60.0)]),
    Sign: (weightwise, [Sign(eps) for eps in (1e-8, 1.0, 22.0, 60.0)]),
    Piecewise: (weightwise, [Piecewise(eps) for eps in (0.01, 1.0, 20.0)]),
    Hybrid: (weightwise, [Hybrid(eps) for eps in (0.7, 1.0, 9.0)]),
    KOfD: (lambda law: weightwise(law.coordinate), [KOfD(eps, 50, 1.0, 0.3) for eps in (0.01, 2.0, 40.0)]),
    PrivUnitG: (
        lambda law: outcome(law.p, (1 - law.p) * law.q / (1 - law.q)),
        [PrivUnitG(eps, 50) for eps in (0.01, 2.0, 30.0)],
    ),
    ProjectedCode: (code, [ProjectedCode(eps, 50, bits=5) for eps in (0.01, 2.0, 30.0)]),
    OrdinalCLDP: (
        lambda law: outcome(law.pmf(law.M)[-1], law.pmf(-law.M)[-1]),
        [OrdinalCLDP(alpha, 1.0, 1, noise) for alpha in (1e-3, 0.5, 3.0) for noise in ("exponential", "laplace")],
    ),
    CentralGaussian: (central_gaussian, [CentralGaussian(sigma, 1) for sigma in (0.05, 0.2, 1.0, 4.0)]),
    VectorGaussian: (vector_gaussian, [VectorGaussian(sigma, 1) for sigma in (0.05, 0.2, 0.25, 0.35, 1.0, 4.0)]),
    DistributedGaussian: (
        sums,
        [
            DistributedGaussian(1, 1.0, n, c, s, 16, n)
            for n in (1, 3)
            for c, s in ((12.0, 1.0), (30.0, 1.0), (9.0, 8.0))
        ],
    ),
    DistributedSkellam: (
        sums,
        [DistributedSkellam(1, 1.0, n, c, s, 16, n) for n in (1, 3) for c, s in ((9.0, 0.5), (60.0, 1.0), (9.0, 8.0))],
    ),
    AdaptiveClipping: (
        lambda law: shifted(noise(skellam_table(law._share_variance)), 1, law.clients),
        [AdaptiveClipping(0.1, n, bit_stddev=spread) for n in (1, 3) for spread in (0.5, 4.0)],
    ),
}
CASES = [pytest.param(law, attack, id=repr(law)) for attack, laws in LAWS.values() for law in laws]


def test_every_public_law_with_an_event_is_here() -> None:
    public = [getattr(ldpkernels, name) for name in dir(ldpkernels)]
    assert {one for one in public if inspect.isclass(one) and hasattr(one, "event")} | {*KINDS} == {*LAWS}


@pytest.mark.parametrize(("law", "attack"), CASES)
def test_all_who_are_asked_say_what_no_attack_on_the_integers_passes(law: Any, attack: Callable[[Any], Attack]) -> None:
    least = attack(law)
    for delta in (0.0, *DELTAS):
        found = {local_epsilon(law, delta=delta).epsilon, composed_epsilon([(law, 1)], delta)}
        if delta and hasattr(law, "epsilon"):
            found.add(law.epsilon(delta))
        ledger = Ledger(None, epsilon=1e300, delta=delta)
        if math.inf in found:
            with pytest.raises(BudgetExceeded, match="to infinite"):
                ledger.spend(law)
        else:
            found.add(ledger.spend(law).epsilon)
        (epsilon,) = found
        assert epsilon == math.inf or least(epsilon) <= max(delta * (1 + 1e-9), 1e-12 * (delta == 0))
    assert local_epsilon(law, delta=0.0).epsilon >= max(
        getattr(law, name, 0.0) for name in ("effective_eps", "worst_case_eps")
    )


@pytest.mark.parametrize(
    ("sigma", "delta"), [(0.2, 1e-5), (0.25, 1e-6), (0.35, 1e-9), (1.0, 1e-24)], ids=lambda value: f"{value:g}"
)
def test_where_the_table_ends_before_delta_there_is_no_eps(sigma: float, delta: float) -> None:
    law = VectorGaussian(sigma, 1)
    assert vector_gaussian(law)(700.0) > delta  # whatever eps is
    assert local_epsilon(law, delta=delta).epsilon == math.inf
    without = GaussianEvent(law.noise_multiplier, scope=LOCAL)
    assert local_epsilon(without, delta=delta).epsilon < 100  # the power of this test: what was printed


def test_slack_adds_up_over_releases_and_is_paid_out_of_delta() -> None:
    slack, delta, times = 1e-10, 1e-5, 50
    event = PureEvent(0.1, slack=slack)
    assert event.pure_epsilon == math.inf
    for method in ("basic", "advanced", "rdp", "exact"):
        result = local_epsilon(event, d=times, delta=delta, method=method)
        paid = (1 + math.exp(result.epsilon)) * times * slack
        assert result.delta == delta > paid
        ideal = [composed_epsilon([(PureEvent(0.1), times)], left, method) for left in (delta, delta - 2 * paid)]
        assert ideal[0] <= result.epsilon <= ideal[1]
    assert composed_epsilon([(event, times)], 0.0) == math.inf
    assert composed_epsilon([(event, 10**6)], delta) == math.inf
    assert composed_epsilon([(PureEvent(0.0, slack=1e-6), 4)], delta) == 0.0
    assert composed_epsilon([(PureEvent(0.0, slack=1e-6), 6)], delta) == math.inf
    with pytest.raises(ValueError, match="slack = -1"):
        PureEvent(1.0, slack=-1.0)
    for wrong in (event, PureEvent(1.0, scope=SHUFFLED)):
        with pytest.raises(ValueError, match="no bound is proved for shuffling"):
            shuffle_epsilon(wrong, 100)


def test_a_plan_says_what_its_law_says() -> None:
    found = {one.name: one for one in plan(8.0, rounds=3, clients=100, weights=50, trust="local", norm=1.0)}
    law = VectorGaussian(found["gaussian"].parameter, 50, 1.0)
    assert found["gaussian"].epsilon == law.epsilon(1e-5, 3) == local_epsilon(law, rounds=3).epsilon
