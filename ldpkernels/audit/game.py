# SPDX-License-Identifier: Apache-2.0
"""The game that one weight does not show: two vectors of d weights, and whoever sees all d reports.

The likelihood ratio of two opposite vectors is a function of how many reports are "upper", so the best attack counts.
Its advantage grows with d, as the accountant says it does: eps for each weight is not eps for a client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ldpkernels.accounting import local_epsilon
from ldpkernels.audit.measure import AuditResult, measure
from ldpkernels.calls.perturb import perturb_
from ldpkernels.common.arrays import Integers
from ldpkernels.common.keys import Key, key
from ldpkernels.laws.two_point import TwoPoint


@dataclass(frozen=True)
class GameResult:
    """Any two vectors of d weights, for whoever sees the reports: the attack's epsilon and the accountant's."""

    d: int
    eps: float
    audit: AuditResult

    @property
    def measured(self) -> float:
        """The lower bound that the attack proves."""
        return self.audit.measured

    @property
    def accounted(self) -> float:
        """The upper bound that exact composition gives."""
        return self.audit.claimed


def vector_game(
    sizes: Sequence[int] = (1, 4, 16, 64, 256),
    eps: float = 0.2,
    *,
    n: int = 1 << 16,
    delta: float = 1e-5,
    seed: int = 0,
) -> list[GameResult]:
    """Play the game for vectors of several sizes: all weights at one end of the range, or all at the other.

    >>> one, many = vector_game((1, 64), eps=0.5, n=1 << 13)
    >>> one.measured < 0.5 < many.measured < many.accounted
    True
    """
    results = []
    for i, d in enumerate(sizes):
        several = d > 1  # one weight keeps its eps at delta = 0
        bound = local_epsilon(TwoPoint(eps).event, d=d, delta=delta if several else 0.0).epsilon
        attack = _uppers(d, eps, key(seed).fold_in(i))
        name = f"{d} weights at eps={eps:g}"
        audit = measure(attack, 1.0, -1.0, bound, n=n, delta=delta if several else 0.0, name=name)
        results.append(GameResult(d, eps, audit))
    return results


def _uppers(d: int, eps: float, base: Key) -> Callable[[float, int], Integers]:
    """How many of d weights at one end are reported "upper", for n clients."""
    calls = itertools.count()

    def outputs(end: float, n: int) -> Integers:
        x = np.full((n, d), end, np.float32)
        perturbed = perturb_(x, 0.0, 1.0, eps, generator=base.fold_in(next(calls)))
        uppers: Integers = np.sum(perturbed > 0, axis=1, dtype=np.int64)
        return uppers

    return outputs
