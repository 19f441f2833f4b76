# SPDX-License-Identifier: Apache-2.0
"""An attack on one field, learnt from some runs and tried on others: columns by which inputs may be told apart.

The attacker knows which input was behind each of the runs that it learns from. That is more than a difference of
updates says: it knows the client's noise too, whatever it is.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ldpkernels.audit.measure import Columns
from ldpkernels.audit.runs import Draws, Fields
from ldpkernels.common.arrays import Array, Floats

_VALUES = 4  # values that are asked for one by one
_SINGLES = 8  # numbers that are
_POOLS = (1, 8, 64, 512, 4096)  # numbers that are pooled


class Attack:
    """What tells two inputs apart by one field.

    - Its most telling values, each a yes or no, and the likelihood ratio of all that were seen.
    - Of its numbers, by their ranks among those that were seen: whether they lie higher (`shift`) and whether they lie
      further out (`spread`), each number weighed as in Fisher's discriminant; and the most telling ones alone.
    """

    def __init__(self, learn: Draws) -> None:
        self._counts = tuple(Counter(f.digest for f in runs if f) for runs in learn)
        self._texts = {f.digest: f.text for runs in learn for f in runs if f}
        first, second = self._counts
        by_difference = sorted(self._texts, key=lambda d: abs(first[d] - second[d]), reverse=True)
        self._values = [d for d in by_difference[:_VALUES] if first[d] + second[d] > 1]
        sizes = Counter(f.numbers.size for runs in learn for f in runs if f)
        self._size = sizes.most_common(1)[0][0] if sizes else 0
        matrices = [self._matrix(runs) for runs in learn]
        self._seen: Floats = np.sort(np.concatenate(matrices), axis=0)
        self._varying = np.flatnonzero(self._seen[0] != self._seen[-1])
        ranks = [self._ranks(matrix) for matrix in matrices]
        self._shift = _discriminant(*ranks)
        self._spread = _discriminant(*(np.abs(r) for r in ranks))
        separation = (ranks[0].mean(axis=0) - ranks[1].mean(axis=0)) * self._shift
        self._telling = np.argsort(-separation, kind="stable")

    def columns(self, draws: Draws) -> Columns:
        """What to look at in other runs."""
        found: dict[str, tuple[Array, Array]] = {}
        matrices = [self._matrix(runs) for runs in draws]
        for j in self._varying[self._telling[:_SINGLES]]:
            found["it" if self._size == 1 else f"number {j}"] = matrices[0][:, j], matrices[1][:, j]
        for digest in self._values:
            asked = [np.array([f is not None and f.digest == digest for f in runs], bool) for runs in draws]
            found[f"it is {self._texts[digest]}"] = asked[0], asked[1]
        ratios = [np.array([0.0 if f is None else self._ratio(f.digest) for f in runs]) for runs in draws]
        found["the likelihood ratio of its values"] = ratios[0], ratios[1]
        if self._varying.size:
            ranks = [self._ranks(matrix) for matrix in matrices]
            if self._size > 1:
                found["the shift of its numbers"] = ranks[0] @ self._shift, ranks[1] @ self._shift
            spreads = [np.abs(r) @ self._spread for r in ranks]
            found["the spread of its numbers"] = spreads[0], spreads[1]
        return found

    def pooled(self, draws: Draws) -> Columns:
        """The most telling numbers, each by itself and turned towards the first input: every one is a draw of its own.

        For a claim of each number, under which the numbers of a report are independent.
        """
        if not self._varying.size:
            return self.columns(draws)
        matrices = [self._matrix(runs) for runs in draws]
        found: dict[str, tuple[Array, Array]] = {}
        for count in _POOLS:
            chosen = self._telling[:count]
            signs, at = np.sign(self._shift[chosen]), self._varying[chosen]
            first, second = ((matrix[:, at] * signs).ravel() + 0.0 for matrix in matrices)
            name = "it" if self._size == 1 else f"any of its {chosen.size} most telling numbers, turned,"
            found[name] = first, second
        return found

    def _ratio(self, digest: bytes) -> float:
        first, second = (counts[digest] for counts in self._counts)
        return float(np.log((first + 0.5) / (second + 0.5)))

    def _matrix(self, runs: Fields) -> Floats:
        """A row for each run; where there are other numbers than usual, which the form tells, there are zeros."""
        none = np.zeros(self._size)
        rows = [f.numbers if f and f.numbers.size == self._size else none for f in runs]
        return np.array(rows, np.float64).reshape(len(runs), self._size)

    def _ranks(self, matrix: Floats) -> Floats:
        """Of the varying numbers, from -1/2 to 1/2: whatever they are, infinite ones among them."""
        found = np.empty((len(matrix), self._varying.size))
        for i, j in enumerate(self._varying):
            seen, asked = self._seen[:, j], matrix[:, j]
            found[:, i] = np.searchsorted(seen, asked, "left") + np.searchsorted(seen, asked, "right")
        return found / (2 * len(self._seen)) - 0.5


def _discriminant(first: Floats, second: Floats) -> Floats:
    """The weight of each number: the difference of its means over its variance, taken for no less than one run's."""
    variance = (first.var(axis=0) + second.var(axis=0)) / 2
    weights: Floats = (first.mean(axis=0) - second.mean(axis=0)) / (variance + 0.25 / max(1, len(first)))
    return weights
