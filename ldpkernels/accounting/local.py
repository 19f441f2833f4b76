# SPDX-License-Identifier: Apache-2.0
"""What is lost without a shuffler: by one client to those who see all its reports, and by members of secret samples."""

from __future__ import annotations

import math

from ldpkernels.accounting.composition import METHODS, composed
from ldpkernels.accounting.events import (
    Event,
    GaussianEvent,
    Mechanism,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    event_of,
)
from ldpkernels.accounting.neighbours import CENTRAL, LOCAL
from ldpkernels.accounting.records import PrivacyResult
from ldpkernels.common import arguments

WORDS = {
    "basic": "basic composition",
    "advanced": "advanced composition",
    "rdp": "Renyi composition",
    "exact": "exact composition of the privacy loss, rounded up",
    "everyone": "composition as if every step took everyone",
}


def _assumptions(event: Event, reports: int) -> tuple[str, ...]:
    fixed = (
        f"{reports:,} reports in all, and no other release",
        "the random bits are uniform, secret and never reused",
    )
    if isinstance(event, RandomizedResponseEvent):
        return (*fixed, f"each report is a randomized response of eps = {event.eps:.6g} with public ranges")
    if isinstance(event, PureEvent):
        return (*fixed, f"each report is {event.eps:.6g}-LDP")
    if isinstance(event, GaussianEvent):
        executed = f"executed within {event.slack:.3g} in total variation" if event.slack else "in exact arithmetic"
        return (
            *fixed,
            f"Gaussian noise of {event.noise_multiplier:.6g} times the L2 distance of neighbours, {executed}",
        )
    return (*fixed, f"each report is {event}")


def local_epsilon(
    source: Event | Mechanism, *, d: int = 1, rounds: int = 1, delta: float = 1e-5, method: str = "exact"
) -> PrivacyResult:
    """Return what a client loses that reports d weights in each of so many rounds, between any two values of its input.

    The adversary sees all reports. An event of another view, such as a law of sums, is accounted for in that view,
    which the result names. A Gaussian without a scope counts as local: its multiplier must be relative to the distance
    of any two inputs.

    Args:
        source: The event of one weight's report, or a mechanism that has it.
        d: Weights in a round.
        rounds: Rounds.
        delta: The probability that the bound excludes; with 0 only the basic figure exists.
        method: One of `METHODS`.

    >>> local_epsilon(RandomizedResponseEvent(1.0), d=100, delta=1e-5).epsilon  # doctest: +ELLIPSIS
    79.8...
    """
    event = event_of(source)
    reports = arguments.count("d * rounds", arguments.count("d", d) * arguments.count("rounds", rounds))
    if isinstance(event, ShuffledEvent):
        raise ValueError(f"{event!r} is central, not local: use shuffle_epsilon")
    epsilon, used, at = composed([(event, reports)], delta, method)
    words = WORDS[used] + (", the law of the loss being too large to compute" if used != method and delta else "")
    scope = (event.scope or LOCAL).composed
    return PrivacyResult(epsilon, at, scope, _assumptions(event, reports), words)


def local_table(
    source: Event | Mechanism, *, d: int = 1, rounds: int = 1, delta: float = 1e-5
) -> dict[str, PrivacyResult]:
    """Return the figures of `local_epsilon` by all methods that apply: any two inputs, against the server.

    >>> [f"{r.epsilon:,.0f}" for r in local_table(RandomizedResponseEvent(1.0), d=21840).values()]
    ['21,840', '10,802', '10,714', '10,648']
    """
    event = event_of(source)
    methods = METHODS if math.isfinite(event.pure_epsilon) else ("rdp", "exact")
    return {m: local_epsilon(event, d=d, rounds=rounds, delta=delta, method=m) for m in methods}


