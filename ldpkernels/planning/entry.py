# SPDX-License-Identifier: Apache-2.0
"""An entry of the plan's table, and what entries share: the eps of a report, and the total in the view of a trust."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from ldpkernels.accounting import PrivacyResult, PureEvent, local_epsilon
from ldpkernels.accounting.events import Mechanism, event_of
from ldpkernels.accounting.shuffle import shuffle_epsilon
from ldpkernels.planning import calibration
from ldpkernels.planning.candidate import Candidate
from ldpkernels.planning.setting import Setting, Trust

REAL = "real arithmetic: for its floating-point numbers nothing is proved"


class Unsuitable(Exception):
    """Why a mechanism is no candidate for a setting."""


@dataclass(frozen=True)
class Entry:
    """A mechanism, the trusts under which it can run, and how it answers."""

    name: str
    trusts: tuple[Trust, ...]
    candidate: Callable[[Setting], Candidate]


def report_eps(setting: Setting, positions: int, *, two_outcomes: bool) -> float:
    """The largest eps of a report, for so many of them in every round."""
    reports = positions * setting.rounds
    # whoever sees the reports mixed or added sees no more than who sees them one by one
    found = calibration.local_eps(reports, setting.delta, setting.epsilon)
    if setting.trust != "local":
        method = "exact" if two_outcomes else "stronger_clones"
        mixed = calibration.shuffled_eps(setting.clients, reports, setting.delta, setting.epsilon, method)
        found = max(found or 0.0, mixed or 0.0)
    if not found:
        raise Unsuitable(f"needs an eps below {calibration.LEAST_EPS:g} a report, which no threshold of 32 bits has")
    return found


def guarantee_of(setting: Setting, mechanism: Mechanism, positions: int) -> PrivacyResult:
    """The total of what is executed, in the view that the trust leaves."""
    result = local_epsilon(mechanism, d=positions, rounds=setting.rounds, delta=setting.delta)
    if setting.trust != "local" and isinstance(event_of(mechanism), PureEvent):
        mixed = shuffle_epsilon(mechanism, setting.clients, d=positions, rounds=setting.rounds, delta=setting.delta)
        if mixed.epsilon < result.epsilon:
            result = mixed
            if setting.trust == "secure-aggregation":
                result = dataclasses.replace(mixed, adversary=SUMS_ADVERSARY, assumptions=_of_sums(setting, mixed))
            elif positions == 1:
                reports = f"{setting.rounds:,} reports of each client in all"
                kept = (WHOLE, mixed.assumptions[1], reports, mixed.assumptions[3])
                result = dataclasses.replace(mixed, assumptions=kept)
    return dataclasses.replace(result, assumptions=(*result.assumptions, *seen(setting)))


def seen(setting: Setting) -> tuple[str, ...]:
    """What is assumed where a draw of the clients is no secret."""
    if setting.participation == 1:
        return ()
    return ("who takes part is seen: the total is that of a client who takes part in every round",)


SUMS_ADVERSARY = "anyone who sees the sums, the server included, and knows the inputs of all the other clients"
WHOLE = "an ideal shuffler of whole reports, which can't be told apart nor linked from round to round"


def _of_sums(setting: Setting, mixed: PrivacyResult) -> tuple[str, ...]:
    sums = "a protocol that shows nothing of the reports but, at each position, how many ones there are"
    return (
        sums,
        *mixed.assumptions[1:3],
        f"the reports of at least {setting.clients:,} honest clients are in every sum",
    )


def assuming(candidate: Candidate, *assumptions: str) -> Candidate:
    """The same, if these are true too."""
    guarantee = candidate.guarantee
    more = dataclasses.replace(guarantee, assumptions=(*guarantee.assumptions, *assumptions))
    return dataclasses.replace(candidate, guarantee=more)
