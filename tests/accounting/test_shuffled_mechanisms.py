# SPDX-License-Identifier: Apache-2.0
"""Which bound of the shuffle model a mechanism may use: counts for two outcomes, clones for any pure eps, else none."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from ldpkernels import Hybrid, KOfD, Piecewise, PrivUnitG, TwoPoint
from ldpkernels.accounting import (
    Event,
    GaussianEvent,
    Mechanism,
    MetricEvent,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    clients_needed,
    composed_epsilon,
    shuffle_epsilon,
)
from ldpkernels.accounting.crowds import clone_pair

MANY_OUTCOMES = [
    Piecewise(1.0),
    Hybrid(1.0),
    KOfD(1.0, 21_840, norm=1.0, bound=21_840**-0.5),
    KOfD(3.0, 21_840, norm=1.0, bound=1.0),
    PrivUnitG(1.0, 21_840),
]

Law = Sequence[float]


def divergence(first: Law, second: Law, others: Sequence[Law], epsilon: float) -> float:
    """The hockey-stick divergence of what a shuffler leaves: how many reports there are of each outcome."""
    crowd: dict[tuple[int, ...], float] = {(0,) * len(first): 1.0}
    for law in others:
        crowd = joined(crowd, law)
    one, other = joined(crowd, first), joined(crowd, second)
    return sum(max(0.0, mass - math.exp(epsilon) * other.get(counts, 0.0)) for counts, mass in one.items())


def joined(crowd: dict[tuple[int, ...], float], law: Law) -> dict[tuple[int, ...], float]:
    out: dict[tuple[int, ...], float] = {}
    for counts, mass in crowd.items():
        for i, p in enumerate(law):
            more = (*counts[:i], counts[i] + 1, *counts[i + 1 :])
            out[more] = out.get(more, 0.0) + mass * p
    return out


def equal_crowd_divergence(first: Law, second: Law, crowd: Law, n: int, epsilon: float) -> float:
    """The same where n - 1 others all report by one law, for three outcomes.

    The density of the counts against n reports of the crowd's law is the mean of first/crowd over the reports.
    """
    from scipy.special import gammaln

    i, j = np.meshgrid(np.arange(n + 1.0), np.arange(n + 1.0))
    i, j = i[i + j <= n], j[i + j <= n]
    counts = (i, j, n - i - j)
    mass = np.exp(gammaln(n + 1) + sum(c * math.log(p) - gammaln(c + 1) for c, p in zip(counts, crowd, strict=True)))
    excess = sum(c * (a - math.exp(epsilon) * b) / p for c, a, b, p in zip(counts, first, second, crowd, strict=True))
    return float(np.sum(mass * np.maximum(excess, 0.0))) / n


@pytest.mark.parametrize("mechanism", MANY_OUTCOMES, ids=lambda m: type(m).__name__)
def test_many_outcomes_are_a_pure_event(mechanism: Mechanism) -> None:
    event = mechanism.event
    assert type(event) is PureEvent
    assert mechanism.effective_eps <= event.eps <= mechanism.eps  # type: ignore[attr-defined]
    result = shuffle_epsilon(mechanism, 1000)
    assert result == shuffle_epsilon(event.eps, 1000, method="stronger_clones")
    assert "pure local differential privacy" in str(result)
    with pytest.raises(ValueError, match="method = 'exact' counts reports with two outcomes"):
        shuffle_epsilon(mechanism, 1000, method="exact")
    assert clients_needed(0.5, mechanism)[0] > clients_needed(0.5, event.eps)[0]


def test_two_outcomes_are_counted() -> None:
    assert type(TwoPoint(1.0).event) is RandomizedResponseEvent
    eps = TwoPoint(1.0).effective_eps
    assert shuffle_epsilon(TwoPoint(1.0), 100) == shuffle_epsilon(eps, 100) == shuffle_epsilon(eps, 100, method="exact")


@pytest.mark.parametrize(
    "event", [GaussianEvent(1.0), MetricEvent(1.0, "linf", 1.0), SampledGaussianEvent(1.0, 0.1), ShuffledEvent(1.0, 9)]
)
def test_nothing_is_claimed_of_other_events(event: Event) -> None:
    with pytest.raises(ValueError, match="no bound is proved for shuffling"):
        shuffle_epsilon(event, 100)
    with pytest.raises(ValueError, match="no bound is proved for shuffling"):
        clients_needed(1.0, event)


def test_the_counts_would_have_been_wrong_for_piecewise() -> None:
    """At what the counts of randomized response claim, delta is at least 3.8e-5 and not 1e-5."""
    mechanism, n = Piecewise(3.0), 1000
    laws = [[float(p) for p in mechanism.law(w, 0.0, 1.0)] for w in (1.0, -1.0, 0.0)]
    # three sets of cells (merging outcomes can only lose evidence): likelier for 1, likelier for -1, the others
    merged = [
        [
            sum(p for p, a, b in zip(law, laws[0], laws[1], strict=True) if side == (a > 1.5 * b) - (b > 1.5 * a))
            for side in (1, -1, 0)
        ]
        for law in laws
    ]
    claimed = shuffle_epsilon(mechanism.effective_eps, n, method="exact").epsilon
    assert equal_crowd_divergence(*merged, n, claimed) > 3.5e-5
    assert equal_crowd_divergence(*merged, n, shuffle_epsilon(mechanism, n).epsilon) < 1e-5
    # the way of computing it, against the counts themselves
    p, q = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(1.0))
    small = divergence((p, q, 0), (q, p, 0), [(p, q, 0)] * 20, 0.3)
    assert equal_crowd_divergence((p, q, 0), (q, p, 0), (p, q, 1e-300), 21, 0.3) == pytest.approx(small)


def test_k_of_d_is_alone_where_its_coordinate_is_known() -> None:
    """A shuffler for every position hides a client only among those who report the same coordinate: mostly nobody."""
    mechanism, n = KOfD(1.0, 21_840, norm=1.0, bound=21_840**-0.5), 100
    assert mechanism.k == 1
    alone = (1 - mechanism.k / mechanism.dimension) ** (n - 1)
    p = 1 / (1 + math.exp(-mechanism.coordinate.effective_eps))
    claimed = shuffle_epsilon(mechanism.effective_eps, n, method="exact").epsilon
    assert alone * (p - math.exp(claimed) * (1 - p)) == pytest.approx(0.325, abs=5e-4)
    # where nobody knows it, whole reports hide as clones do: here all others hold one and the same vector
    honest = shuffle_epsilon(mechanism, n).epsilon
    for own in ((p / 2, (1 - p) / 2, (1 - p) / 2, p / 2), (p / 2, (1 - p) / 2, p / 2, (1 - p) / 2)):
        turned = [own[1], own[0], own[3], own[2]]
        crowd = (p / 2, (1 - p) / 2, p / 2, (1 - p) / 2)
        assert divergence(own, turned, [crowd] * 12, honest) <= clone_pair(13, 1.0, "stronger_clones").delta(honest)


def randomizers(eps0: float, outcomes: int, inputs: int, seed: int) -> list[list[float]]:
    """Laws of which no probability is more than e^eps0 times another's, and some are."""
    generator = np.random.default_rng(seed)
    base = generator.dirichlet(np.full(outcomes, 0.7))
    weights = np.exp(eps0 * (generator.random((inputs, outcomes)) < 0.5))
    if seed % 2:
        weights = np.exp(eps0 * generator.beta(0.3, 0.3, (inputs, outcomes)))
    laws = base * weights
    return (laws / laws.sum(1, keepdims=True)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["stronger_clones", "clones"])