def subsampled_epsilon(eps: float, q: float) -> float:
    """Return ln(1 + q (e^eps - 1)), the true figure for an eps-DP step on a sample of rate q.

    It is close to q * eps for small eps only; for large eps it is about eps - ln(1/q). One member is added or removed,
    and the adversary sees the output but not the sample, as in `subsample_pure`.

    >>> [round(subsampled_epsilon(eps, 0.18), 3) for eps in (1.0, 20.0)]
    [0.269, 18.285]
    """
    eps, q = arguments.non_negative("eps", eps), arguments.probability("q", q)
    if q == 1:
        return eps
    if eps < 700:
        value = math.log1p(q * math.expm1(eps))
    else:
        # ln(e^a + e^b), of which e^b may be no number
        a, b = math.log1p(-q), math.log(q) + eps
        value = max(a, b) + math.log1p(math.exp(-abs(a - b)))
    return min(eps, value * (1 + 1e-15))


def subsample_pure(
    eps: float, q: float, *, rounds: int = 1, delta: float = 0.0, method: str = "basic"
) -> PrivacyResult:
    """Return the guarantee of eps-DP rounds on secret random samples, over rounds.

    One member is added or removed (or replaced, if samples have a fixed size). The adversary sees the outputs but not
    who was sampled.

    Args:
        eps: The epsilon of one round for those who are in it.
        q: The sampling rate.
        rounds: Rounds, each with a fresh sample.
        delta: 0 for the basic figure; above 0 for a sharper composition.
        method: "basic", "advanced", "rdp" or "exact".

    >>> print(subsample_pure(1.0, 0.18).epsilon)  # doctest: +ELLIPSIS
    0.2694...
    """
    one = subsampled_epsilon(eps, q)
    rounds = arguments.count("rounds", rounds)
    epsilon, used, at = composed([(PureEvent(one), rounds)], delta, method)
    return PrivacyResult(
        epsilon,
        at,
        CENTRAL,
        (
            f"each round draws a fresh sample at rate q = {q:.6g}, by a party who keeps it secret",
            f"a round is {eps:.6g}-DP for its sample under the same relation; the selector itself sees the unsampled"
            " reports",
            f"{rounds:,} rounds",
        ),
        f"ln(1 + q (e^eps - 1)) a round, {used} composition",
        "anyone who sees the outputs of the rounds, but not who was sampled",
        "one member, and nothing in its place (Poisson sampling), or another (samples of a fixed size)",
    )


def sampled_gaussian(
    noise_multiplier: float, q: float, steps: int, *, delta: float = 1e-5, method: str = "pld"
) -> PrivacyResult:
    """Return the guarantee of DP-SGD: Poisson-sampled, clipped gradients with Gaussian noise, over steps.

    One example is added or removed. The adversary sees every noisy gradient, but neither the batches nor the noise.

    Args:
        noise_multiplier: Standard deviation of the noise over the clipping norm.
        q: The Poisson sampling rate: batch size over the number of examples.
        steps: Steps.
        delta: The probability that the bound excludes, above 0.
        method: "pld" (the law of the privacy loss, rounded up) or "rdp".

    >>> print(round(sampled_gaussian(5.0, 128 / 12000, 10000).epsilon, 2))
    0.79
    """
    arguments.choice("method", method, ("pld", "rdp"))
    delta = arguments.excluded(delta)
    event = SampledGaussianEvent(noise_multiplier, q)
    steps = arguments.count("steps", steps)
    assert event.scope is not None
    epsilon, used, _ = composed([(event, steps)], delta, "exact" if method == "pld" else "rdp")
    words = {
        "exact": "the law of the privacy loss",
        "rdp": "Renyi divergences of dp-accounting",
    }
    return PrivacyResult(
        epsilon,
        delta,
        event.scope,
        (
            f"every example joins every batch independently with probability q = {q:.6g}; shuffled fixed batches are"
            " not this",
            f"each example's contribution is clipped, and the noise is {noise_multiplier:.6g} times the clipping norm",
            f"{steps:,} steps",
        ),
        words.get(used, WORDS[used]),
    )
