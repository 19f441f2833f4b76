# SPDX-License-Identifier: Apache-2.0
"""One eps for a whole vector by k of its coordinates (Wang et al., ICDE 2019): exact in integers.

The derivation is in docs/mechanisms/vector.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ldpkernels import _native, launch
from ldpkernels.common.arguments import number
from ldpkernels.common.arrays import Array, Floats, Integers
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.common.keys import Key
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.registry import best_mechanism, law_table, mechanism_named
from ldpkernels.laws.vector_law import PureVectorLaw
from ldpkernels.laws.weightwise import Weightwise, checked_eps

_COORDINATES = 1  # fold_in of the key for the coordinates; keystream 0 of the key itself draws the subset


@dataclass(frozen=True)
class KOfD(PureVectorLaw):
    """k of d coordinates, chosen uniformly, each reported under eps / k and scaled by d / k: unbiased.

    eps is between any two vectors, against the server. Coordinates lie in [-bound, bound] and the vector in the ball of
    radius `norm`. k and the coordinates' mechanism are those with the least worst-case error.

    >>> mechanism = KOfD(8.0, dimension=21_840, norm=1.0, bound=21_840**-0.5)
    >>> mechanism.k, mechanism.coordinate.name, round(mechanism.worst_error)
    (4, 'two-point', 9413)
    """

    name: ClassVar[str] = "k-of-d"
    eps: float
    dimension: int
    norm: float
    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", checked_eps(self.eps))
        if self.dimension < 1:
            raise ValueError(f"dimension={self.dimension} must be at least 1")
        for name in ("norm", "bound"):
            value = number(name, getattr(self, name))
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value} must be a finite number above 0")

    @property
    def k(self) -> int:
        """How many coordinates are reported."""
        return self._plan[0]

    @property
    def coordinate(self) -> Weightwise:
        """The mechanism of a coordinate, at eps / k."""
        return mechanism_named(self._plan[1], _share(self.eps, self.k))

    @property
    def effective_eps(self) -> float:
        """The eps that is executed, k times a coordinate's: any two updates, for whoever sees a report."""
        return min(self.eps, math.nextafter(self.k * self.coordinate.effective_eps, math.inf))

    @property
    def worst_error(self) -> float:
        """An upper bound on the expected squared distance from any vector of the domain, plus its squared length."""
        return self.dimension**2 * self.bound**2 * self._plan[2]

    def error(self, x: Array) -> float:
        """Expected squared distance of the output from x."""
        x = np.asarray(x, np.float64)
        variance = self.coordinate.variance(x, 0.0, self.bound)
        second = np.sum(variance + x * x, dtype=np.float64)
        return float(self.dimension / self.k * second - np.sum(x * x, dtype=np.float64))

    def sample(self, x: Array, key: Key) -> Floats:
        """A report of x as a vector of which k coordinates are not 0."""
        chosen, out = self.coordinates(key), np.zeros(self.dimension)
        out[chosen] = self.report(x[chosen], key)
        return out

    def coordinates(self, key: Key) -> Integers:
        """Which k coordinates are reported, in ascending order."""
        return subset(self.dimension, self.k, key)

    def report(self, values: Array, key: Key) -> Floats:
        """The values that a report has at these coordinates."""
        mechanism = self.coordinate
        values, cells = np.ascontiguousarray(values, np.float64), np.zeros(self.k, np.uint8)
        spans = span_table([values.ctypes.data], [cells.ctypes.data], [self.k], [FLOAT64])
        law = law_table(mechanism, [0.0], [self.bound], [FLOAT64], "report")
        launch.run(mechanism.kernel, mechanism.reported, spans, law, key.fold_in(_COORDINATES), "cpu")
        if mechanism.reported == "bits":
            cells = np.unpackbits(cells, bitorder="little")[: self.k]
        offset, step = mechanism.affine(*mechanism.executed_range(0.0, self.bound, FLOAT64))
        scaled: Floats = self.dimension / self.k * (offset + step * cells.astype(np.float64))
        return scaled

    @property
    def _plan(self) -> tuple[int, str, float]:
        spread = min(1.0, (self.norm / self.bound) ** 2 / self.dimension)
        return _best(self.eps, self.dimension, spread)


def subset(dimension: int, k: int, key: Key) -> Integers:
    """k different numbers below `dimension`, every subset as likely as every other (Floyd's algorithm), ascending."""
    draw = uniform_integers(key)
    chosen: set[int] = set()
    for top in range(dimension - k, dimension):
        candidate = draw(top + 1)
        chosen.add(top if candidate in chosen else candidate)
    return np.array(sorted(chosen), np.int64)


def uniform_integers(key: Key) -> Callable[[int], int]:
    """Integers below a bound, exactly uniform: 64-bit draws of keystream 0, rejected past the last multiple of it."""
    words = key.uint32()
    draws: list[int] = []
    block = 0

    def draw(bound: int) -> int:
        nonlocal draws, block
        while True:
            if not draws:
                draws = _native.keystream(words, 0, block, 64, "").view("<u8").tolist()[::-1]
                block += 64
            found = draws.pop()
            if found < 2**64 // bound * bound:
                return found % bound

    return draw


@lru_cache(maxsize=256)
def _best(eps: float, dimension: int, spread: float) -> tuple[int, str, float]:
    """k, the coordinates' mechanism, and E[Y^2] / k of a coordinate of the unit range whose mean square is `spread`.

    The best share of eps is between 2 and 12; with k above eps it would be below 1, where a coordinate's error grows as
    (k / eps)^2.
    """
    last = max(1, min(dimension, math.floor(eps)))
    best: tuple[int, str, float] | None = None
    for k in range(max(1, min(dimension, math.floor(eps / 16))), last + 1, max(1, last // 64)):
        share = _share(eps, k)
        for name in best_mechanism(share).worst:
            error = _second_moment(mechanism_named(name, share), spread) / k
            if best is None or error < best[2]:
                best = (k, name, error)
    assert best is not None
    return best


def _second_moment(mechanism: Weightwise, spread: float) -> float:
    """The largest E[Y^2] of coordinates of the unit range with this mean square: it is nearly linear in the square."""
    center = float(mechanism.variance(0.0, 0.0, 1.0))
    end = float(mechanism.variance(1.0, 0.0, 1.0)) + 1
    return center + (end - center) * spread


def _share(eps: float, k: int) -> float:
    """eps / k, rounded down so that k of it are at most eps."""
    return eps if k == 1 else math.nextafter(eps / k, 0.0)
