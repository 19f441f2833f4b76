# SPDX-License-Identifier: Apache-2.0
"""alpha-CLDP, the metric guarantee of LDP-Fed: what alpha means, and its shares over rounds, layers and cycles.

alpha bounds the log-ratio per unit of distance, and the unit is one step of an integer grid of 10^-rho. The epsilon of
two values that differ by the whole range is alpha times 2c 10^rho, so alpha alone says nothing: both are reported
together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ldpkernels.accounting.events import MetricEvent
from ldpkernels.accounting.neighbours import LOCAL
from ldpkernels.accounting.records import PrivacyResult
from ldpkernels.common import arguments

METRICS = ("linf", "l1")
# Of a double, and of a plan that somebody would run.
MOST_DIGITS, MOST_ROUNDS = 308, 10**6


def worst_case_epsilon(alpha: float, c: float, rho: int, *, metric: str = "linf", size: int = 1) -> float:
    """Return alpha times the diameter of the inputs [-c 10^rho, c 10^rho]^size in the metric.

    >>> worst_case_epsilon(1.0, 1.0, 10)
    20000000000.0
    """
    return MetricEvent(alpha, metric, diameter(c, rho, metric=metric, size=size)).pure_epsilon


def diameter(c: float, rho: int, *, metric: str = "linf", size: int = 1) -> float:
    """Return the largest distance of two inputs: 2c 10^rho in L-infinity, size times that in L1."""
    arguments.choice("metric", metric, METRICS)
    steps = 2 * arguments.positive("c", c) * 10.0 ** arguments.count("rho", rho, 0, most=MOST_DIGITS)
    distance = steps * (arguments.count("size", size) if metric == "l1" else 1)
    if math.isinf(distance):
        raise ValueError(f"c = {c!r} at rho = {rho} digits makes infinitely many steps: lower one of them")
    return distance


@dataclass(frozen=True)
class CldpResult:
    """alpha with its metric, and the epsilon that it implies: any two values, for whoever sees the report.

    >>> print(cldp(1.0, 1.0, 10))  # doctest: +ELLIPSIS
    alpha = 1 per unit of linf distance (a unit is 1e-10), and no more than that is promised; in the worst case ...
    """

    alpha: float
    metric: str
    c: float
    rho: int
    worst_case: PrivacyResult

    def __str__(self) -> str:
        return (
            f"alpha = {self.alpha:.6g} per unit of {self.metric} distance (a unit is 1e-{self.rho}), and no more"
            f" than that is promised; in the worst case {self.worst_case}"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the record as plain data for JSON."""
        return {
            "alpha": self.alpha,
            "metric": self.metric,
            "c": self.c,
            "rho": self.rho,
            "worst_case": self.worst_case.to_dict(),
        }


def cldp(alpha: float, c: float, rho: int, *, metric: str = "linf", size: int = 1) -> CldpResult:
    """Return what a total of alpha means for vectors of `size` values clipped to [-c, c] and rounded to rho digits.

    The worst case is between any two such vectors of a client, for whoever sees the reports, the server included.
    """
    epsilon = worst_case_epsilon(alpha, c, rho, metric=metric, size=size)
    result = PrivacyResult(
        epsilon,
        0.0,
        LOCAL.composed,
        (f"alpha = {alpha:.6g} is the total over all values, rounds and layers", f"values lie in [-{c:g}, {c:g}]"),
        f"alpha times the {metric} diameter",
        differing=f"{LOCAL.composed.differing}, within the clipping range",
    )
    return CldpResult(float(alpha), metric, float(c), rho, result)


def rounds_per_layer(sizes: Sequence[int], rounds: int) -> list[int]:
    """Return how many of the rounds each layer gets: proportional to its size, at least 1, adding up exactly.

    Sizes are listed from the input layer to the output layer, and so is the answer. A layer whose share is below 1 gets
    1 round. The others share the rest by largest remainder, and of equal remainders the layer nearer the output wins.

    >>> rounds_per_layer([416, 32, 12832, 64, 15690], 80)
    [1, 1, 35, 1, 42]
    >>> rounds_per_layer([416, 32, 12832, 64, 15690], 16)
    [1, 1, 6, 1, 7]
    """
    sizes = [arguments.count("layer size", size) for size in sizes]
    rounds = arguments.count("rounds", rounds, 0)
    if not sizes or rounds < len(sizes):
        raise ValueError(
            f"rounds = {rounds} in a cycle are too few for {len(sizes)} layers: use more rounds, or fewer cycles"
        )
    result = [0] * len(sizes)
    free = set(range(len(sizes)))
    left = rounds
    while True:
        total = sum(sizes[i] for i in free)
        small = [i for i in free if Fraction(sizes[i] * left, total) < 1] if free else []
        if not small:
            break
        for i in small:
            result[i] = 1
        free -= set(small)
        left -= len(small)
    quotas = {i: Fraction(sizes[i] * left, sum(sizes[j] for j in free)) for i in free}
    for i, quota in quotas.items():
        result[i] = quota.numerator // quota.denominator
    missing = rounds - sum(result)
    for i in sorted(free, key=lambda i: (quotas[i] - result[i], i), reverse=True)[:missing]:
        result[i] += 1
    return result


@dataclass(frozen=True)
class ScheduledRound:
    """One round of LDP-Fed: which layer is sent, and under which budget.

    `alpha` is the round's share of the total. `alpha_parameter` is what the sampler gets for one value.
    """

    index: int
    cycle: int
    layer: int
    size: int
    alpha: Fraction
    alpha_parameter: Fraction


def schedule(
    alpha: float | Fraction, sizes: Sequence[int], rounds: int, *, cycles: int = 1, metric: str = "linf"
) -> tuple[ScheduledRound, ...]:
    """Return LDP-Fed's rounds, from the output layer backwards in each cycle; their alphas add up to alpha exactly.

    Cycle j has floor((j+1) rounds/cycles) - floor(j rounds/cycles) rounds and alpha/cycles of the budget. A layer's
    part is proportional to its size and split evenly over its rounds. Under L-infinity each value gets the round's
    alpha divided by the number of values; under L1 it gets the whole.

    >>> plan = schedule(1.0, [416, 32, 12832, 64, 15690], 80, cycles=5)
    >>> len(plan), sum(entry.alpha for entry in plan)
    (80, Fraction(1, 1))
    """
    arguments.choice("metric", metric, METRICS)
    try:
        total = Fraction(alpha)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"alpha = {alpha!r} is not a finite number: give the total budget") from error
    if total <= 0:
        raise ValueError(f"alpha = {alpha!r} is not above 0: give the total budget")
    rounds = arguments.count("rounds", rounds, most=MOST_ROUNDS)
    cycles = arguments.count("cycles", cycles, most=MOST_ROUNDS)
    sizes = [arguments.count("layer size", size) for size in sizes]
    parameters = sum(sizes)
    plan: list[ScheduledRound] = []
    for cycle in range(cycles):
        length = (cycle + 1) * rounds // cycles - cycle * rounds // cycles
        per_layer = rounds_per_layer(sizes, length)
        for layer in reversed(range(len(sizes))):
            share = total / cycles * Fraction(sizes[layer], parameters) / per_layer[layer]
            each = share / sizes[layer] if metric == "linf" else share
            for _ in range(per_layer[layer]):
                plan.append(ScheduledRound(len(plan), cycle, layer, sizes[layer], share, each))
    return tuple(plan)
