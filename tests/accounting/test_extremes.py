# SPDX-License-Identifier: Apache-2.0
"""Whatever it is asked, the accountant answers in bounded time, or says which argument it can't take."""

import contextlib
import math
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ldpkernels import accounting
from ldpkernels.accounting import (
    Claim,
    CldpResult,
    Event,
    GaussianEvent,
    Ledger,
    MetricEvent,
    PrivacyResult,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    cldp,
    clients_needed,
    composed_epsilon,
    han_xue_eq18,
    ldp_fed_claim,
    ldp_fl_claim,
    local_epsilon,
    local_table,
    rounds_per_layer,
    sampled_gaussian,
    schedule,
    shuffle,
    shuffle_epsilon,
    subsample_pure,
    subsampled_epsilon,
)
from ldpkernels.audit import clopper_pearson
from ldpkernels.common.arrays import Floats

# Examples of each question; a longer run sets the variable.
EXAMPLES = int(os.environ.get("LDPKERNELS_FUZZ", "10"))
SECONDS = 60  # of a call; alone on a machine none was seen to take more than 8

METHODS = ("basic", "advanced", "rdp", "exact")


@contextlib.contextmanager
def within(seconds: int = SECONDS) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"no answer in {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_curve_ends_where_nothing_of_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, this one had 65,536 points, and a plan for so many clients took twelve seconds."""
    envelope, points = shuffle._envelope, []

    def counted(*setting: Any) -> Floats:
        points.append(len(curve := envelope(*setting)))
        return curve

    monkeypatch.setattr(shuffle, "_envelope", counted)
    assert 0.3 < shuffle_epsilon(PureEvent(9.0), 1_458_023_042, d=139, delta=2.6e-13).epsilon < 0.32
    assert points == [780]


def numbers(low: float = -300, high: float = 300) -> st.SearchStrategy[float]:
    """Of every size, the usual ones most often."""
    edges = st.sampled_from([5e-324, 1e-300, 1e-16, 1e-9, 1.0, 29.99, 30.0, 700.0, 1e16, 1.7976931348623157e308])
    return st.one_of(
        st.floats(-3, 2).map(lambda x: 10**x),
        st.floats(-3, 2).map(lambda x: 10**x),
        st.floats(low, high).map(_power),
        edges,
    )


def _power(exponent: float) -> float:
    return float(10**exponent)


COUNTS = st.one_of(
    st.floats(0, 4).map(lambda x: int(10**x)),
    st.floats(0, 18.9).map(lambda x: int(10**x)),
    st.sampled_from([1, 2, 1000, 1001, 10**7 + 1, 10**9, 10**18, 2**63 - 1, 2**63, 10**400, 10**5000]),
)
DELTAS = st.one_of(
    st.floats(-12, -1).map(_power),
    st.floats(-300, 0).map(_power),
    st.sampled_from([1e-300, 1e-310, 1 - 2.0**-53, 0.0, 1.0]),
)
RATES = st.one_of(st.floats(-4, 0).map(_power), st.floats(-300, 0).map(_power), st.sampled_from([1.0, 5e-324]))
EPS = numbers()
LOCAL = st.one_of(
    EPS.map(PureEvent), EPS.map(RandomizedResponseEvent), EPS.map(lambda z: GaussianEvent(z, scope=accounting.LOCAL))
)


def shuffled(draw: st.DrawFn) -> Event:
    return ShuffledEvent(draw(EPS), draw(COUNTS), draw(st.sampled_from(["pure", "randomized_response"])))


def metric(draw: st.DrawFn) -> Event:
    return MetricEvent(draw(EPS), draw(st.sampled_from(["linf", "l1"])), draw(EPS))


def sampled(draw: st.DrawFn) -> Event:
    return SampledGaussianEvent(draw(EPS), draw(RATES))


def ledger(draw: st.DrawFn) -> object:
    book = Ledger(None, epsilon=draw(EPS), delta=draw(DELTAS), method=draw(st.sampled_from(METHODS)))
    return book.rounds_left(draw(LOCAL), times=draw(COUNTS))


