# SPDX-License-Identifier: Apache-2.0
"""The shuffled view: published figures, brute force over small crowds, and that every shortcut errs upward."""

import itertools
import math

import numpy as np
import pytest

from ldpkernels.accounting import (
    RandomizedResponseEvent,
    ShuffledEvent,
    clients_needed,
    composed_epsilon,
    crowds,
    local_epsilon,
    shuffle,
    shuffle_epsilon,
)
from ldpkernels.accounting.crowds import CountPair, blocks, clone_pair, count_pair


def pair_of(eps0: float, own: tuple[float, float], others: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The laws of the count, where own and others are the probabilities of a one."""
    rest = np.ones(1)
    for p in others:
        rest = np.convolve(rest, [1 - p, p])
    return np.convolve(rest, [1 - own[0], own[0]]), np.convolve(rest, [1 - own[1], own[1]])


def divergence(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize(
    ("n", "eps0", "method", "published"),
    [
        (100, 1.0, "exact", 0.408),
        (100, 1.0, "stronger_clones", 0.444),
        (100, 1.0, "clones", 0.553),
        (1000, 1.0, "exact", 0.105),
        (1000, 4.0, "exact", 1.36),
    ],
)
def test_published_figures_of_one_position(n: int, eps0: float, method: str, published: float) -> None:
    # half a unit of the last published digit
    unit = 0.01 if published > 1 else 0.001
    assert shuffle_epsilon(eps0, n, method=method).epsilon == pytest.approx(published, abs=unit / 2)


def test_published_figures_of_compositions() -> None:
    renyi = shuffle_epsilon(1.0, 100, d=21840, rounds=10, composition="rdp").epsilon
    assert round(renyi) == 1429
    assert shuffle_epsilon(1.0, 100, d=21840, rounds=10).epsilon <= renyi
    # n above EXHAUSTIVE pays for its blocks: 1/400 of the clients
    assert shuffle_epsilon(1.0, 10_000, d=21840, rounds=10, composition="rdp").epsilon == pytest.approx(33.8, rel=4e-3)
    # the privacy loss distribution is sharper; the Gaussian limit, 31.92, is no bound and lies below
    assert 31.92 < shuffle_epsilon(1.0, 10_000, d=21840, rounds=10).epsilon < 32.2
    assert shuffle_epsilon(1.0, 100, rounds=10, composition="rdp").epsilon == pytest.approx(1.448, abs=1e-3)
    # 1.320 is the figure where all others agree; every mixture of the others' inputs costs 1.326
    assert shuffle_epsilon(1.0, 100, rounds=10, composition="pld").epsilon == pytest.approx(1.320, abs=8e-3)


def test_brute_force_over_all_inputs_of_a_small_crowd() -> None:
    for n, eps0, delta in ((2, 1.0, 1e-3), (5, 0.5, 1e-2), (7, 2.0, 1e-4), (9, 4.0, 1e-2)):
        p = 1 / (1 + math.exp(-eps0))
        epsilon = shuffle_epsilon(eps0, n, delta=delta).epsilon
        worst = 0.0
        for others in itertools.combinations_with_replacement((p, 1 - p), n - 1):
            for own in ((p, 1 - p), (1 - p, p)):
                worst = max(worst, divergence(*pair_of(eps0, own, list(others)), epsilon))
        assert worst <= delta * (1 + 1e-9)
        # and it is tight: a little less epsilon is not enough, unless the bound is eps0 itself
        if epsilon < eps0 * (1 - 1e-9):
            tight = max(
                divergence(*pair_of(eps0, (p, 1 - p), list(others)), epsilon * (1 - 1e-6))
                for others in itertools.combinations_with_replacement((p, 1 - p), n - 1)
            )
            assert tight > delta


def test_inputs_between_the_extremes_are_no_worse() -> None:
    generator = np.random.default_rng(1)
    p = 1 / (1 + math.exp(-1.0))
    epsilon = shuffle_epsilon(1.0, 12, delta=1e-3).epsilon
    for _ in range(300):
        draws = generator.uniform(1 - p, p, 13)
        assert divergence(*pair_of(1.0, (draws[0], draws[1]), list(draws[2:])), epsilon) <= 1e-3


@pytest.mark.parametrize("composition", ["pld", "rdp"])
def test_composition_covers_every_mixture_of_the_others(composition: str) -> None:
    n, eps0, positions, delta = 4, 1.0, 4, 1e-2
    p = 1 / (1 + math.exp(-eps0))
    epsilon = shuffle_epsilon(eps0, n, d=positions, delta=delta, composition=composition).epsilon
    pairs = []
    for m in range(n):
        for own in ((p, 1 - p), (1 - p, p)):
            pairs.append(pair_of(eps0, own, [1 - p] * m + [p] * (n - 1 - m)))
    worst = 0.0
    for chosen in itertools.combinations_with_replacement(pairs, positions):
        first, second = np.ones(1), np.ones(1)
        for one, other in chosen:
            first, second = np.outer(first, one).ravel(), np.outer(second, other).ravel()
        worst = max(worst, divergence(first, second, epsilon))
    assert 0 < worst <= delta


def test_the_curve_of_a_pair_against_plain_sums() -> None:
    for n, eps0, m in ((40, 1.0, 0), (40, 1.0, 39), (40, 1.0, 17), (300, 0.2, 100), (300, 5.0, 299)):
        p = 1 / (1 + math.exp(-eps0))
        first, second = pair_of(eps0, (p, 1 - p), [1 - p] * m + [p] * (n - 1 - m))
        pair = count_pair(n, eps0, m)
        grid = np.linspace(0, eps0, 23)
        plain = np.array([divergence(first, second, e) for e in grid])
        ours = pair.deltas(grid)
        assert np.all(ours >= plain - 1e-16)
        assert np.all(ours <= plain * (1 + 1e-8) + 1e-14)
        held = first > 1e-30
        ratio = first[held] / second[held]
        moments = np.array([math.log(np.sum(first[held] * ratio**x)) for x in (0.01, 1.0, 5.0)])
        assert pair.log_moments([0.01, 1.0, 5.0]) == pytest.approx(moments, rel=1e-6)


def test_moments_of_high_orders_cover_what_is_cut_off() -> None:
    """Beyond e^700 what lies outside the window weighs more than a double holds, and bounds nothing."""
    pair = count_pair(4000, 2.0, 0)
    for excess in (10.0, 300.0, 349.0, 351.0, 1e4):
        # the worst loss itself, times its probability, is part of the moment
        assert pair.log_moments([excess])[0] >= excess * 2.0 + 3999 * math.log(1 / (1 + math.exp(2.0)))
        assert pair.log_moments([excess])[0] >= 0
    assert pair.log_moments([351.0])[0] == math.inf


def test_a_block_bounds_each_of_its_members() -> None:
    n, eps0 = 60, 1.5
    grid = np.linspace(0, eps0, 30)
    members = [count_pair(n, eps0, m).deltas(grid) for m in range(n)]
    covered = set()
    for start, width in blocks(n, 9):
        bound = count_pair(n - width, eps0, start).deltas(grid)
        for m in range(start, start + width + 1):
            assert np.all(members[m] <= bound + 1e-15)
            covered.add(m)
    assert covered == set(range(n))


def test_blocks_and_fft_agree_with_the_exhaustive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    exhaustive = shuffle_epsilon(1.0, 600).epsilon
    monkeypatch.setattr(shuffle, "EXHAUSTIVE", 10)
    monkeypatch.setattr(crowds, "DIRECT", 0)
    searched = shuffle_epsilon(1.0, 600).epsilon
    assert exhaustive * (1 - 1e-9) <= searched <= exhaustive * (1 + 2 * shuffle.TOLERANCE)


def test_clones_are_above_the_counts_and_in_order() -> None:
    for eps0, n in ((0.5, 50), (1.0, 2000), (3.0, 400)):
        exact, stronger, clones = (
            shuffle_epsilon(eps0, n, method=m).epsilon for m in ("exact", "stronger_clones", "clones")
        )
        assert exact <= stronger <= clones <= eps0
    fine, coarse = (clone_pair(3000, 1.0, "stronger_clones", buckets=b).delta(0.05) for b in (10**6, 64))
    assert fine <= coarse <= fine * 1.5


def test_more_clients_hide_better_and_composition_costs() -> None:
    figures = [shuffle_epsilon(1.0, n).epsilon for n in (2, 10, 100, 1000, 1001, 5000)]
    assert figures[0] <= 1.0
    # the step from exhaustive to blocks may cost the tolerance
    assert all(b <= a * (1 + shuffle.TOLERANCE) for a, b in itertools.pairwise(figures))
    rounds = [shuffle_epsilon(1.0, 200, rounds=r).epsilon for r in (1, 2, 10, 100)]
    assert rounds == sorted(rounds)
    assert rounds[1] <= 2 * rounds[0] * 1.2


def test_the_bounds_never_pass_the_local_ones() -> None:
    for eps0, n, d in ((8.0, 2, 2), (10.0, 50, 3), (40.0, 100, 5), (1.0, 1, 4)):
        assert shuffle_epsilon(eps0, n, d=d).epsilon <= d * eps0
    assert shuffle_epsilon(1.0, 1).epsilon == 1.0


def test_small_delta_falls_back_to_moments() -> None:
    epsilon = shuffle_epsilon(1.0, 500, d=1000, delta=1e-12).epsilon
    assert shuffle_epsilon(1.0, 500, d=1000, delta=1e-9).epsilon < epsilon
    assert epsilon <= shuffle_epsilon(1.0, 500, d=1000, delta=1e-12, composition="rdp").epsilon < math.inf


def test_a_million_clients_cost_some_hundred_laws_of_their_likely_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def recorded(n: int, eps0: float, m: int) -> CountPair:
        pair = count_pair(n, eps0, m)
        sizes.append(len(pair.masses))
        return pair

    monkeypatch.setattr(shuffle, "count_pair", recorded)
    one = shuffle_epsilon(1.0, 10**6).epsilon
    many = shuffle_epsilon(1.0, 10**6, d=21840, rounds=10).epsilon
    # of the million that the inputs of the others could be, and of the million counts that each could give
    assert 0 < len(sizes) < 2_000
    assert max(sizes) < 20_000
    assert one == pytest.approx(0.002040, rel=2e-3)
    assert 1.9 < many < 2.0


def test_fewer_clients_than_are_needed_are_too_few() -> None:
    """How many a total of 8 takes is in docs/privacy.md, which a test compares."""
    clients, result = clients_needed(1.0, 1.0, d=10)
    assert result.epsilon <= 1.0
    assert shuffle_epsilon(1.0, int(clients * 0.97), d=10).epsilon > 1.0


def test_the_event_composes_like_the_function() -> None:
    through = composed_epsilon([(ShuffledEvent(1.0, 100), 10)], 1e-5)
    assert through == shuffle_epsilon(1.0, 100, rounds=10).epsilon
    assert through < local_epsilon(RandomizedResponseEvent(1.0), rounds=10).epsilon


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shuffle_epsilon(0.0, 10), "eps0 = 0.0"),
        (lambda: shuffle_epsilon(1.0, 0), "n = 0"),
        (lambda: shuffle_epsilon(1.0, 10, delta=0.0), r"delta = 0.0 is outside \(0, 1\)"),
        (lambda: shuffle_epsilon(1.0, 10, method="clone"), "method = 'clone' is unknown"),
        (lambda: shuffle_epsilon(1.0, 10, method="clones", composition="rdp"), "composition = 'rdp'"),
        (lambda: clients_needed(1e-4, 1.0, limit=1000), "more than limit = 1,000 clients"),
    ],
)
def test_bad_input_is_named(call, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
