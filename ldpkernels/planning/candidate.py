# SPDX-License-Identifier: Apache-2.0
"""A call that keeps a total, with all that a reader needs to choose it; and a plan, which is some of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ldpkernels.accounting import PrivacyResult
from ldpkernels.accounting.records import rounded_up
from ldpkernels.planning.setting import TRUSTS, Setting

STEP = 10  # times as many clients, or a part of the coordinates and rounds


def _none(setting: Setting, name: str | None) -> Candidate | None:
    return None


@dataclass(frozen=True)
class Candidate:
    """One way to keep the total.

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
        again: Finds a candidate of that name for another setting (or, without a name, the best), if there is one.
    """

    name: str
    parameter: float
    call: str
    mean: str
    guarantee: PrivacyResult
    expected_error: float
    bytes: int
    setting: Setting
    again: Callable[[Setting, str | None], Candidate | None] = field(repr=False, compare=False, default=_none)

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

    def better(self) -> dict[str, float]:
        """What would lower the noise to the signal, and to what; each is calibrated anew, which takes its time."""
        setting = self.setting
        fewer, shorter = max(1, setting.weights // STEP), max(1, setting.rounds // STEP)
        changes: dict[str, tuple[Setting, str | None]] = {
            f"{STEP} times the clients": (replace(setting, clients=STEP * setting.clients), self.name),
            f"{fewer:,} weight{'s' * (fewer > 1)}": (replace(setting, weights=fewer), self.name),
            f"{shorter:,} round{'s' * (shorter > 1)}": (replace(setting, rounds=shorter), self.name),
        }
        for trust in TRUSTS[TRUSTS.index(setting.trust) + 1 :]:
            if setting.delta > 0:
                changes[f"trust={trust!r}"] = (replace(setting, trust=trust), None)
        found = {text: self.again(*change) for text, change in changes.items() if change[0] != setting}
        return {
            f"{text}: {one.name}" if one.name != self.name else text: one.noise_to_signal
            for text, one in found.items()
            if one is not None and one.noise_to_signal < self.noise_to_signal
        }

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


class Plan(list[Candidate]):
    """Candidates, the one of least expected error first; `left_out` says why others aren't among them."""

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
        if best.useful:
            share = f"{best.noise_to_signal:.3g} times the largest norm of an update"
            return f"Use {best.name!r}: the error of a round's mean is {share}."
        return (
            f"No mechanism is useful here: of the best, {best.name!r}, the error of a round's mean is"
            f" {best.noise_to_signal:.3g} times the largest norm of an update, so that 0, which costs no privacy, is"
            " the better guess."
        )

    def __str__(self) -> str:
        lines = [f"{'mechanism':26} {'error':>10} {'of norm':>9} {'bytes':>12} {'epsilon':>9}"]
        lines += [
            f"{one.name:26} {one.expected_error:10.4g} {one.noise_to_signal:9.3g} {one.bytes:12,}"
            f" {rounded_up(one.epsilon):>9}"
            for one in self
        ]
        return "\n".join([self.verdict, *lines])
