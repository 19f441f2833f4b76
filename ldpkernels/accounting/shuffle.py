# SPDX-License-Identifier: Apache-2.0
"""The central view behind an ideal shuffler, per position of the model, composed over positions and rounds.

The shuffler hides which client sent which report of a position; what is left is how many there are of each. Three
bounds for one position, from the sharpest to the most general:

- exact: the two counts themselves, over the worst inputs of the others (reports with two outcomes only);
- stronger_clones: each other client is a clone with probability 2/(e^eps0 + 1);
- clones: with probability e^-eps0 (Feldman, McMillan and Talwar, 2021).

The clones bounds hold for the reports of any eps0-LDP mechanism that all clients share. Nothing is proved here for
mechanisms without an eps0, and nothing for clients whose mechanisms differ.

The inputs of the others may differ from position to position and from round to round, so composition has to cover every
mixture of them. Two ways do, and the smaller figure counts: a privacy loss distribution under the upper envelope of
all the curves (sharp for many clients), and Renyi divergences, the largest at each order (sharp for few).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Literal, Protocol, get_args

import numpy as np

from ldpkernels.accounting.crowds import SHARES, CountPair, blocks, clone_pair, count_pair
from ldpkernels.accounting.events import (
    Event,
    Mechanism,
    PureEvent,
    RandomizedResponseEvent,
    event_of,
)
from ldpkernels.accounting.gaussian import to_epsilon
from ldpkernels.accounting.losses import LEAST_INFINITE, TooLarge, bisect_upper, from_symmetric_curve
from ldpkernels.accounting.neighbours import SHUFFLED, View
from ldpkernels.accounting.records import PrivacyResult
from ldpkernels.common import arguments
from ldpkernels.common.arrays import Floats

Method = Literal["exact", "stronger_clones", "clones"]
Composition = Literal["best", "pld", "rdp"]

# Up to so many clients every composition of the others is tried; above, blocks cost at most this share of epsilon.
EXHAUSTIVE = 1000
TOLERANCE = 1e-3
# Above these, three times as much: there all of them are nearly as bad as the worst, and hard to tell apart.
MANY = 10**6
PIECES = 400
# Where e^eps0 leaves floating point nothing is hidden any more; the bound of one position is then eps0 itself.
HOPELESS = 30.0
# A total that nobody needs sharper.
NEGLIGIBLE = 1e-9
# More clients hide no worse than fewer. Above these the counts, their Renyi divergences and the clones are computed for
# fewer than there are; the clones, which cost the same for any number, then bound the counts too.
COUNTED, RENYI_COUNTED, CROWD = 10**7, 10**5, 1 << 40
# Of more than FEW clients all blocks are alike, and a few say as much: they cost at most 1 % of the clients, and 2 % of
# more than MANY.
FEW, PIECES_OF_MANY = 10**5, 100
# A smaller delta drowns in what is cut off, and only Renyi divergences say something.
LEAST_DELTA = 1e-18
# Steps of a grid in the deviation of a position's loss. The composed law has the root of as many times more points, so
# above SEVERAL positions there are fewer, down to COARSE: their variance is then at most 1/400 too large.
FINE, COARSE, SEVERAL = 100, 10, 1 << 16
# Points of a curve at most; what the rest of it holds counts as lost.
POINTS = 1 << 16


class Pair(Protocol):
    """Two laws that an adversary tells apart."""

    def deltas(self, epsilons: Floats) -> Floats:
        """The divergence at each epsilon."""

    def delta(self, epsilon: float) -> float:
        """The divergence at one epsilon."""


def _exceeds(pair: Pair, delta: float, epsilon: float) -> bool:
    return not pair.delta(epsilon) <= delta


def _root(pair: Pair, delta: float, low: float, high: float) -> float:
    exceeds = partial(_exceeds, pair, delta)
    return bisect_upper(exceeds, low, high) if exceeds(low) else low


def _one_position(eps0: float, n: int, delta: float) -> float:
    """The epsilon of one position, over every m, to within TOLERANCE above (n > EXHAUSTIVE) or exactly."""
    # of the root, or of the loss's own size where the root is nearly 0
    tolerance = 0.0 if n <= EXHAUSTIVE else TOLERANCE if n <= MANY else 3 * TOLERANCE
    spread = math.tanh(eps0 / 2) * math.sqrt((2 + 2 * math.cosh(eps0)) / n)
    best = _root(count_pair(n, eps0, 0), delta, 0.0, eps0)
    stack = blocks(n, n if n <= EXHAUSTIVE else PIECES)
    while stack:
        start, width = stack.pop()
        pair = count_pair(n - width, eps0, start)
        bound = min(best + tolerance * max(best, spread), eps0)
        if pair.delta(bound) <= delta:
            continue
        if width:
            half = width // 2
            stack += [(start, half), (start + half + 1, width - half - 1)]
        else:
            best = _root(pair, delta, best, eps0)
    return min(best + tolerance * max(best, spread), eps0)


@lru_cache(maxsize=1)  # of as many as fit in 40 megabytes: both ways to compose ask for the same
def _few_blocks(eps0: float, n: int, pieces: int) -> tuple[CountPair, ...]:
    return tuple(count_pair(n - width, eps0, start) for start, width in blocks(n, min(pieces, n)))


def _blocks(eps0: float, n: int, pieces: int) -> Iterable[CountPair]:
    """Pairs that together bound every m."""
    if n <= FEW:
        return _few_blocks(eps0, n, pieces)
    few = PIECES_OF_MANY if n <= MANY else PIECES_OF_MANY // 2
    return (count_pair(n - width, eps0, start) for start, width in blocks(n, min(pieces, few)))


@lru_cache(maxsize=64)
def _envelope(eps0: float, n: int, method: Method, pieces: int, step: float, negligible: float) -> Floats:
    """The curve at 0, h, 2h, ... that dominates one position, until it is negligible or zero."""
    if method != "exact":
        pairs: list[Pair] = [clone_pair(n, eps0, method, buckets=64)]
        probe = pairs
    else:
        pairs = list(_blocks(eps0, n, pieces))
        probe = [pairs[0], pairs[-1]]
    # the curve's end is found on the extremes, then cut; what is left there becomes mass at infinity
    last = bisect_upper(lambda x: any(_exceeds(pair, negligible, x) for pair in probe), 0.0, eps0, 1e-3)
    grid = step * np.arange(min(math.ceil(eps0 / step) + 1, math.ceil(last / step) + 2, POINTS), dtype=np.float64)
    curve = pairs[0].deltas(grid)
    for pair in pairs[1:]:
        curve = np.maximum(curve, pair.deltas(grid))
    return curve


def _renyi_epsilon(eps0: float, n: int, positions: int, delta: float, pieces: int) -> float:
    """The epsilon of so many positions by Renyi divergences, the largest over the others' inputs at each order."""
    spread = math.tanh(eps0 / 2) / math.sqrt(n / (2 + 2 * math.cosh(eps0)))
    excesses = math.sqrt(-2 * math.log(delta) / positions) / spread * np.geomspace(1 / 8, 4, 33)
    worst = np.zeros(len(excesses))
    for pair in _blocks(eps0, n, pieces):
        worst = np.maximum(worst, pair.log_moments(excesses))
    orders = [1 + float(excess) for excess in excesses]
    return to_epsilon(orders, [positions * float(w / x) for w, x in zip(worst, excesses, strict=True)], delta)


