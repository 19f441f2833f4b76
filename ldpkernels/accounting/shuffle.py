# SPDX-License-Identifier: Apache-2.0
"""The central view behind an ideal shuffler, per position of the model, composed over positions and rounds.

The shuffler hides which client sent which report of a position; what is left is how many there are of each. Three
bounds for one position, from the sharpest to the most general:

- exact: the two counts themselves, over the worst inputs of the others (reports with two outcomes only);
- stronger_clones: each other client is a clone with probability 2/(e^eps0 + 1);
- clones: with probability e^-eps0 (Feldman, McMillan and Talwar, 2021).

The clones bounds hold for the reports of any eps0-LDP mechanism that all clients share. Nothing is proved here for
mechanisms without an eps0, and nothing for clients whose mechanisms differ.
"""

from __future__ import annotations

import math

from ldpkernels.accounting import arguments
from ldpkernels.accounting.amplification import CROWD, Composition, Method, shuffled_epsilon
from ldpkernels.accounting.events import (
    Event,
    Mechanism,
    PureEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    event_of,
)
from ldpkernels.accounting.records import PrivacyResult
from ldpkernels.accounting.views import adversary_of

METHODS = ("exact", "stronger_clones", "clones")
COMPOSITIONS = ("best", "pld", "rdp")


def _report(source: float | Event | Mechanism, method: Method | None) -> tuple[float, Method]:
    """The eps of one report, and the sharpest method that is proved for it where none was chosen."""
    if not isinstance(source, Event | Mechanism):
        eps0, two_outcomes = arguments.positive("eps0", source), True
    else:
        event = event_of(source)
        if not isinstance(event, PureEvent):
            raise ValueError(f"eps0 = {event!r} is no pure eps, and nothing is proved here for shuffling such reports")
        eps0, two_outcomes = arguments.positive("eps0", event.eps), isinstance(event, RandomizedResponseEvent)
    if method is None:
        return eps0, "exact" if two_outcomes else "stronger_clones"
    arguments.choice("method", method, METHODS)
    if method == "exact" and not two_outcomes:
        raise ValueError(
            "method = 'exact' counts reports with two outcomes, and these have more: leave the method out, or use"
            " 'stronger_clones'"
        )
    return eps0, method


def shuffle_epsilon(
    eps0: float | Event | Mechanism,
    n: int,
    *,
    d: int = 1,
    rounds: int = 1,
    delta: float = 1e-5,
    method: Method | None = None,
    composition: Composition = "best",
) -> PrivacyResult:
    """Return the central guarantee of n clients whose reports are shuffled position by position.

    A mechanism of whole vectors has one position: its whole reports are shuffled. Its coordinates can't be shuffled as
    if every client had reported each of them.

    Args:
        eps0: A mechanism or its event; a number is the local eps of one report with two outcomes.
        n: Honest clients a round: subtract those who may collude with the adversary.
        d: Positions (weights) a round.
        rounds: Rounds in which the same client takes part.
        delta: The probability that the bound excludes, above 0.
        method: The bound of one position: "exact", "stronger_clones" or "clones". By default the sharpest that is
            proved: "exact" for two outcomes, "stronger_clones" for any other eps0-LDP report.
        composition: "pld", "rdp" or the better of the two; the clones bounds compose by "pld" only.

    >>> from ldpkernels.accounting import PureEvent
    >>> round(shuffle_epsilon(1.0, 100).epsilon, 3), round(shuffle_epsilon(PureEvent(1.0), 100).epsilon, 3)
    (0.408, 0.444)
    """
    eps, used = _report(eps0, method)
    n, d, rounds = arguments.count("n", n), arguments.count("d", d), arguments.count("rounds", rounds)
    positions = arguments.count("d * rounds", d * rounds)
    delta = arguments.excluded(delta)
    arguments.choice("composition", composition, COMPOSITIONS)
    if used != "exact" and composition == "rdp":
        raise ValueError(f"composition = 'rdp' is for method = 'exact', not {used!r}: leave it at 'best'")
    epsilon = shuffled_epsilon(eps, n, positions, delta, used, composition)
    adversary, neighbouring = adversary_of(ShuffledEvent(eps, n))
    kind = "randomized response" if used == "exact" else "pure local differential privacy"
    return PrivacyResult(
        epsilon,
        delta,
        adversary,
        neighbouring,
        (
            f"an ideal shuffler for every position: {n:,} reports a position and round, which can't be told apart"
            " nor linked to those of other positions",
            f"each report is {kind} of eps = {eps:.6g}, with public ranges",
            f"{positions:,} positions in all ({d:,} weights, {rounds:,} rounds)",
            f"none of the {n:,} clients colludes, and all of them report",
        ),
        {"exact": "the counts themselves", "stronger_clones": "stronger clones", "clones": "clones"}[used]
        + (f", composed ({composition})" if positions > 1 else ""),
    )


def clients_needed(
    target: float,
    eps0: float | Event | Mechanism,
    *,
    d: int = 1,
    rounds: int = 1,
    delta: float = 1e-5,
    limit: int = 10**9,
) -> tuple[int, PrivacyResult]:
    """Return a number of clients that is enough for a central epsilon of `target`, and the result at that number.

    The number is the smallest to within 2 %, never too small. Where even `limit` clients are too few, it raises.

    >>> n, result = clients_needed(0.408, 1.0)
    >>> 95 <= n <= 102 and result.epsilon <= 0.408
    True
    """
    target = arguments.positive("target", target)
    eps, method = _report(eps0, None)
    positions = arguments.count("d * rounds", arguments.count("d", d) * arguments.count("rounds", rounds))
    delta = arguments.excluded(delta)
    limit = min(arguments.count("limit", limit), CROWD)

    def enough(n: int) -> bool:
        # Renyi divergences are the sharper way for few clients only; leaving them out is safe anywhere
        composition: Composition = "best" if n < 5000 else "pld"
        return shuffled_epsilon(eps, n, positions, delta, method, composition, pieces=100) <= target

    low, high = 0, 2
    while not enough(high):
        low, high = high, high * 4
        if low > limit:
            raise ValueError(
                f"target = {target!r} needs more than limit = {limit:,} clients: raise the target, lower eps0, or"
                " send fewer weights in fewer rounds"
            )
    while high - low > max(1, high // 200):
        middle = math.isqrt(low * high) if low > 1 else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        if enough(middle):
            high = middle
        else:
            low = middle
    return high, shuffle_epsilon(eps0, high, d=d, rounds=rounds, delta=delta)
