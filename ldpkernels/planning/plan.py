# SPDX-License-Identifier: Apache-2.0
"""`plan`: every mechanism, calibrated to one total, in the order of their error.

A mechanism is an entry of `ENTRIES`. Its function turns a setting into an answer, or raises `Unsuitable` with the
reason. It finds the parameter (calibration.py), asks the accountant for the total of what the call executes, and states
the largest expected error of the mean in closed form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, overload

from ldpkernels.accounting.records import rounded_up
from ldpkernels.common import arguments
from ldpkernels.laws.registry import MECHANISMS
from ldpkernels.planning import measured, reports, sums
from ldpkernels.planning.answer import Answer, Unsuitable
from ldpkernels.planning.setting import TRUSTS, Setting, Trust
from ldpkernels.planning.silos import BELOW, Below, SiloPlan, SiloSetting, silo_plan

SLACKS = (0.0, 1e-6, 1e-4, 1e-2)
STEP = 10  # times as many clients, or a part of the coordinates and rounds


@dataclass(frozen=True)
class Entry:
    """A mechanism, the trusts under which it can run, and the function that answers a setting."""

    name: str
    trusts: tuple[Trust, ...]
    answer: Callable[[Setting, str], Answer]


MIXED: tuple[Trust, ...] = ("local", "shuffled")
COUNTED: tuple[Trust, ...] = (*MIXED, "secure-aggregation")  # what is counted can be added by a protocol of sums
ENTRIES = (
    *(
        Entry(name, COUNTED if kind.reported == "bits" else MIXED, reports.weightwise)
        for name, kind in MECHANISMS.items()
    ),
    Entry("k-of-d", MIXED, reports.k_of_d),
    Entry("privunitg", MIXED, reports.privunitg),
    Entry("projected-code", MIXED, reports.projected_code),
    Entry("gaussian", MIXED, reports.gaussian),
    Entry("distributed-gaussian", ("secure-aggregation",), sums.shares),
    Entry("skellam", ("secure-aggregation",), sums.shares),
    Entry("adaptive skellam", ("secure-aggregation",), sums.shares),
    Entry("central gaussian", ("central",), sums.central),
    Entry("adaptive discrete", ("central",), sums.central),
)


@dataclass(frozen=True)
class Candidate(Answer):
    """A call that keeps the total, with all that a reader needs to choose it; its attributes are those of an answer."""

    def better(self) -> dict[str, float]:
        """What would lower the noise-to-signal ratio, and to what. Each change is calibrated anew, which takes time."""
        setting = self.setting
        fewer, shorter = max(1, setting.weights // STEP), max(1, setting.rounds // STEP)
        changes: dict[str, tuple[Setting, str | None]] = {
            f"{STEP} times the clients": (setting.of_clients(STEP), self.name),
            f"{fewer:,} weight{'s' * (fewer > 1)}": (replace(setting, weights=fewer), self.name),
            f"{shorter:,} round{'s' * (shorter > 1)}": (replace(setting, rounds=shorter), self.name),
        }
        for trust in TRUSTS[TRUSTS.index(setting.trust) + 1 :]:
            if setting.delta > 0:
                changes[f"trust={trust!r}"] = (replace(setting, trust=trust), None)
        found = {text: _again(*change) for text, change in changes.items() if change[0] != setting}
        return {
            f"{text}: {one.name}" if one.name != self.name else text: one.noise_to_signal
            for text, one in found.items()
            if one is not None and one.noise_to_signal < self.noise_to_signal
        }


class Plan(list[Candidate]):
    """Candidates, the one of least expected error first; `left_out` says why others are not among them."""

    def __init__(self, setting: Setting, found: list[Candidate], left_out: dict[str, str]) -> None:
        super().__init__(sorted(found, key=lambda one: (one.expected_error, one.bytes)))
        self.setting = setting
        self.left_out = left_out

    @property
    def verdict(self) -> str:
        """What the best of them is worth, in a sentence."""
        if not self:
            return "No mechanism here can keep this total."
        best = self[0]
        ratio, run = best.noise_to_signal, best.noise_to_signal_of_run
        rounds = f", and {run:.3g} times over all {self.setting.rounds:,} rounds" if self.setting.rounds > 1 else ""
        return (
            f"Use {best.name!r}: the noise of a round's mean is {ratio:.3g} times the largest norm of an update"
            f"{rounds}. {measured.said(run)}"
        )

    def __str__(self) -> str:
        lines = [f"{'mechanism':22} {'error':>10} {'of norm':>9} {'of run':>9} {'bytes':>12} {'epsilon':>9}"]
        lines += [
            f"{one.name:22} {one.expected_error:10.4g} {one.noise_to_signal:9.3g} {one.noise_to_signal_of_run:9.3g}"
            f" {one.bytes:12,} {rounded_up(one.epsilon):>9}"
            for one in self
        ]
        return "\n".join([self.verdict, *lines])


@overload
def plan(
    epsilon: float,
    delta: float = ...,
    *,
    unit: Literal["client"] = ...,
    rounds: int,
    clients: int,
    weights: int,
    trust: Trust,
    radius: float | None = ...,
    norm: float | None = ...,
    participation: float = ...,
    at_least: int | None = ...,
    invited: int | None = ...,
    threshold: int | None = ...,
) -> Plan: ...


@overload
def plan(
    epsilon: float,
    delta: float = ...,
    *,
    unit: Below,
    rounds: int,
    examples: int,
    batch: float,
    epochs: float | None = ...,
    most: int | None = ...,
    clients: int | None = ...,
    weights: int | None = ...,
    norm: float = ...,
) -> SiloPlan: ...


def plan(
    epsilon: float, delta: float = 1e-5, *, unit: Literal["client", "example", "person"] = "client", **setting: object
) -> Plan | SiloPlan:
    """The calls that keep a total epsilon for one client over all rounds, the one of least expected error first.

    The error is that of a round's mean, not of one report. Every candidate says what a client sends, against whom its
    total holds, and under which assumptions. Needs SciPy and dp-accounting (`pip install ldpkernels[accounting]`).

    With unit="example" or "person" the total is for one record, or one person with all records, of a silo that trains
    by DP-SGD: docs/silos.md. Such a plan takes rounds, examples, batch, epochs and most; for shares of noise also
    clients, weights and norm.

    Args:
        epsilon: The total for everything that one client ever sends: between any two inputs of it, or, if only sums are
            seen, an input and none. Every candidate's `guarantee` says which, and against whom.
        delta: The probability that the total excludes; 0 only with trust="local".
        unit: Who is protected: a "client", or inside a silo an "example" or a "person".
        rounds: The most rounds in which the client takes part.
        clients: How many report in a round and do not collude: the mean is theirs. With participation below 1, their
            number on average. Without at_least and threshold every round needs all of them.
        weights: Numbers in an update.
        trust: "local": no one. "shuffled": a shuffler that mixes the reports of every position (or whole reports, for
            mechanisms of vectors). "secure-aggregation": a protocol that shows nothing but sums. "central": a server
            that sees all updates.
        radius: The largest coordinate of an update, to which each is clipped.
        norm: The L2 norm to which an update is clipped. Give radius, norm or both. Neither may come from private data.
        participation: The probability of taking part in a round, drawn anew for each. With trust="central" the draw is
            kept secret, which makes the total smaller. Otherwise the total is that of a client who is always drawn.
            Behind a shuffler and in secure sums it is calibrated for the smallest round to be expected, and a tenth of
            delta pays for smaller ones.
        at_least: Behind a shuffler and in secure sums, the fewest honest clients of a round, among whom each client
            hides. The server drops a smaller round (`LdpFedAvg(at_least=...)`).
        invited: The most clients that may upload to a secure sum, which its integers must hold. By default as many as
            may come, and one more.
        threshold: The fewest clients whose secure sum is opened, of which one may collude; behind a shuffler, that of
            the sum that serves in its place. By default all honest ones, and one more.
        examples: Inside a silo, how many examples (or persons) it holds.
        batch: How many of them are in a batch, on average. Silos of other sizes keep the rate, and so the noise.
        epochs: How often a round goes through them. None is one step a round.
        most: With unit="person", how many records of a person are taken in a step.

    >>> import ldpkernels
    >>> found = ldpkernels.plan(8.0, rounds=10, clients=50_000, weights=2_000, trust="local", radius=0.1, norm=1.0)
    >>> print(found.verdict.partition(",")[0])
    Use 'privunitg': the noise of a round's mean is 0.628 times the largest norm of an update
    >>> found[0].call, found[0].epsilon <= 8
    ('ldpkernels.perturb_vector(update, 0.80004, norm=1.0)', True)
    """
    arguments.choice("unit", unit, ("client", *BELOW))
    make: Callable[..., Setting | SiloSetting] = partial(Setting, epsilon, delta)
    if unit != "client":
        make = partial(SiloSetting, epsilon, delta, unit)
    needed = inspect.signature(make)
    try:
        needed.bind(**setting)
    except TypeError as wrong:
        raise TypeError(f"plan() with unit={unit!r}: {wrong}; it takes {', '.join(needed.parameters)}") from None
    found = make(**setting)
    return planned(found) if isinstance(found, Setting) else silo_plan(found)


def planned(setting: Setting) -> Plan:
    """Return the plan of a setting."""
    found = {entry.name: _candidate(entry, setting) for entry in ENTRIES if setting.trust in entry.trusts}
    candidates = [one for one in found.values() if isinstance(one, Candidate)]
    return Plan(setting, candidates, {name: one for name, one in found.items() if isinstance(one, str)})


def _again(setting: Setting, name: str | None) -> Candidate | None:
    """The candidate of a name, or the best, for a setting."""
    if name is None:
        return next(iter(planned(setting)), None)
    found = _candidate(next(entry for entry in ENTRIES if entry.name == name), setting)
    return found if isinstance(found, Candidate) else None


@lru_cache(maxsize=512)
def _candidate(entry: Entry, setting: Setting) -> Candidate | str:
    """An entry's candidate, whose total is the accountant's for what is executed, or the reason why there is none.

    What is executed is a little less than what was calibrated; where the accountant's rounding is larger than the
    difference, the target is lowered.
    """
    for slack in SLACKS:
        try:
            answer = entry.answer(replace(setting, epsilon=setting.epsilon * (1 - slack)), entry.name)
        except Unsuitable as reason:
            return str(reason)
        if answer.epsilon <= setting.epsilon:
            return Candidate(**{**vars(answer), "setting": setting})
    return f"the accountant's figures are too uneven near epsilon = {setting.epsilon:g}"
