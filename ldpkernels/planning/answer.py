# SPDX-License-Identifier: Apache-2.0
"""What a mechanism answers to a setting, and what answers share: the eps of a report, the total in a trust's view."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from ldpkernels.accounting import PrivacyResult, PureEvent, local_epsilon, shuffle_epsilon
from ldpkernels.accounting.events import Mechanism, event_of
from ldpkernels.planning import calibration
from ldpkernels.planning.setting import Setting

REAL = "real arithmetic: for its floating-point numbers nothing is proved"


class Unsuitable(Exception):
    """Why a mechanism is no candidate for a setting."""


@dataclass(frozen=True)
class Answer:
    """One way to keep the total, as a mechanism's function gives it.

    Attributes:
        name: Of the mechanism, as calls have it.
        parameter: What was calibrated: the eps of a report, or the multiplier of the noise.
        call: What to run in each round, on `update` (or, where the server runs it, `updates`, one in each row).
        mean: What the server makes of the round's reports: a sentence.
        guarantee: The total for one client over all rounds, with its adversary, neighbours and assumptions.
        expected_error: The squared L2 distance to be expected between the mean that the server gets and the clients'
            mean, for the updates within radius and norm for which it is largest. What clipping moves isn't in it.
        bytes: What a client sends in a round.
        setting: What it was found for.
    """

    name: str
    parameter: float
    call: str
    mean: str
    guarantee: PrivacyResult
    expected_error: float
    bytes: int
    setting: Setting

    @property
    def epsilon(self) -> float:
        """The total for one client, never above what was asked for."""
        return self.guarantee.epsilon

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What has to be true for the total to hold."""
        return self.guarantee.assumptions

    @property
    def noise_to_signal(self) -> float:
        """The root of the expected error over the largest norm of an update."""
        return math.sqrt(self.expected_error) / self.setting.ball

    @property
    def useful(self) -> bool:
        """Whether the mean is nearer, to be expected, than 0 can be to a mean of the largest norm."""
        return self.noise_to_signal < 1

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "parameter": self.parameter,
            "call": self.call,
            "mean": self.mean,
            "expected_error": self.expected_error,
            "noise_to_signal": self.noise_to_signal,
            "useful": self.useful,
            "bytes": self.bytes,
            **self.guarantee.to_dict(),
        }

    def __str__(self) -> str:
        lines = [
            self.call,
            f"  expected error {self.expected_error:.4g}: its root is {self.noise_to_signal:.3g} of the norm"
            f" {self.setting.ball:.4g}",
            f"  {self.bytes:,} bytes a client and round; {self.mean}",
            f"  {self.guarantee}",
        ]
        return "\n".join(lines)


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


def assuming(answer: Answer, *assumptions: str) -> Answer:
    """The answer, if these assumptions are true too."""
    guarantee = answer.guarantee
    more = dataclasses.replace(guarantee, assumptions=(*guarantee.assumptions, *assumptions))
    return dataclasses.replace(answer, guarantee=more)