QUESTIONS: dict[str, Callable[[st.DrawFn], object]] = {
    "local_epsilon": lambda d: local_epsilon(
        d(LOCAL), d=d(COUNTS), rounds=d(COUNTS), delta=d(DELTAS), method=d(st.sampled_from(METHODS))
    ),
    "local_table": lambda d: tuple(local_table(d(LOCAL), d=d(COUNTS), delta=d(DELTAS)).values()),
    "composed_epsilon": lambda d: composed_epsilon(
        d(st.lists(st.tuples(LOCAL, COUNTS), max_size=4)), d(DELTAS), d(st.sampled_from(METHODS))
    ),
    "composed_epsilon, shuffled": lambda d: composed_epsilon(
        [(shuffled(d), d(COUNTS))], d(DELTAS), d(st.sampled_from(METHODS))
    ),
    "composed_epsilon, sampled": lambda d: composed_epsilon(
        [(sampled(d), d(COUNTS)), (sampled(d), d(COUNTS))], d(DELTAS), d(st.sampled_from(METHODS))
    ),
    "composed_epsilon, metric": lambda d: composed_epsilon(
        [(metric(d), d(COUNTS))], d(DELTAS), d(st.sampled_from(METHODS))
    ),
    "shuffle_epsilon": lambda d: shuffle_epsilon(
        d(st.one_of(EPS, EPS.map(PureEvent))),
        d(COUNTS),
        d=d(COUNTS),
        rounds=d(COUNTS),
        delta=d(DELTAS),
        method=d(st.sampled_from([None, None, "exact", "stronger_clones", "clones"])),
        composition=d(st.sampled_from(["best", "pld", "rdp"])),
    ),
    "shuffle_epsilon, one position": lambda d: shuffle_epsilon(
        d(st.one_of(EPS, EPS.map(PureEvent))), d(COUNTS), delta=d(DELTAS)
    ),
    "clients_needed": lambda d: clients_needed(
        d(EPS), d(st.one_of(EPS, EPS.map(PureEvent))), d=d(COUNTS), delta=d(DELTAS), limit=d(COUNTS)
    )[1],
    "subsample_pure": lambda d: subsample_pure(
        d(EPS), d(RATES), rounds=d(COUNTS), delta=d(DELTAS), method=d(st.sampled_from(METHODS))
    ),
    "subsampled_epsilon": lambda d: subsampled_epsilon(d(EPS), d(RATES)),
    "sampled_gaussian": lambda d: sampled_gaussian(
        d(EPS), d(RATES), d(COUNTS), delta=d(DELTAS), method=d(st.sampled_from(["pld", "rdp"]))
    ),
    "cldp": lambda d: cldp(d(EPS), d(EPS), d(COUNTS), metric=d(st.sampled_from(["linf", "l1"])), size=d(COUNTS)),
    "schedule": lambda d: schedule(d(EPS), d(st.lists(COUNTS, max_size=5)), d(COUNTS), cycles=d(COUNTS)),
    "rounds_per_layer": lambda d: rounds_per_layer(d(st.lists(COUNTS, max_size=5)), d(COUNTS)),
    "ldp_fl_claim": lambda d: ldp_fl_claim(d(COUNTS), d(COUNTS), d(COUNTS), d(EPS), delta=d(DELTAS)),
    "han_xue_eq18": lambda d: han_xue_eq18(d(RATES), d(EPS), d(COUNTS), d(DELTAS)),
    "ldp_fed_claim": lambda d: ldp_fed_claim(d(EPS), d(EPS), d(COUNTS), rounds=d(COUNTS), q=d(RATES), size=d(COUNTS)),
    "Ledger": ledger,
    "clopper_pearson": lambda d: clopper_pearson(d(COUNTS), d(COUNTS), d(RATES))[1],
}


