# SPDX-License-Identifier: Apache-2.0
"""The local view: what one client loses to those who see all of its reports."""

from __future__ import annotations

import math

from ldpkernels.accounting import arguments
from ldpkernels.accounting.composition import METHODS, composed
from ldpkernels.accounting.events import (
    Event,
    GaussianEvent,
    Mechanism,
    PureEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    event_of,
)
from ldpkernels.accounting.records import PrivacyResult
from ldpkernels.accounting.views import adversary_of

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
        return (
            *fixed,
            f"Gaussian noise of {event.noise_multiplier:.6g} times the L2 distance of any two inputs, in exact"
            " arithmetic",
        )
    return (*fixed, f"each report is {event}")


def local_epsilon(
    source: Event | Mechanism, *, d: int = 1, rounds: int = 1, delta: float = 1e-5, method: str = "exact"
) -> PrivacyResult:
    """Return what a client loses that reports d weights in each of so many rounds.

    Args:
        source: The event of one weight's report, or a mechanism that yields it.
        d: Weights a round.
        rounds: Rounds.
        delta: The probability that the bound excludes; 0 leaves only the basic figure.
        method: One of `METHODS`.

    >>> local_epsilon(RandomizedResponseEvent(1.0), d=100, delta=1e-5).epsilon  # doctest: +ELLIPSIS
    79.8...
    """
    event = event_of(source)
    reports = arguments.count("d * rounds", arguments.count("d", d) * arguments.count("rounds", rounds))
    if isinstance(event, ShuffledEvent):
        raise ValueError(f"{event!r} is central, not local: use shuffle_epsilon")
    epsilon, used = composed([(event, reports)], delta, method)
    adversary, neighbouring = adversary_of(event)
    words = WORDS[used] + (", the law of the loss being too large to compute" if used != method and delta else "")
    return PrivacyResult(
        epsilon, 0.0 if used == "basic" else float(delta), adversary, neighbouring, _assumptions(event, reports), words
    )


def local_table(
    source: Event | Mechanism, *, d: int = 1, rounds: int = 1, delta: float = 1e-5
) -> dict[str, PrivacyResult]:
    """Return the figures of all methods that apply, by method.

    >>> [f"{r.epsilon:,.0f}" for r in local_table(RandomizedResponseEvent(1.0), d=21840).values()]
    ['21,840', '10,802', '10,714', '10,648']
    """
    event = event_of(source)
    methods = METHODS if math.isfinite(event.pure_epsilon) else ("rdp", "exact")
    return {m: local_epsilon(event, d=d, rounds=rounds, delta=delta, method=m) for m in methods}