def _distribution_epsilon(eps0: float, n: int, positions: int, delta: float, method: Method, pieces: int) -> float:
    """The epsilon of so many positions by the privacy loss distribution under the envelope."""
    share = 2 / (1 + math.cosh(eps0)) if method == "exact" else SHARES[method](eps0)
    spread = min(eps0, math.tanh(eps0 / 2) / math.sqrt(n * share / 4))
    negligible = max(delta * 1e-6 / positions, LEAST_INFINITE / 1024)  # the law has more at infinity anyway
    step = spread / max(COARSE, FINE * min(1.0, math.sqrt(SEVERAL / positions)))
    law = from_symmetric_curve(step, _envelope(eps0, n, method, pieces, step, negligible))
    moments = law.chernoff_epsilon(positions, delta)
    try:
        return min(moments, law.self_compose(positions, delta).epsilon(delta))
    except TooLarge:
        return moments


@lru_cache(maxsize=64)
def shuffled_epsilon(
    eps0: float,
    n: int,
    positions: int,
    delta: float,
    method: Method = "exact",
    composition: Composition = "best",
    pieces: int = PIECES,
) -> float:
    """Return the central epsilon of so many positions."""
    # the plain bound holds beside every other: the shuffled reports are a function of the reports
    plain = positions * eps0
    if n == 1 or eps0 >= HOPELESS or plain <= NEGLIGIBLE:
        return plain
    drowned = delta < LEAST_DELTA or (positions > 1 and positions * LEAST_INFINITE >= delta)
    if drowned and (positions == 1 or method != "exact" or composition == "pld"):
        return plain
    if method != "exact":
        n = min(n, CROWD)
        if positions > 1:
            return min(plain, _distribution_epsilon(eps0, n, positions, delta, method, pieces))
        return min(plain, _root(clone_pair(n, eps0, method), delta, 0.0, eps0))
    if n > COUNTED:
        counted = _most_counted(eps0, positions, delta, composition, pieces)
        return (
            counted
            if composition == "rdp"
            else min(counted, shuffled_epsilon(eps0, n, positions, delta, "stronger_clones", "pld", pieces))
        )
    if positions == 1:
        return min(plain, _one_position(eps0, n, delta))
    best = plain
    if composition == "rdp" or (composition == "best" and n <= RENYI_COUNTED):
        best = min(best, _renyi_epsilon(eps0, min(n, RENYI_COUNTED), positions, delta, pieces))
    if composition != "rdp" and not drowned:
        best = min(best, _distribution_epsilon(eps0, n, positions, delta, method, pieces))
    return best


