# SPDX-License-Identifier: Apache-2.0
"""What a ledger's lines say: a header, releases that are declared, rounds that spend one, the ends of torn lines."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from ldpkernels.accounting import arguments
from ldpkernels.accounting.events import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    PureEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    SkellamEvent,
    event_from_dict,
)

FORMAT = 2


@dataclass(frozen=True)
class Header:
    """The budget, and how rounds are composed."""

    epsilon: float
    delta: float
    method: str


@dataclass(frozen=True)
class Declared:
    """A release that rounds may spend; it is durable before the first of them."""

    event: Event
    times: int


@dataclass(frozen=True)
class Spent:
    """One round of the release that was declared as number `declared`, and epsilon after it."""

    round: int
    declared: int
    epsilon: float


@dataclass(frozen=True)
class Torn:
    """The lines before this one don't verify, and stand for so many rounds at most."""

    rounds: int


Record: TypeAlias = Header | Declared | Spent | Torn


def text_of(record: Record) -> bytes:
    """The record as JSON, in the one form that verifies."""
    data: dict[str, object]
    if isinstance(record, Header):
        data = {"type": "ledger", "format": FORMAT, **vars(record)}
    elif isinstance(record, Declared):
        data = {"type": "declare", "event": record.event.to_dict(), "times": record.times}
    else:
        data = {"type": "spend" if isinstance(record, Spent) else "torn", **vars(record)}
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def record_of(data: object) -> Record:
    """Read what `text_of` wrote; a ValueError where it is something else."""
    match data:
        case {"type": "ledger", "format": 2, "epsilon": float(epsilon), "delta": float(delta), "method": str(method)}:
            return Header(epsilon, delta, method)
        case {"type": "declare", "event": dict(event), "times": int(times)}:
            return Declared(event_from_dict(event), arguments.count("times", times))
        case {"type": "spend", "round": int(number), "declared": int(declared), "epsilon": float(epsilon)}:
            if not (math.isfinite(epsilon) and epsilon >= 0):
                raise ValueError(f"epsilon = {epsilon!r} is not a finite number of 0 or more")
            return Spent(arguments.count("round", number), arguments.count("declared", declared, 0), epsilon)
        case {"type": "torn", "rounds": int(rounds)}:
            return Torn(arguments.count("rounds", rounds))
    raise ValueError(f"{data!r} is no record of a ledger")


def dearest(defined: list[Declared], method: str) -> list[int]:
    """What a torn line is charged as: every release that costs no less than another in all compositions.

    By basic composition that is the dearest one. By the others the order can depend on what else is spent, so all are
    charged but those that another one covers.
    """
    if method == "basic":
        costs = [Fraction(d.event.pure_epsilon) * d.times for d in defined]
        return [max(range(len(costs)), key=costs.__getitem__)] if costs else []
    harms = [_harm(d) for d in defined]
    return [
        i
        for i, (kind, harm) in enumerate(harms)
        if not any(
            kind == other and all(a <= b for a, b in zip(harm, worse, strict=True)) and (harm != worse or j < i)
            for j, (other, worse) in enumerate(harms)
            if j != i
        )
    ]


def _harm(release: Declared) -> tuple[str, tuple[float, ...]]:
    """Numbers none of which can grow without harm: a release with larger ones covers it."""
    event, times = release.event, release.times
    if isinstance(event, GaussianEvent):
        return "gaussian", (times / event.noise_multiplier / event.noise_multiplier,)
    if isinstance(event, SampledGaussianEvent):
        return "sampled", (-event.noise_multiplier, event.q, times)
    if isinstance(event, ConcentratedEvent):
        return "concentrated", (event.rho * times,)
    if isinstance(event, SkellamEvent):
        return "skellam", (-event.variance, event.l2, event.l1, times)
    if isinstance(event, ShuffledEvent):
        return "shuffled", (event.eps, -event.clients, event.reports == PureEvent.kind, times)
    return "pure", (event.pure_epsilon, times)
