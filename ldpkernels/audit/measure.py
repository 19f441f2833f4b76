# SPDX-License-Identifier: Apache-2.0
"""Two inputs, one event, two bounded probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from ldpkernels.common import arguments
from ldpkernels.common.arrays import Array, Floats
from ldpkernels.common.optional import is_tensor, require

Input = TypeVar("Input")
Columns: TypeAlias = "Mapping[str, tuple[Array, Array]]"  # what is looked at, by name: draws under either input

ALPHA = 1e-6  # probability that a lower bound lies above the truth
_ATOMS = 64  # outputs of at most so many values are told apart one by one; of more, by their tails


class AuditFailure(AssertionError):
    """A mechanism was seen to leak more than it claims."""


@dataclass(frozen=True)
class AuditResult:
    """What was seen of one mechanism on neighbours, which may be any two inputs, by whoever sees outputs.

    Attributes:
        name: The mechanism and its setting.
        claimed: The epsilon that it claims.
        measured: A lower bound on its true epsilon, wrong with probability `alpha`.
        n: Draws under each input.
        event: The event that tells the inputs apart.
        hits: How often it happened under each input, in the n // 2 draws that judge it.
        delta: The probability that the claim excludes.
        alpha: The probability that `measured` is above the truth.
    """

    name: str
    claimed: float
    measured: float
    n: int
    event: str
    hits: tuple[int, int]
    delta: float = 0.0
    alpha: float = ALPHA

    @property
    def ok(self) -> bool:
        """Whether the claim survived."""
        return self.measured <= self.claimed

    def __str__(self) -> str:
        half = self.n // 2
        seen = f"'{self.event}' happened {self.hits[0]} times in {half} under one input, {self.hits[1]} under the other"
        if self.ok:
            return f"{self.name}: epsilon is at least {self.measured:.4g}, claimed {self.claimed:.4g}. {seen}."
        return (
            f"{self.name} leaks more than it claims: its epsilon is at least {self.measured:.4g} and it claims "
            f"{self.claimed:.4g}. {seen}; by chance that has probability {self.alpha:g}."
        )

    def check(self) -> AuditResult:
        """Return this result, or raise an AuditFailure if its claim did not survive."""
        if not self.ok:
            raise AuditFailure(str(self))
        return self


def clopper_pearson(hits: int, n: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Bounds on a probability from `hits` of n, each wrong with probability `alpha`.

    >>> low, high = clopper_pearson(50, 100, alpha=0.025)
    >>> round(low, 3), round(high, 3)
    (0.398, 0.602)
    """
    n = arguments.count("n", n)
    hits = arguments.count("hits", hits, 0, most=n)
    alpha = arguments.probability("alpha", alpha, one=False)
    quantile = require("scipy.special", "audit", "an audit").betaincinv
    low = float(quantile(hits, n - hits + 1, alpha)) if hits else 0.0
    high = float(quantile(hits + 1, n - hits, 1 - alpha)) if hits < n else 1.0
    return low, high


def measure(
    function: Callable[[Input, int], object],
    a: Input,
    b: Input,
    claimed: float,
    *,
    n: int = 1 << 18,
    delta: float = 0.0,
    name: str = "the mechanism",
    alpha: float = ALPHA,
) -> AuditResult:
    """Audit any function: `function(input, n)` gives n independent outputs, numbers, for one input.

    >>> rng = np.random.default_rng(0)
    >>> def randomized_response(bit, n):
    ...     return np.where(rng.random(n) < 0.75, bit, 1 - bit)
    >>> measure(randomized_response, 0, 1, claimed=1.1).ok, measure(randomized_response, 0, 1, claimed=1.0).ok
    (True, False)
    """
    if not claimed >= 0:
        raise ValueError(f"claimed={claimed} must be at least 0")
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta} must be at least 0 and below 1")
    first, second = (_outputs(function, value, n) for value in (a, b))
    half = len(first) // 2
    choose, judge = (first[:half], second[:half]), (first[half : 2 * half], second[half : 2 * half])
    return told_apart(name, claimed, {"output": choose}, {"output": judge}, delta, alpha)


