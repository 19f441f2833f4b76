# SPDX-License-Identifier: Apache-2.0
"""The central view behind an ideal shuffler, per position of the model, composed over positions and rounds.

The shuffler hides which client sent which report of a position; what is left is how many ones there are. Three bounds
for one position, from the sharpest to the most general:

- exact: the two counts themselves, over the worst inputs of the others (randomized response only);
- stronger_clones: each other client is a clone with probability 2/(e^eps0 + 1) (Feldman, McMillan and Talwar, 2023);
- clones: with probability e^-eps0 (the same authors, 2021).

The inputs of the others may differ from position to position and from round to round, so composition has to cover every
mixture of them. Two ways do, and the smaller figure counts: a privacy loss distribution under the upper envelope of
all the curves (sharp for many clients), and Renyi divergences, the largest at each order (sharp for few).
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ldpkernels.accounting import arguments
from ldpkernels.accounting._binomial import bisect_upper
from ldpkernels.accounting._counts import blocks, clone_pair, count_pair
from ldpkernels.accounting._lattice import from_symmetric_curve
from ldpkernels.accounting._renyi import to_epsilon
from ldpkernels.accounting.events import ShuffledEvent
from ldpkernels.accounting.local import adversary_of
from ldpkernels.accounting.records import PrivacyResult

METHODS = ("exact", "stronger_clones", "clones")
COMPOSITIONS = ("best", "pld", "rdp")
# Up to so many clients every composition of the others is tried; above, blocks cost at most this share of epsilon.
EXHAUSTIVE = 1000
TOLERANCE = 1e-3
PIECES = 400
# Where e^eps0 leaves floating point nothing is hidden any more; the bound of one position is then eps0 itself.
HOPELESS = 30.0

_SHARES: dict[str, Callable[[float], float]] = {
    "stronger_clones": lambda eps0: 2 / (math.exp(eps0) + 1),
    "clones": lambda eps0: math.exp(-eps0),
}


def _exceeds(pair: Any, delta: float, epsilon: float) -> bool:
    return not pair.delta(epsilon) <= delta


def _one_position(eps0: float, n: int, delta: float) -> float:
    """The epsilon of one position, over every m, to within TOLERANCE above (n > EXHAUSTIVE) or exactly."""
    first = count_pair(n, eps0, 0)
    best = bisect_upper(partial(_exceeds, first, delta), 0.0, eps0)
    room = 1.0 if n <= EXHAUSTIVE else 1 + TOLERANCE
    stack = blocks(n, n if n <= EXHAUSTIVE else PIECES)
    while stack:
        start, width = stack.pop()
        pair = count_pair(n - width, eps0, start)
        if pair.delta(min(best * room, eps0)) <= delta:
            continue
        if width:
            half = width // 2
            stack += [(start, half), (start + half + 1, width - half - 1)]
        else:
            best = bisect_upper(partial(_exceeds, pair, delta), best, eps0)
    return min(best * room, eps0)


@lru_cache(maxsize=64)
def _envelope(eps0: float, n: int, method: str, pieces: int, step: float, negligible: float) -> Any:
    """The curve at 0, h, 2h, ... that dominates one position, until it is negligible or zero."""
    points = math.ceil(eps0 / step) + 1
    if method != "exact":
        pairs: list[Any] = [clone_pair(n, eps0, _SHARES[method](eps0), buckets=64)]
        probe = pairs
    else:
        pairs = [count_pair(n - width, eps0, start) for start, width in blocks(n, min(pieces, n))]
        probe = [pairs[0], pairs[-1]]
    # the curve's end is found on the extremes, then cut; what is left there becomes mass at infinity
    last = bisect_upper(lambda x: any(_exceeds(pair, negligible, x) for pair in probe), 0.0, eps0)
    points = min(points, math.ceil(last / step) + 2)
    grid = step * np.arange(points)
    curve = pairs[0].deltas(grid)
    for pair in pairs[1:]:
        curve = np.maximum(curve, pair.deltas(grid))
    return curve


def _renyi_epsilon(eps0: float, n: int, positions: int, delta: float, pieces: int) -> float:
    """The epsilon of so many positions by Renyi divergences, the largest over the others' inputs at each order."""
    spread = math.tanh(eps0 / 2) / math.sqrt(n / (2 + 2 * math.cosh(eps0)))
    excesses = math.sqrt(-2 * math.log(delta) / positions) / spread * np.geomspace(1 / 8, 4, 33)
    worst = np.zeros(len(excesses))
    for start, width in blocks(n, min(pieces, n)):
        worst = np.maximum(worst, count_pair(n - width, eps0, start).log_moments(excesses))
    orders = [1 + float(excess) for excess in excesses]
    return to_epsilon(orders, [positions * float(w / x) for w, x in zip(worst, excesses, strict=True)], delta)


