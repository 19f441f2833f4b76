# SPDX-License-Identifier: Apache-2.0
"""The mechanisms that randomise each weight on its own. `perturb_` and `report` take these names.

A mechanism is an import, its name in `MechanismName`, which type checkers read only where it is written out, and its
class in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, SupportsFloat, get_args

import numpy as np

from ldpkernels import _native
from ldpkernels.common.arrays import Laws
from ldpkernels.common.dtypes import Dtype
from ldpkernels.laws.hybrid import Hybrid
from ldpkernels.laws.piecewise import Piecewise
from ldpkernels.laws.sign import Sign
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.laws.weightwise import Output, Weightwise, checked_eps

MechanismName = Literal["two-point", "piecewise", "hybrid", "sign"]
KINDS: tuple[type[Weightwise], ...] = (TwoPoint, Piecewise, Hybrid, Sign)
MECHANISMS = {kind.name: kind for kind in KINDS}
NAMES: tuple[MechanismName, ...] = get_args(MechanismName)  # those of KINDS, for a type checker


def mechanism_named(name: str, eps: SupportsFloat) -> Weightwise:
    """The mechanism that `perturb_` and `report` run."""
    try:
        return _executed(name, eps)  # type: ignore[arg-type]  # of what has no hash, the error is below
    except TypeError:
        checked_eps(eps)  # what has no hash is not a number either
        raise


def kind_named(name: str) -> type[Weightwise]:
    """The class of a mechanism."""
    if name not in MECHANISMS:
        names = [repr(known) for known in MECHANISMS]
        raise ValueError(f"mechanism={name!r} must be {', '.join(names[:-1])} or {names[-1]}")
    return MECHANISMS[name]


@lru_cache(maxsize=256, typed=True)  # True is no 1.0
def _executed(name: str, eps: SupportsFloat) -> Weightwise:
    return kind_named(name)(checked_eps(eps)).executed


def executed(
    name: str, eps: SupportsFloat, c: Sequence[float], r: Sequence[float], dtypes: Sequence[Dtype], output: Output
) -> tuple[Weightwise, Laws]:
    """The mechanism that runs, and what its kernel executes for each tensor."""
    mechanism = mechanism_named(name, eps)
    return mechanism, _law_table(mechanism, tuple(c), tuple(r), tuple(dtypes), output)


def executed_ranges(
    mechanism: Weightwise, c: tuple[float, ...], r: tuple[float, ...], dtypes: tuple[Dtype, ...]
) -> list[tuple[float, float]]:
    """C and R of each tensor as reports execute them; every check of the ranges."""
    return [_executed_range(mechanism, *one) for one in zip(c, r, dtypes, strict=True)]


@lru_cache(maxsize=4096)
def _executed_range(mechanism: Weightwise, c: float, r: float, dtype: Dtype) -> tuple[float, float]:
    return mechanism.executed_range(c, r, dtype)


def law_table(
    mechanism: Weightwise, c: Sequence[float], r: Sequence[float], dtypes: Sequence[Dtype], output: Output
) -> Laws:
    """What a mechanism's kernel executes for each tensor; every check of the ranges."""
    return _law_table(mechanism, tuple(c), tuple(r), tuple(dtypes), output)


@lru_cache(maxsize=64)
def _law_table(
    mechanism: Weightwise, c: tuple[float, ...], r: tuple[float, ...], dtypes: tuple[Dtype, ...], output: Output
) -> Laws:
    rows = [mechanism.record(ci, ri, d, output) for ci, ri, d in zip(c, r, dtypes, strict=True)]
    table = np.array(rows, dtype=_native.LAWS[mechanism.kernel])
    table.flags.writeable = False  # it is shared
    return table


@dataclass(frozen=True)
class Choice:
    """What `best_mechanism` found: the name of the mechanism, and the variances by which it was chosen."""

    eps: float
    name: str
    worst: dict[str, float]  # largest variance over the range [-1, 1] of each mechanism that can run
    center: dict[str, float]  # variance at its center

    def __str__(self) -> str:
        rows = [f"{'mechanism':12}{'worst case':>12}{'at the center':>15}"]
        rows += [f"{name:12}{v:12.4g}{self.center[name]:15.4g}" for name, v in self.worst.items()]
        return "\n".join([self._sentence(), *rows])

    def _sentence(self) -> str:
        best = self.worst[self.name]
        others = {n: v for n, v in self.worst.items() if n != self.name}
        if not others:
            return f"At eps={self.eps:g} use {self.name!r}: no other can be executed."
        than = ", ".join(f"{n} {v / best:.3g} times that" for n, v in others.items())
        return f"At eps={self.eps:g} use {self.name!r}: its worst-case variance is {best:.4g} r^2 ({than})."


def best_mechanism(eps: float) -> Choice:
    """The mechanism of least worst-case variance at eps for each weight, from the laws that are executed.

    "two-point" sends one bit a weight and the others a byte. `perturb_` and `report` take the name.

    >>> print(best_mechanism(4.0))
    At eps=4 use 'hybrid': its worst-case variance is 0.1559 r^2 (two-point 6.9 times that, piecewise 1.04 times that).
    mechanism     worst case  at the center
    two-point          1.076          1.076
    piecewise         0.1618        0.08606
    hybrid            0.1559         0.1558
    """
    eps = checked_eps(eps)
    found = {name: kind.report_variances(eps) for name, kind in MECHANISMS.items()}
    worst = {name: v[0] for name, v in found.items() if v is not None}
    center = {name: v[1] for name, v in found.items() if v is not None}
    return Choice(eps, min(worst, key=lambda name: worst[name]), worst, center)
