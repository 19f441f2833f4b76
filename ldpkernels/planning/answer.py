# SPDX-License-Identifier: Apache-2.0
"""What a mechanism answers to a setting, and what answers share: the eps of a report, the total in a trust's view."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from ldpkernels.accounting import PrivacyResult, PureEvent, View, local_epsilon, shuffle_epsilon
from ldpkernels.accounting.events import Mechanism, event_of
from ldpkernels.accounting.shuffle import Method, shuffled_epsilon
from ldpkernels.planning import calibration
from ldpkernels.planning.deployment import Deployment, deployment, written
from ldpkernels.planning.setting import HIDING, Setting

REAL = "real arithmetic: for its floating-point numbers nothing is proved"


class Unsuitable(Exception):
    """Why a mechanism is not a candidate for a setting."""


@dataclass(frozen=True)
class Answer:
    """One way to keep the total, as a mechanism's function gives it.

    Attributes:
        name: The mechanism's name in calls.
        parameter: What was calibrated: the eps of a report, or the multiplier of the noise.
        call: What to run in each round, on `update` (or, if the server runs it, on `updates`, one in each row).
        mean: What the server makes of the round's reports: a sentence.
        guarantee: The total for one client over all rounds, with its adversary, neighbours and assumptions.
        expected_error: The expected squared L2 distance between the mean that the server gets and the clients' mean,
            for the worst updates within radius and norm. It does not include what clipping moves.
        bytes: What a client sends in a round.
        setting: The setting that it answers.
        law: The mechanism itself, with the parameter: `law.event`, composed over the rounds (and over the weights, if
            each has a report), is the total. None if a server draws clients in secret.
    """

    name: str
    parameter: float
    call: str
    mean: str
    guarantee: PrivacyResult
    expected_error: float
    bytes: int
    setting: Setting
    law: Mechanism | None = None

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
        """The root of the expected error of a round's mean, over the largest norm of an update."""
        return math.sqrt(self.expected_error) / self.setting.ball

    @property
    def noise_to_signal_of_run(self) -> float:
        """The same for all rounds together, if all updates point the same way: signal adds up, noise averages."""
        return self.noise_to_signal / math.sqrt(self.setting.rounds)

    @property
    def deploy(self) -> Deployment:
        """The lines for Flower's client and server, or for ranks of torch.distributed, that keep this total."""
        return deployment(self.setting, self.law, self.adaptive)

    @property
    def adaptive(self) -> bool:
        """Whether the norm is the plan's only in the first round, and then follows the clients' median."""
        return self.name.startswith("adaptive ")

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "parameter": self.parameter,
            "call": self.call,
            "mean": self.mean,
            "expected_error": self.expected_error,
            "noise_to_signal": self.noise_to_signal,
            "noise_to_signal_of_run": self.noise_to_signal_of_run,
            "bytes": self.bytes,
            "law": None if self.law is None else written(self.law),
            "deploy": str(self.deploy),
            **self.guarantee.to_dict(),
        }

    def __str__(self) -> str:
        lines = [
            self.call,
            f"  expected error {self.expected_error:.4g}: its root is {self.noise_to_signal:.3g} of the norm"
            f" {self.setting.ball:.4g}, and {self.noise_to_signal_of_run:.3g} over all rounds",
            f"  {self.bytes:,} bytes a client and round; {self.mean}",
            f"  {self.guarantee}",
        ]
        return "\n".join(lines)


def report_eps(setting: Setting, positions: int, law_of: Callable[[float], Mechanism], *, two_outcomes: bool) -> float:
    """The largest eps of a report by this law, for so many of them in every round."""
    reports = positions * setting.rounds
    # whoever sees the reports mixed or added sees no more than who sees them one by one
    found = calibration.local_eps(reports, setting.kept_delta, setting.epsilon)
    if setting.trust in HIDING:
        method: Method = "exact" if two_outcomes else "stronger_clones"
        mixed = calibration.shuffled_eps(setting.sure, reports, setting.kept_delta, setting.epsilon, method)
        if mixed and mixed > (found or 0.0):
            found = calibration.executed(
                mixed, lambda eps: _mixed(setting, law_of(eps), reports, method), setting.epsilon
            )
    if not found:
        raise Unsuitable(
            f"needs an eps below {calibration.LEAST_EPS:g} a report, which thresholds of 32 bits cannot express"
        )
    return found


def _mixed(setting: Setting, law: Mechanism, reports: int, method: Method) -> float:
    """The total of so many mixed reports, by the numbers that are executed."""
    eps = event_of(law).pure_epsilon
    return shuffled_epsilon(eps, setting.sure, reports, setting.kept_delta, method, "best")


def guarantee_of(setting: Setting, law: Mechanism, positions: int) -> PrivacyResult:
    """The total of what is executed, in the view that the trust leaves."""
    delta = setting.kept_delta
    result = local_epsilon(law, d=positions, rounds=setting.rounds, delta=delta)
    if setting.trust in HIDING and isinstance(event_of(law), PureEvent) and result.epsilon > setting.epsilon:
        mixed = shuffle_epsilon(law, setting.sure, d=positions, rounds=setting.rounds, delta=delta)
        if mixed.epsilon < result.epsilon:
            result = mixed
            if setting.trust == "secure-aggregation":
                result = of_sums(setting, mixed)
            elif positions == 1:
                reports = f"{setting.rounds:,} reports of each client in all"
                kept = (WHOLE, mixed.assumptions[1], reports, mixed.assumptions[3])
                result = dataclasses.replace(mixed, assumptions=kept)
    return in_rounds(setting, result)


def in_rounds(setting: Setting, result: PrivacyResult) -> PrivacyResult:
    """The same, with what is assumed of who comes to a round, and what that costs of delta."""
    said: tuple[str, ...] = ()
    if setting.participation < 1 and setting.trust != "central":
        said = ("who takes part is seen: the total is that of a client who takes part in every round",)
    if setting.drawn:
        said += (
            f"a client's rounds have at least {setting.sure:,} clients each, but with a probability of"
            f" {setting.excluded:g}, which is a part of delta: each of {setting.population:,} takes part with"
            f" probability {setting.participation:.6g}, by a draw of its own",
        )
    elif setting.trust in HIDING and setting.sure < setting.clients:
        said += (f"rounds of fewer than {setting.sure:,} honest clients are dropped before anything is seen",)
    assumptions = (*result.assumptions, *said)
    return dataclasses.replace(result, delta=result.delta + setting.excluded, assumptions=assumptions)


FOLLOWED = "a server that follows the protocol, or a roster of the clients' signing keys"
WHOLE = "an ideal shuffler of whole reports, which can't be told apart nor linked from round to round"


def of_sums(setting: Setting, mixed: PrivacyResult) -> PrivacyResult:
    """The total of mixed reports in the view of a secure sum, which shows what a shuffler leaves."""
    sums = "a protocol that shows nothing of the reports but, at each position, how many clients sent what"
    honest = f"the reports of at least {setting.sure:,} honest clients are in every sum"
    assumptions = (sums, FOLLOWED, *mixed.assumptions[1:3], honest, *mixed.assumptions[4:])
    return dataclasses.replace(mixed, scope=dataclasses.replace(mixed.scope, view=View.SUMMED), assumptions=assumptions)


def assuming(answer: Answer, *assumptions: str) -> Answer:
    """The answer, with these assumptions added."""
    guarantee = answer.guarantee
    more = dataclasses.replace(guarantee, assumptions=(*guarantee.assumptions, *assumptions))
    return dataclasses.replace(answer, guarantee=more)
