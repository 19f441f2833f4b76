# SPDX-License-Identifier: Apache-2.0
"""The strongest parameter that keeps a total: found by the accountant, and on its safe side.

Parameters are numbers of five significant digits. So a call can be read, and a larger total never has a weaker
parameter: both are found among the same numbers. Of the one that is returned the accountant itself was asked.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import Event, GaussianEvent, PureEvent, SampledGaussianEvent
from ldpkernels.accounting.gaussian import LARGEST_LOSS, gaussian_epsilon, sampled_gaussian_epsilon
from ldpkernels.accounting.losses import TooLarge
from ldpkernels.accounting.shuffle import COUNTED, HOPELESS, Composition, Method, shuffled_epsilon

Accountant = Callable[[float], float]


class GridLaw(Protocol):
    """Noise on a grid."""

    def epsilon(self, delta: float, rounds: int) -> float:
        """The eps of so many rounds."""


# No report can have a smaller eps (32-bit thresholds have none), and one with more hides nothing.
LEAST_EPS, MOST_EPS = 1e-9, 500.0
# Of noise multipliers: what `clipped_noised_sum` takes.
LEAST_SIGMA, MOST_SIGMA = 1e-4, 1e100
NEAREST, FARTHEST = 1e-6, 1e4  # deviations between two sums, for a start

FEW = 5000  # clients
CROWDED, SEVERAL = 10**5, 1 << 16  # clients, and positions or rounds, whose accountant takes its time
LEAST_GRID_SIGMA, MOST_GRID_SIGMA = 2.0**-8, 2.0**21  # in units of the norm: grids have them

DIGITS = 10**4
DECADE = 9 * DIGITS  # numbers of five digits in a decade
FIRST_STRIDE = 500
CLOSE = 1e-3  # to the target, in its logarithm


def number_at(index: int) -> float:
    """Return the number of five digits that has this index; 1 has index 0, and larger indices are larger numbers.

    >>> number_at(0), number_at(1), number_at(-1)
    (1.0, 1.0001, 0.99999)
    """
    decade, digits = divmod(index, DECADE)
    return float(f"{DIGITS + digits}e{decade - 4}")


def index_below(value: float) -> int:
    """Return the index of the last number of five digits that is not above value."""
    decade = math.floor(math.log10(value))
    index = decade * DECADE + math.floor(value / 10.0**decade * DIGITS) - DIGITS
    while number_at(index) > value:
        index -= 1
    while number_at(index + 1) <= value:
        index += 1
    return index


def strongest(
    accountant: Accountant, target: float, weak: float, strong: float, near: float | None = None, stride: int = 1
) -> float | None:
    """Return the number nearest to `strong`, from `weak` on, whose epsilon is at most the target; None where none's is.

    The epsilon rises from weak to strong. Where rounding makes it uneven, the number found keeps the target all the
    same. The search starts at `near`. Of the numbers every `stride`-th is asked for: ten leaves those of four digits.

    >>> strongest(lambda eps: 10 * eps, 8.0, 1e-9, 500.0), strongest(lambda sigma: 1 / sigma, 3.0, 1e9, 1e-9)
    (0.8, 0.33334)
    """

    def number(index: int) -> float:
        return number_at(index * stride)

    def before(value: float) -> int:
        return index_below(value) // stride

    weakest, most = before(weak), before(strong)

    def within(index: int) -> int:
        return min(max(index, min(weakest, most)), max(weakest, most))

    def excess(index: int) -> float:
        """Above 0 where the target isn't kept, or the accountant has no number."""
        epsilon = accountant(number(index))
        return math.log(max(max(epsilon, 1e-300) / target, 1e-300)) if 0 <= epsilon < math.inf else math.inf

    here = most if near is None else within(before(near))
    value = excess(here)
    kept = value <= 0
    end, step = (most if kept else weakest), max(1, FIRST_STRIDE // stride)
    if abs(value) < 1:  # nearly proportional there: a little beyond where the target is then
        there = before(number(here) * math.exp(math.copysign(value, (end > here) - 0.5)))
        step = abs(there - here) * 11 // 10 + 2
    while (value <= 0) == kept:  # in growing steps to the other side of the target
        if here == end:
            return number(here) if kept else None
        last, last_value = here, value
        here = within(here + (step if end > here else -step))
        value, step = excess(here), 4 * step
    fits, below, fails, above = (last, last_value, here, value) if kept else (here, value, last, last_value)
    turn, found = 0, here
    while abs(fails - fits) > 1:
        turn += 1
        guess = (fits + fails) // 2
        if abs(value) < CLOSE < above - below and turn % 6:  # beyond, to have the target between two that are close
            ahead = math.copysign(1.0, (fails - fits) if found == fits else (fits - fails))
            guess = before(number(found) * math.exp(2 * ahead * abs(value))) + int(ahead)
        elif turn % 3 and above < math.inf:  # the secant of logarithms; by halves where it is slow
            near_, far = math.log(number(fits)), math.log(number(fails))
            guess = before(math.exp(near_ + (far - near_) * -below / (above - below)))
        guess = min(max(guess, min(fits, fails) + 1), max(fits, fails) - 1)
        value, found = excess(guess), guess
        if value > 0:
            fails, above = guess, value
        else:
            fits, below = guess, value
    return number(fits)


def executed(number: float, accountant: Accountant, target: float) -> float | None:
    """Return the number, or one that is little weaker: at what is executed the accountant's rounding may decide."""
    index = index_below(number)
    weaker = (number_at(index - step) for step in (0, *(2**i for i in range(10))))
    return next((one for one in weaker if accountant(one) <= target), None)


@lru_cache(maxsize=256)
def local_eps(reports: int, delta: float, target: float) -> float | None:
    """Return the largest eps of so many reports of one client that together keep the target, seen one by one."""
    near = target / reports
    if delta > 0:  # were the loss of all of them normal
        near = min(target, max(near, _apart(delta, target) / math.sqrt(reports)))
    return strongest(
        lambda eps: _composed(PureEvent(eps), reports, delta), target, LEAST_EPS, MOST_EPS, max(near, LEAST_EPS)
    )


@lru_cache(maxsize=256)
def shuffled_eps(clients: int, positions: int, delta: float, target: float, method: Method) -> float | None:
    """Return the largest eps of a report that keeps the target where the reports of a position are mixed."""

    bound: Method = method if clients <= COUNTED else "stronger_clones"

    def roughly(eps: float) -> float:
        """The epsilon, were the loss of counts or clones normal: a start for the search, and no bound."""
        hidden = 2 * (math.cosh(eps) + 1) if bound == "exact" else 2 * (math.exp(eps) + 1)
        return gaussian_epsilon(math.tanh(eps / 2) * math.sqrt(positions * hidden / clients), delta)

    # Renyi divergences are the sharper way for few clients only, and leaving them out is safe
    composition: Composition = "best" if clients < FEW else "pld"

    def exactly(eps: float) -> float:
        return shuffled_epsilon(eps, clients, positions, delta, bound, composition)

    near = strongest(roughly, target, LEAST_EPS, HOPELESS)
    return strongest(exactly, target, LEAST_EPS, MOST_EPS, near, _stride(clients > CROWDED or positions > SEVERAL))


@lru_cache(maxsize=256)
def gaussian_sigma(rate: float, rounds: int, delta: float, target: float) -> float | None:
    """Return the least noise multiplier of so many sums, of all clients or of secret samples of them."""

    def total(sigma: float) -> float:
        if rate < 1 and target < LARGEST_LOSS:
            with contextlib.suppress(TooLarge):  # the law alone, which Renyi divergences rarely surpass: they are dear
                return sampled_gaussian_epsilon(sigma, rate, rounds, delta)
        return _composed(summed(rate, sigma), rounds, delta)

    # were the sum of the losses normal: those of a step have the deviation q sqrt(e^(1/sigma^2) - 1)
    near = 1 / math.sqrt(math.log1p((_apart(delta, target) / rate) ** 2 / rounds))
    return strongest(total, target, MOST_SIGMA, LEAST_SIGMA, near, _stride(rate < 1 and rounds > SEVERAL))


@lru_cache(maxsize=256)
def _apart(delta: float, target: float) -> float:
    """How many deviations apart two normal laws are at the target: a start for other searches."""
    return strongest(lambda mu: gaussian_epsilon(mu, delta), target, NEAREST, FARTHEST, 1.0) or NEAREST


def _stride(dear: bool) -> int:
    """Which numbers are asked for: of four digits where an answer takes a good part of a second."""
    return 10 if dear else 1


def grid_sigma(
    law_of: Callable[[float], GridLaw], apart: float, norm: float, rounds: int, delta: float, target: float
) -> float | None:
    """Return the least deviation of noise on a grid for updates that are `apart` norms from each other."""

    def total(sigma: float) -> float:
        try:
            return law_of(sigma).epsilon(delta, rounds)
        except ValueError:  # no grid has it
            return math.inf

    near = gaussian_sigma(1.0, rounds, delta, target)
    if near is None:
        return None
    return strongest(total, target, MOST_GRID_SIGMA * norm, LEAST_GRID_SIGMA * norm, apart * near * norm)


def summed(rate: float, sigma: float) -> Event:
    """A sum with noise, of all clients or of secret samples of them."""
    return GaussianEvent(sigma) if rate == 1 else SampledGaussianEvent(sigma, rate)


def _composed(event: Event, times: int, delta: float) -> float:
    return composed_epsilon([(event, times)], delta, "basic" if delta == 0 else "exact")