@lru_cache(maxsize=64)
def _most_counted(eps0: float, positions: int, delta: float, composition: Composition, pieces: int) -> float:
    return shuffled_epsilon(eps0, COUNTED, positions, delta, "exact", composition, pieces)


def _report(source: float | Event | Mechanism, method: Method | None) -> tuple[float, Method]:
    """The eps of one report, and the sharpest method that is proved for it where none was chosen."""
    if not isinstance(source, Event | Mechanism):
        eps0, two_outcomes = arguments.positive("eps0", source), True
    else:
        event = event_of(source)
        if not isinstance(event, PureEvent) or event.slack or (event.scope and event.scope.view is not View.LOCAL):
            raise ValueError(
                f"eps0 = {event!r} is not the pure eps of a report, and no bound is proved for shuffling anything else"
            )
        eps0, two_outcomes = arguments.positive("eps0", event.eps), isinstance(event, RandomizedResponseEvent)
    if method is None:
        return eps0, "exact" if two_outcomes else "stronger_clones"
    arguments.choice("method", method, get_args(Method))
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

    One client's input is replaced, for whoever sees the shuffled reports and knows all the other inputs. A mechanism of
    whole vectors has one position, because its whole reports are shuffled: its coordinates do not count as reports of
    every client.

    Args:
        eps0: A mechanism or its event. A number is the local eps of one report with two outcomes.
        n: Honest clients in a round: subtract those who may collude with the adversary.
        d: Positions (weights) in a round.
        rounds: Rounds in which the same client takes part.
        delta: The probability that the bound excludes, above 0.
        method: The bound of one position: "exact", "stronger_clones" or "clones". By default the sharpest that is
            proved: "exact" for two outcomes, "stronger_clones" for any other eps0-LDP report.
        composition: "pld" or "rdp"; by default the better of the two. The clones bounds compose by "pld" only.

    >>> from ldpkernels.accounting import PureEvent
    >>> round(shuffle_epsilon(1.0, 100).epsilon, 3), round(shuffle_epsilon(PureEvent(1.0), 100).epsilon, 3)
    (0.408, 0.444)
    """
    eps, used = _report(eps0, method)
    n, d, rounds = arguments.count("n", n), arguments.count("d", d), arguments.count("rounds", rounds)
    positions = arguments.count("d * rounds", d * rounds)
    delta = arguments.excluded(delta)
    arguments.choice("composition", composition, get_args(Composition))
    if used != "exact" and composition == "rdp":
        raise ValueError(f"composition = 'rdp' is for method = 'exact', not {used!r}: leave it at 'best'")
    epsilon = shuffled_epsilon(eps, n, positions, delta, used, composition)
    kind = "randomized response" if used == "exact" else "pure local differential privacy"
    return PrivacyResult(
        epsilon,
        delta,
        SHUFFLED,
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

    The epsilon is that of `shuffle_epsilon`: one client's input is replaced, for whoever sees the shuffled reports. The
    number is at most 2% above the smallest, and never below it. If even `limit` clients are too few, it raises.

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
