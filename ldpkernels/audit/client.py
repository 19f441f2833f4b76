# SPDX-License-Identifier: Apache-2.0
"""The audit of a whole client: everything that leaves it, on two inputs that differ in one client's data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ldpkernels.accounting import composed_epsilon
from ldpkernels.audit.attacks import Attack
from ldpkernels.audit.findings import certain, repeated
from ldpkernels.audit.measure import ALPHA, AuditFailure, AuditResult, reach, told_apart
from ldpkernels.audit.observed import Account, joined
from ldpkernels.audit.runs import Draws, Run, fields_of, recorded
from ldpkernels.common import arguments

Data = TypeVar("Data")
Seen = tuple[list[Run], list[Run]]

DELTA = 1e-5  # of the account of reports, where nobody says another
FEWEST_RUNS = 100
ROUNDING = 1e-9  # of two figures for the same rounds


@dataclass(frozen=True)
class ClientAudit:
    """What was seen of a client on two inputs, which may be any two, by whoever sees all that leaves.

    Attributes:
        name: The client.
        claimed: The epsilon that it claims for all that leaves in a run.
        source: Who claims it: "declared", "its ledger" or "its reports".
        delta: The probability that this epsilon excludes.
        results: For each part of the answers, what it proves and what is claimed of it. All of them together are wrong
            with probability 1e-6.
        findings: Sentences about what no epsilon excuses: something that always happens under one input and never under
            the other, noise that repeats, an account that charges too little.
        doubts: Sentences about single numbers that look like such leaks, but could be chance at so large a claim.
        times: What the duration of a run proves. No epsilon covers it.
        runs: How often the client was run under each input.
        reach: The largest epsilon that so many runs could have proved.
    """

    name: str
    claimed: float
    source: str
    delta: float
    results: list[AuditResult]
    findings: list[str]
    doubts: list[str]
    times: AuditResult
    runs: int
    reach: float

    @property
    def ok(self) -> bool:
        """Whether nothing was seen to leak."""
        return not self.findings and all(result.ok for result in self.results)

    @property
    def measured(self) -> float:
        """The largest lower bound on what the client leaks in a run. Its duration is not included."""
        return max(result.measured for result in self.results)

    @property
    def leaks(self) -> list[str]:
        """A sentence for each leak."""
        return [*self.findings, *(str(result) for result in self.results if not result.ok)]

    @property
    def remarks(self) -> list[str]:
        """What this audit could not decide or see."""
        said = [*self.doubts]
        if self.claimed > self.reach:
            said.append(
                f"{self.runs} runs can prove an epsilon of {self.reach:.3g} at most, and {self.claimed:.4g} is claimed:"
                " noise that is too small for the claim may pass. Audit this client with fewer weights or a smaller eps"
            )
        if self.ok and self.measured == 0:
            said.append(
                "nothing told the inputs apart, so that this audit saw nothing: give data that differ more, and look"
                " into the client's log, as a training that fails is reported as no change"
            )
        return said

    def __str__(self) -> str:
        lines = [f"{self.name}: epsilon is at least {self.measured:.4g}, {self.source}: {self.claimed:.4g}."]
        return "\n".join(lines + self.leaks + self.remarks)

    def check(self) -> ClientAudit:
        """Return this audit, or raise an AuditFailure that says what leaks."""
        if not self.ok:
            raise AuditFailure("\n".join(self.leaks))
        return self


def audit_client(
    client: Callable[[Data], object],
    a: Data,
    b: Data,
    *,
    eps: float | None = None,
    delta: float | None = None,
    runs: int = 2000,
    seed: int = 0,
    name: str = "the client",
) -> ClientAudit:
    """Run a client of yours many times on either of two inputs, and tell them apart by anything that leaves it.

    `client(data)` is one run: it trains, and returns what would leave: bytes, reports, arrays, tensors, numbers, text,
    or lists and mappings of them. An iterator yields one message after another. An exception counts as leaving too.
    `ldpkernels.flower.rehearsed` makes such a function from a Flower ClientApp. a and b are any two inputs of one
    client. Choose them as far apart as data can be, because an audit only sees what these two show. The client must not
    change them.

    During the audit, ledgers of `LdpMod` and `LdpFilter` are kept in memory, a new one for each run, so that nothing of
    a real budget is spent. The client's logs are switched off, as they would stay with it.

    If reports are all that is accounted for, everything else that leaves must not depend on the data at all.

    Args:
        client: The function.
        a: One input.
        b: The other input.
        eps: What the client claims for a whole run. None takes what its ledger says of a run or, without a ledger, what
            its reports add up to.
        delta: The probability that the claim excludes. The default is 0 with eps and 1e-5 for reports; a ledger has its
            own.
        runs: Runs under each input: a quarter to learn, a quarter to choose, and half to judge.
        seed: It decides the order of the runs.
        name: What messages call the client.

    >>> rng = np.random.default_rng(0)
    >>> def client(data):
    ...     return {"mean": np.mean(data) + rng.laplace(scale=1.0), "examples": len(data)}
    >>> found = audit_client(client, [0.0, 0.0], [1.0, 1.0], eps=1.0, runs=400)
    >>> found.ok
    True
    >>> print(*audit_client(client, [0.0], [1.0, 1.0], eps=1.0, runs=400).findings)
    examples is always 1 under the first input and always 2 under the second, in 400 runs each: nothing random is in it
    """
    runs = arguments.count("runs", runs, FEWEST_RUNS)
    if eps is not None:
        eps = arguments.non_negative("eps", eps)
    if delta is not None and not 0 <= delta < 1:
        raise ValueError(f"delta={delta} must be at least 0 and below 1")
    seen = recorded(client, (a, b), runs, seed)
    return _judged(name, seen, _claim_of(seen, eps, delta))


@dataclass(frozen=True)
class _Claim:
    """What is claimed of a run, and what its reports add up to at the same delta."""

    epsilon: float
    delta: float
    source: str
    reports: float

    @property
    def beside(self) -> tuple[float, float]:
        """Epsilon and delta that are left for what is not a report: none, where reports are all that is accounted."""
        if self.reports > 0 and self.epsilon <= self.reports * (1 + ROUNDING):
            return 0.0, 0.0
        return self.epsilon, self.delta


def _claim_of(seen: Seen, eps: float | None, delta: float | None) -> _Claim:
    runs = [*seen[0], *seen[1]]
    accounts = {tuple(f.account for f in one.answer.fields.values() if f.account) for one in runs}
    charged = [(one.epsilon, one.delta) for one in runs if one.epsilon is not None]
    if eps is not None:
        source, claimed, delta = "declared", eps, delta or 0.0
    elif charged:
        (claimed, delta), source = max(charged), "its ledger"
    elif any(accounts):
        source, claimed, delta = "its reports", None, DELTA if delta is None else delta
    else:
        raise ValueError(
            "the client's claim is unknown, because it has no ledger and sends no report of this package: pass eps"
        )
    own = max(_composed(account, delta) for account in accounts)
    return _Claim(own if claimed is None else claimed, delta, source, own)


def _composed(accounts: tuple[Account, ...], delta: float) -> float:
    return composed_epsilon([(account.event, account.times) for account in accounts], delta) if accounts else 0.0


def _judged(name: str, seen: Seen, claim: _Claim) -> ClientAudit:
    fields, runs = fields_of(seen), len(seen[0])
    reports = {path: d for path, d in fields.items() if any(f and f.account for f in (*d[0], *d[1]))}
    rest = {path: draws for path, draws in fields.items() if path not in reports}
    rest["the form of the answers"] = [one.answer.form for one in seen[0]], [one.answer.form for one in seen[1]]
    together = _together(reports or fields)
    alpha = ALPHA / (3 * (len(rest) + len(reports) + 1))  # a third for events, for what never varies, for repetitions
    results = [_told(path, draws, *claim.beside, alpha) for path, draws in rest.items() if _differs(draws)]
    if reports or len(fields) > 1:
        words = "all reports together" if reports else "all numbers together"
        results.append(_told(words, together, claim.epsilon, claim.delta, alpha))
    for path, draws in reports.items():
        each = {f.account.each for f in (*draws[0], *draws[1]) if f and f.account}
        if (most := max(each, key=lambda eps: eps or 0.0)) is not None:
            results.append(_told(f"one number of {path}", draws, most, 0.0, alpha, each=True))
    leaks, doubts = certain(rest, *claim.beside, alpha)
    findings = [*leaks, *repeated(together, fields, ALPHA / 3)]
    if claim.reports > claim.epsilon * (1 + ROUNDING):
        findings.append(
            f"its reports add up to epsilon = {claim.reports:.4g} at delta = {claim.delta:g}, and {claim.source} says "
            f"{claim.epsilon:.4g}"
        )
    half = runs // 2
    first, second = (np.array([one.seconds for one in side]) for side in seen)
    choose, judge = {"seconds": (first[:half], second[:half])}, {"seconds": (first[half:], second[half:])}
    times = told_apart("duration of a run", math.inf, choose, judge)
    most_seen = reach(runs - 2 * (runs // 4), claim.delta, alpha)
    return ClientAudit(
        name, claim.epsilon, claim.source, claim.delta, results, findings, doubts, times, runs, most_seen
    )  # fmt: skip


def _told(name: str, draws: Draws, claimed: float, delta: float, alpha: float, each: bool = False) -> AuditResult:
    """Learn an attack from a quarter of the runs, choose an event on the next, and judge it on the rest."""
    quarter = len(draws[0]) // 4
    learn, choose, judge = (
        (draws[0][part], draws[1][part])
        for part in (slice(quarter), slice(quarter, 2 * quarter), slice(2 * quarter, None))
    )
    attack = Attack(learn)
    look = attack.pooled if each else attack.columns
    return told_apart(name, claimed, look(choose), look(judge), delta, alpha)


def _differs(draws: Draws) -> bool:
    """Whether it was ever anything else."""
    return len({f and f.digest for runs in draws for f in runs}) > 1


def _together(fields: dict[str, Draws]) -> Draws:
    """All fields of a run as one."""
    first, second = (
        [joined([f for f in one if f]) for one in zip(*(draws[i] for draws in fields.values()), strict=True)]
        for i in range(2)
    )
    return first, second