def test_clones_bound_every_randomizer(method: str) -> None:
    """Small crowds in full: random randomizers, different inputs, both directions."""
    tightest = 0.0
    for seed, outcomes, n in itertools.product(range(60), (2, 3, 4), (2, 5)):
        laws = randomizers(0.2 + seed / 20, outcomes, n + 1, seed)
        eps0 = float(np.max(np.ptp(np.log(laws), axis=0)))
        pair = clone_pair(n, eps0, method)
        for first, second in ((laws[0], laws[1]), (laws[1], laws[0])):
            for epsilon in (0.0, eps0 / 5, eps0 / 2, eps0 * 0.9):
                exact, bound = divergence(first, second, laws[2:], epsilon), pair.delta(epsilon)
                assert exact <= bound + 1e-15, (seed, outcomes, n, epsilon)
                tightest = max(tightest, exact / bound if exact > 1e-9 else 0.0)
    assert 0.5 < tightest <= 1.0


def test_clones_bound_the_worst_decompositions() -> None:
    """The randomizers of the proof: evidence with probability `share`, and others who hide as little as they may.

    A share below 1 is where the original proof of the stronger clones fails.
    """
    for eps0, share, n in itertools.product((0.3, 1.0, 3.0), (0.0, 0.2, 0.5, 0.8, 0.95, 1.0), (2, 4, 8)):
        e = math.exp(eps0)
        t, s = share / (e + 1), 1 - share
        first, second = (e * t, t, s, 0.0), (t, e * t, s, 0.0)
        crowd = (t, t, s / e, 1 - 2 * t - s / e)
        pair = clone_pair(n, eps0, "stronger_clones")
        for epsilon in np.linspace(0, eps0, 7):
            exact = divergence(first, second, [crowd] * (n - 1), epsilon)
            assert exact <= pair.delta(float(epsilon)) + 1e-15
            if share == 1.0:
                assert exact == pytest.approx(pair.delta(float(epsilon)), rel=1e-6, abs=1e-15)


def test_a_shuffled_pure_event_composes_like_the_function() -> None:
    pure, counted = ShuffledEvent(1.0, 100, "pure"), ShuffledEvent(1.0, 100)
    assert composed_epsilon([(pure, 1)], 1e-5) == shuffle_epsilon(PureEvent(1.0), 100).epsilon
    assert composed_epsilon([(pure, 10)], 1e-5) == shuffle_epsilon(PureEvent(1.0), 100, rounds=10).epsilon
    assert composed_epsilon([(counted, 10)], 1e-5) < composed_epsilon([(pure, 10)], 1e-5)
    with pytest.raises(ValueError, match="reports = 'laplace' is unknown"):
        ShuffledEvent(1.0, 100, "laplace")