def figures(answer: object) -> list[float]:
    if isinstance(answer, PrivacyResult):
        return [answer.epsilon]
    if isinstance(answer, Claim):
        return [answer.claimed, answer.honest.epsilon, *(result.epsilon for result in answer.also)]
    if isinstance(answer, CldpResult):
        return [answer.worst_case.epsilon]
    if isinstance(answer, tuple | list):
        return [figure for part in answer for figure in figures(part)]
    return [float(answer)] if isinstance(answer, int | float) else []


@pytest.mark.parametrize("question", QUESTIONS)
@seed(20)
@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_answer_or_an_argument_that_is_named(question: str, data: st.DataObject) -> None:
    refusal = ""
    with within():
        try:
            answer = QUESTIONS[question](data.draw)
        except ValueError as error:
            answer, refusal = None, str(error)
        assert str(answer)
    # "eps = 0.0 is ...", "method='exact' can't mix ..."
    assert not refusal or re.search(r"[A-Za-z*]+ ?= ?\S", refusal)
    assert all(figure >= 0 for figure in figures(answer)), answer


@pytest.mark.parametrize(
    "question",
    [
        lambda: local_epsilon(PureEvent(1.0), d=10**6, delta=1e-300),
        lambda: local_epsilon(PureEvent(1e-6), d=10**9, rounds=10**9),
        lambda: local_epsilon(GaussianEvent(1e6), d=10**18, delta=1e-300),
        lambda: composed_epsilon([(PureEvent(1e-9), 10**18), (PureEvent(1e-8), 10**18)], 1e-5),
        lambda: composed_epsilon([(PureEvent(1e-3 * (1 + i / 1000)), 10**4) for i in range(1000)], 1e-5),
        lambda: shuffle_epsilon(1.0, 10**9),
        lambda: shuffle_epsilon(1.0, 10**9, d=10**9, rounds=10**9),
        lambda: shuffle_epsilon(1.0, 10**9, d=21840, delta=1e-300),
        lambda: shuffle_epsilon(PureEvent(4.0), 10**18, rounds=10**18),
        lambda: clients_needed(1e-3, 1.0, d=21840, rounds=10, limit=10**18),
        lambda: sampled_gaussian(1.0, 0.01, 10**18),
        lambda: sampled_gaussian(1e-3, 1e-300, 10**18, delta=1e-300),
    ],
)
def test_what_took_forever_or_overflowed(question: Callable[[], object]) -> None:
    with within():
        answer = question()
        assert all(figure >= 0 for figure in figures(answer))


def test_large_numbers_of_reports_are_bounded_well() -> None:
    """Above what is composed exactly the figure is a weaker one, and by a few percent only."""
    for k, eps in ((10**12, 1e-6), (10**18, 1e-9), (10**14, 1e-7)):
        limit = math.sqrt(k) * eps  # the loss is nearly that of Gaussians so far apart
        result = local_epsilon(RandomizedResponseEvent(eps), d=k)
        gaussian = local_epsilon(GaussianEvent(1 / limit)).epsilon
        assert gaussian <= result.epsilon <= 1.1 * gaussian
        assert "too large to compute" in result.method
    assert "exact" in local_epsilon(RandomizedResponseEvent(1e-4), d=10**9).method


def test_huge_crowds_hide_nearly_as_the_counts_would() -> None:
    p, q = math.e / (1 + math.e), 1 / (1 + math.e)
    for n in (10**8, 10**10, 10**12):
        # the counts, and the clones, are nearly Gaussians so many standard deviations apart
        counts, clones = (p - q) / math.sqrt(n * p * q), (p - q) / math.sqrt(n * q / 2)
        lowest, highest = (local_epsilon(GaussianEvent(1 / mu), delta=1e-9).epsilon for mu in (counts, clones))
        assert lowest <= shuffle_epsilon(1.0, n, delta=1e-9).epsilon <= highest * 1.02
    assert shuffle_epsilon(1.0, 10**7 + 1).epsilon <= shuffle_epsilon(1.0, 10**7).epsilon