def shuffled_epsilon(
    eps0: float,
    n: int,
    positions: int,
    delta: float,
    method: str = "exact",
    composition: str = "best",
    pieces: int = PIECES,
) -> float:
    """Return the central epsilon of so many positions; the number behind `shuffle_epsilon`."""
    # the plain bound holds beside every other: the shuffled reports are a function of the reports
    plain = positions * eps0
    if n == 1 or eps0 >= HOPELESS:
        return plain
    if positions == 1 and method == "exact":
        return min(plain, _one_position(eps0, n, delta))
    if positions == 1:
        pair = clone_pair(n, eps0, _SHARES[method](eps0))
        return min(plain, bisect_upper(partial(_exceeds, pair, delta), 0.0, eps0))
    best = plain
    if method == "exact" and composition != "pld":
        best = min(best, _renyi_epsilon(eps0, n, positions, delta, pieces))
    if method != "exact" or composition != "rdp":
        share = _SHARES[method](eps0) if method != "exact" else 2 / (1 + math.cosh(eps0))
        spread = min(eps0, math.tanh(eps0 / 2) / math.sqrt(n * share / 4))
        negligible = delta * 1e-6 / positions
        law = from_symmetric_curve(spread / 100, _envelope(eps0, n, method, pieces, spread / 100, negligible))
        best = min(best, law.self_compose(positions, delta * 1e-6).epsilon(delta))
        best = min(best, law.chernoff_epsilon(positions, delta))
    return best


def shuffle_epsilon(
    eps0: float,
    n: int,
    *,
    d: int = 1,
    rounds: int = 1,
    delta: float = 1e-5,
    method: str = "exact",
    composition: str = "best",
) -> PrivacyResult:
    """Return the central guarantee of n clients whose reports are shuffled position by position.

    Args:
        eps0: The local eps of one report.
        n: Honest clients a round: subtract those who may collude with the adversary.
        d: Positions (weights) a round.
        rounds: Rounds in which the same client takes part.
        delta: The probability that the bound excludes, above 0.
        method: One of `METHODS`: the bound of one position.
        composition: "pld", "rdp" or the better of the two; the clones bounds compose by "pld" only.

    >>> round(shuffle_epsilon(1.0, 100).epsilon, 3)
    0.408
    """
    arguments.positive("eps0", eps0)
    arguments.count("n", n)
    arguments.probability("delta", delta, one=False)
    arguments.choice("method", method, METHODS)
    arguments.choice("composition", composition, COMPOSITIONS)
    if method != "exact" and composition == "rdp":
        raise ValueError(f"composition = 'rdp' is for method = 'exact', not {method!r}: leave it at 'best'")
    positions = arguments.count("d", d) * arguments.count("rounds", rounds)
    epsilon = shuffled_epsilon(float(eps0), int(n), positions, delta, method, composition)
    adversary, neighbouring = adversary_of(ShuffledEvent(eps0, n))
    kind = "randomized response" if method == "exact" else "pure local differential privacy"
    return PrivacyResult(
        epsilon,
        delta,
        adversary,
        neighbouring,
        (
            f"an ideal shuffler for every position: {n:,} reports a position and round, which can't be told apart"
            " nor linked to those of other positions",
            f"each report is {kind} of eps = {eps0:.6g}, with public ranges",
            f"{positions:,} positions in all ({d:,} weights, {rounds:,} rounds)",
            f"none of the {n:,} clients colludes, and all of them report",
        ),
        {"exact": "the counts themselves", "stronger_clones": "stronger clones", "clones": "clones"}[method]
        + (f", composed ({composition})" if positions > 1 else ""),
    )


def clients_needed(
    target: float, eps0: float, *, d: int = 1, rounds: int = 1, delta: float = 1e-5, limit: int = 10**9
) -> tuple[int, PrivacyResult]:
    """Return a number of clients that is enough for a central epsilon of `target`, and the result at that number.

    The number is the smallest to within 2 %, never too small. Where even `limit` clients are too few, it raises.

    >>> n, result = clients_needed(0.408, 1.0)
    >>> 95 <= n <= 102 and result.epsilon <= 0.408
    True
    """
    arguments.positive("target", target)
    arguments.positive("eps0", eps0)
    positions = arguments.count("d", d) * arguments.count("rounds", rounds)
    arguments.probability("delta", delta, one=False)

    def enough(n: int) -> bool:
        # Renyi divergences are the sharper way for few clients only; leaving them out is safe anywhere
        composition = "best" if n < 5000 else "pld"
        return shuffled_epsilon(eps0, n, positions, delta, composition=composition, pieces=100) <= target

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