def told_apart(
    name: str, claimed: float, choose: Columns, judge: Columns, delta: float = 0.0, alpha: float = ALPHA
) -> AuditResult:
    """The event that tells the inputs apart best on some draws, and its bound on others.

    A yes or no is a column of bools. The column, the event and the likelier input are all chosen on the first draws:
    one bound, one chance to be wrong.
    """
    best, swap, most = None, False, -math.inf
    for column, draws in choose.items():
        n = _lengths(draws)
        for event in _events(column, *draws):
            bound, swapped = _lower_bound(event.counts(draws), n, delta, alpha)
            if best is None or bound > most:
                best, swap, most = event, swapped, bound
    if best is None:
        raise ValueError(f"{name}: the outputs hold nothing that could tell the inputs apart")
    draws = judge[best.column]
    n, counts = _lengths(draws), best.counts(draws)
    first, second = (counts[1], counts[0]) if swap else counts
    measured = max(0.0, _bound(first, second, n, delta, alpha))
    return AuditResult(name, claimed, measured, 2 * n, best.text, counts, delta, alpha)


def reach(n: int, delta: float = 0.0, alpha: float = ALPHA) -> float:
    """The largest epsilon that n judging draws can prove: one event always under one input, and never under the other.

    >>> round(reach(1000), 2), round(reach(10_000), 2)
    (4.23, 6.53)
    """
    return max(0.0, _bound(n, 0, n, delta, alpha))


@dataclass(frozen=True)
class _Event:
    """A set of one column's outputs."""

    column: str
    text: str
    low: float
    high: float

    def counts(self, draws: tuple[Array, Array]) -> tuple[int, int]:
        """How many of the draws are in the set, under either input."""
        first, second = (int(np.count_nonzero((o >= self.low) & (o <= self.high))) for o in draws)
        return first, second


def _events(column: str, first: Array, second: Array) -> list[_Event]:
    if first.dtype == bool:
        return [_Event(column, column, 1, 1), _Event(column, f"not {column}", 0, 0)]
    both = np.concatenate([first, second])
    values = np.unique(both)
    if len(values) <= _ATOMS:
        points = values
        events = [_Event(column, f"{column} = {v:.6g}", v, v) for v in values]
    else:
        points = np.unique(np.quantile(both, np.linspace(0, 1, _ATOMS)))
        events = []
    events += [_Event(column, f"{column} <= {v:.6g}", -math.inf, v) for v in points]
    return events + [_Event(column, f"{column} >= {v:.6g}", v, math.inf) for v in points]


def _lengths(draws: tuple[Array, Array]) -> int:
    """How many draws there are under each input."""
    if len(draws[0]) != len(draws[1]):
        raise ValueError(
            f"{len(draws[0])} draws under one input and {len(draws[1])} under the other: take the same number of both"
        )
    return len(draws[0])


def _lower_bound(counts: tuple[int, int], n: int, delta: float, alpha: float) -> tuple[float, bool]:
    """The better direction's bound, and whether it is the second input's."""
    forward, backward = _bound(*counts, n, delta, alpha), _bound(counts[1], counts[0], n, delta, alpha)
    return (backward, True) if backward > forward else (forward, False)


def _bound(hits: int, others: int, n: int, delta: float, alpha: float) -> float:
    low, _ = clopper_pearson(hits, n, alpha / 2)
    _, high = clopper_pearson(others, n, alpha / 2)
    return math.log((low - delta) / high) if low > delta else -math.inf


def _outputs(function: Callable[[Input, int], object], value: Input, n: int) -> Floats:
    outputs = function(value, n)
    array: Floats = np.asarray(outputs.double().cpu() if is_tensor(outputs) else outputs, np.float64).ravel()
    if len(array) != n or n < 2:
        raise ValueError(f"the function gave {len(array)} outputs where n={n} were asked for: at least 2 are needed")
    if np.isnan(array).any():
        raise ValueError(
            "the function gave NaN: an audit cannot tell such outputs apart, so map them to a number first"
        )
    return array
