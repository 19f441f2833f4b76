# SPDX-License-Identifier: Apache-2.0
"""The two answers of this package: a privacy result, and a paper's claim held against one.

A result without its scope (who sees what, between which inputs) and its assumptions is a number and not a guarantee, so
they travel with it. What is printed is rounded up: a reader never sees less than was computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext

from ldpkernels.accounting.neighbours import Scope
from ldpkernels.common.decimals import context


def rounded_up(value: float, digits: int = 6) -> str:
    """Write a number with so many significant digits, rounded up (an excess below 1e-12 of it is dropped as rounding).

    >>> rounded_up(0.40781789), rounded_up(10647.51234), rounded_up(2e10)
    ('0.407818', '10,647.6', '20,000,000,000')
    """
    if math.isinf(value):
        return "infinite"
    with localcontext(context(digits, ROUND_CEILING)):  # formats round by it too
        decimal = +Decimal(value * (1 - 1e-12))
        return f"{decimal:.2e}" if decimal and decimal.adjusted() < -5 else f"{decimal.normalize():,f}"


def _json(value: float) -> float | str:
    """JSON has no infinity: it is written as the word."""
    return "infinity" if math.isinf(value) else value


@dataclass(frozen=True)
class PrivacyResult:
    """A guarantee: (epsilon, delta) in a scope, under assumptions.

    Attributes:
        epsilon: An upper bound on the privacy loss; infinite if there is no guarantee.
        delta: The probability that the bound excludes.
        scope: Who is held off, and which two inputs cannot be told apart: view, relation and unit.
        assumptions: What has to be true for the bound to hold.
        method: How the bound was computed.
        seen: Who is held off, if that is narrower than the view says.
        differing: How the inputs differ, if not by what the unit says.

    >>> from ldpkernels.accounting import LOCAL, Unit
    >>> print(PrivacyResult(1.0, 0.0, LOCAL.per(Unit.WEIGHT), ("one report",), "definition", seen="the server"))
    epsilon = 1 at delta = 0 against the server (local view). Neighbours: replace-one: any two values of one weight in
    one round. Assumes: one report. Method: definition.
    """

    epsilon: float
    delta: float
    scope: Scope
    assumptions: tuple[str, ...] = ()
    method: str = ""
    seen: str = ""
    differing: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.scope, Scope):
            raise TypeError(f"scope = {self.scope!r} is not a Scope: give one, such as ldpkernels.accounting.LOCAL")
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise ValueError(f"epsilon = {self.epsilon!r} is not a number of 0 or more")
        if not 0 <= self.delta <= 1:
            raise ValueError(f"delta = {self.delta!r} is outside [0, 1]")

    @property
    def adversary(self) -> str:
        """Who is held off, in words."""
        return f"{self.seen} ({self.scope.view.value} view)" if self.seen else self.scope.adversary

    @property
    def neighbouring(self) -> str:
        """Which two inputs can't be told apart, in words."""
        return f"{self.scope.relation.value}: {self.differing}" if self.differing else self.scope.neighbouring

    def __str__(self) -> str:
        assumptions = f" Assumes: {'; '.join(self.assumptions)}." if self.assumptions else ""
        method = f" Method: {self.method}." if self.method else ""
        return (
            f"epsilon = {rounded_up(self.epsilon)} at delta = {self.delta:g} against {self.adversary}. Neighbours:"
            f" {self.neighbouring}.{assumptions}{method}"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the record as plain data for JSON; an infinite epsilon is the word "infinity"."""
        return {
            "epsilon": _json(self.epsilon),
            "delta": self.delta,
            "scope": self.scope.to_list(),
            "adversary": self.adversary,
            "neighbouring": self.neighbouring,
            "assumptions": list(self.assumptions),
            "method": self.method,
        }


@dataclass(frozen=True)
class Claim:
    """A paper's number next to the true one.

    Attributes:
        name: Whose claim it is, and where it stands.
        claimed: The paper's epsilon (or alpha).
        honest: What can be proved for what the paper protects.
        violated: The preconditions of the paper's own derivation that do not hold, one sentence each.
        also: Further results that a reader needs.

    >>> from ldpkernels.accounting import LOCAL
    >>> print(Claim("A paper", 1.0, PrivacyResult(2.0, 0.0, LOCAL), ("It counts one report of two.",)))
    A paper claims 1. The honest figure: epsilon = 2 at delta = 0 against anyone who sees every report of the client,
    the server included, and can link them to the client (local view). Neighbours: replace-one: any two values of a
    client's whole update in one round.
    Violated: It counts one report of two.
    """

    name: str
    claimed: float
    honest: PrivacyResult
    violated: tuple[str, ...] = ()
    also: tuple[PrivacyResult, ...] = ()

    def __str__(self) -> str:
        violated = f"\nViolated: {' '.join(self.violated)}" if self.violated else "\nNo precondition is violated."
        also = "".join(f"\nAlso: {result}" for result in self.also)
        return f"{self.name} claims {self.claimed:.6g}. The honest figure: {self.honest}{also}{violated}"

    def to_dict(self) -> dict[str, object]:
        """Return the record as plain data for JSON."""
        return {
            "name": self.name,
            "claimed": _json(self.claimed),
            "honest": self.honest.to_dict(),
            "violated": list(self.violated),
            "also": [result.to_dict() for result in self.also],
        }
