# SPDX-License-Identifier: Apache-2.0
"""`plan` for an example or a person of a silo: the noise of DP-SGD's steps, and whom it holds off.

Who trains is a silo (a hospital, a bank), and who is protected are those whose records it has: docs/silos.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ldpkernels.accounting import SILO, SUMMED, Event, PrivacyResult, Relation, Unit, composed_epsilon
from ldpkernels.accounting.records import rounded_up
from ldpkernels.common import arguments
from ldpkernels.laws.distributed import FAR_APART, WRAP, DistributedGaussian, executed_row, rounded_square
from ldpkernels.laws.noise_table import MOST_STDDEV
from ldpkernels.planning import calibration
from ldpkernels.planning.answer import FOLLOWED, REAL, Unsuitable
from ldpkernels.planning.deployment import LEDGERS, written
from ldpkernels.planning.setting import COLLUDERS
from ldpkernels.planning.sums import EXACT

Below = Literal["example", "person"]
BELOW: tuple[Below, ...] = get_args(Below)  # a client
BITS = 32
ROOMY = 16  # times the norm of a batch whose gradients all point one way: who has more people is not cut
FEW_ROUNDINGS = 0.01  # of a row's norm; longer sums than a whole batch are cut before fp32 moves them by more
ONE_SILO = "all records of a person are in one silo, under one name"
DRAWN = (
    "{} joins each batch by a draw of its own with probability q = {:.6g}, which the silo keeps secret: shuffled"
    " batches are not this"
)


@dataclass(frozen=True)
class SiloSetting:
    """The arguments of `plan` for an example or a person, checked.

    >>> setting = SiloSetting(8.0, 1e-5, "person", rounds=30, examples=1000, batch=100, epochs=2, most=8)
    >>> setting.q, setting.steps
    (0.1, 20)
    """

    epsilon: float
    delta: float
    unit: Below
    rounds: int
    examples: int
    batch: float
    epochs: float | None = None
    most: int | None = None
    clients: int | None = None
    weights: int | None = None
    norm: float = 1.0

    def __post_init__(self) -> None:
        fixed: dict[str, object] = {
            "epsilon": arguments.positive("epsilon", self.epsilon),
            "delta": arguments.excluded(self.delta),
            "unit": arguments.choice("unit", self.unit, BELOW),
            "rounds": arguments.count("rounds", self.rounds),
            "examples": arguments.count("examples", self.examples),
            "batch": arguments.positive("batch", self.batch),
            "epochs": None if self.epochs is None else arguments.positive("epochs", self.epochs),
            "norm": arguments.positive("norm", self.norm),
        }
        if self.batch > self.examples:
            raise ValueError(f"batch = {self.batch} is more than the examples = {self.examples} of a silo: lower it")
        if (self.unit == "person") != (self.most is not None):
            raise ValueError(
                f"most = {self.most} with unit = {self.unit!r}: give the most records of a person that a step takes"
                " with unit='person', and only there"
            )
        for name in ("most", "clients", "weights"):
            value = getattr(self, name)
            fixed[name] = None if value is None else arguments.count(name, value)
        if (self.clients is None) != (self.weights is None):
            raise ValueError(
                f"clients = {self.clients} and weights = {self.weights}: shares of noise need both, the silos that do"
                " as they should and the numbers of an update; leave out both for noise at each silo"
            )
        for name, checked in fixed.items():
            object.__setattr__(self, name, checked)
        arguments.count("rounds * steps", self.rounds * self.steps)

    @property
    def q(self) -> float:
        """The probability of being in a batch."""
        return self.batch / self.examples

    @property
    def steps(self) -> int:
        """The steps of a round, each with a batch of its own."""
        return 1 if self.epochs is None else max(1, round(self.epochs / self.q))


@dataclass(frozen=True)
class SiloCandidate:
    """One way for silos to train under the total.

    Attributes:
        name: What the way is called.
        parameter: The noise multiplier of a step: the noise that the guarantee counts, over the norm.
        event: What a step costs; a ledger counts it.
        guarantee: The total for an example or a person over all rounds, with its adversary, neighbours and assumptions.
        noise: The deviation of a weight's noise in a step's mean gradient over all silos, over the norm.
        setting: The setting that it answers.
        law: The law of a silo's share of the noise. None if every silo adds all of the noise itself.
    """

    name: str
    parameter: float
    event: Event
    guarantee: PrivacyResult
    noise: float
    setting: SiloSetting
    law: DistributedGaussian | None = None

    @property
    def epsilon(self) -> float:
        """The total, never above what was asked for."""
        return self.guarantee.epsilon

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What has to be true for the total to hold."""
        return self.guarantee.assumptions

    @property
    def call(self) -> str:
        """What a silo runs in each round."""
        setting, silos = self.setting, 1 if self.law is None else self.law.invited
        whose = f"persons=persons, most={setting.most}, " if setting.unit == "person" else ""
        shares = "" if self.law is None else ", shares=law"
        return (
            f"train_privately(model, optimizer, loss, data, ledger, {whose}steps={setting.steps}, q={setting.q!r},"
            f" C={setting.norm!r}, sigma={self.parameter!r}, batch_size={setting.batch * silos!r}{shares})"
        )

    @property
    def deploy(self) -> str:
        """The lines that a silo runs."""
        budget = f"epsilon={self.setting.epsilon!r}, delta={self.setting.delta!r}"
        lines = [
            "from ldpkernels.accounting import Ledger",
            "from ldpkernels.trainers import train_privately",
            f'ledger = Ledger("{LEDGERS}silo.ledger", {budget})  # one file for good',
        ]
        if self.law is not None:
            lines += [
                "import ldpkernels",
                f"law = {written(self.law)}",
                f"# {self.law.invited} silos are the ranks of torch.distributed's group, and start from one model;",
                "# batch_size is q times the people of all silos",
            ]
        else:
            lines += ["# of another number of people: the same q, and batch_size=q * people; then the model may leave"]
        return "\n".join([*lines, f"{self.call}  # in each round"])

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "unit": self.setting.unit,
            "parameter": self.parameter,
            "call": self.call,
            "noise": self.noise,
            "law": None if self.law is None else written(self.law),
            "deploy": self.deploy,
            **self.guarantee.to_dict(),
        }

    def __str__(self) -> str:
        return f"{self.name}: noise multiplier {self.parameter:g}\n  {self.call}\n  {self.guarantee}"


class SiloPlan(list[SiloCandidate]):
    """Candidates, the one of least noise first; `left_out` says why others are not among them."""

    def __init__(self, setting: SiloSetting, found: list[SiloCandidate], left_out: dict[str, str]) -> None:
        super().__init__(sorted(found, key=lambda one: one.noise))
        self.setting, self.left_out = setting, left_out

    def __str__(self) -> str:
        lines = [f"{'way':20} {'multiplier':>10} {'noise':>10} {'epsilon':>9}  against"]
        lines += [
            f"{one.name:20} {one.parameter:10.5g} {one.noise:10.3g} {rounded_up(one.epsilon):>9}"
            f"  {one.guarantee.adversary}"
            for one in self
        ]
        return "\n".join(lines)


def silo_plan(setting: SiloSetting) -> SiloPlan:
    """The ways to train under the setting's total."""
    found, left_out = [], {}
    for way in (noise_at_each, shares_of_noise):
        try:
            found.append(way(setting))
        except Unsuitable as reason:
            left_out[way.__name__.replace("_", " ")] = str(reason)
    return SiloPlan(setting, found, left_out)


def noise_at_each(setting: SiloSetting) -> SiloCandidate:
    """Each silo adds all of the noise, and trusts nobody."""
    scope = SILO.per(Unit(setting.unit))
    sigma = _sigma(setting)
    event = replace(calibration.summed(setting.q, sigma), scope=scope)
    noise = sigma / setting.batch / math.sqrt(1 if setting.clients is None else setting.clients + COLLUDERS)
    return SiloCandidate("noise at each silo", sigma, event, _guarantee(setting, event), noise, setting)


def shares_of_noise(setting: SiloSetting) -> SiloCandidate:
    """Each silo adds sigma / sqrt(n), and a secure sum in every step shows no silo's part."""
    if setting.clients is None or setting.weights is None:
        raise Unsuitable("it needs clients, the honest silos, and weights")
    scope = replace(SUMMED, relation=Relation.ADD_REMOVE).per(Unit(setting.unit))

    def step(sigma: float) -> Event:
        return replace(calibration.summed(setting.q, sigma), scope=scope, slack=_share(setting, sigma).rows_slack)

    def total(sigma: float) -> float:
        try:
            return composed_epsilon([(step(sigma), setting.rounds * setting.steps)], setting.delta)
        except Unsuitable:
            return math.inf

    near = _sigma(setting)
    law = _share(setting, near)  # it refuses what no grid has
    sigma = calibration.strongest(total, setting.epsilon, 2 * near, near, near)
    if sigma is None:
        raise Unsuitable("its noise's tables are too far from their law for so small a total")
    law, n = _share(setting, sigma), setting.clients
    honest = f"at least {n} silos, besides whoever reads a sum, add their share and tell it to nobody"
    if n > 1:
        fewer = replace(calibration.summed(setting.q, law.with_clients(n - 1).multiplier(setting.norm)), scope=scope)
        honest += f" (if one of them does tell, the total is {rounded_up(_total(setting, fewer))})"
    guarantee = _guarantee(
        setting, step(sigma), "masked sums modulo a power of two, one in each step, and nothing else leaves a silo",
        FOLLOWED, honest,
    )  # fmt: skip
    noise = sigma / setting.batch / math.sqrt(n * law.invited)
    return SiloCandidate("shares of noise", sigma, step(sigma), guarantee, noise, setting, law)


def _sigma(setting: SiloSetting) -> float:
    steps = setting.rounds * setting.steps
    found = calibration.gaussian_sigma(setting.q, steps, setting.delta, setting.epsilon)
    if found is None:
        raise Unsuitable(f"needs more noise than {calibration.MOST_SIGMA:g} times the norm")
    return found


def _share(setting: SiloSetting, sigma: float) -> DistributedGaussian:
    """A silo's law: the finest grid whose noise is worth sigma, by n s^2 = sigma^2 times the square of a row."""
    assert setting.clients is not None
    assert setting.weights is not None
    clients, s = setting.clients, MOST_STDDEV
    padded = 1 << (setting.weights - 1).bit_length()
    roomy = max(setting.batch, FEW_ROUNDINGS / executed_row(0.0, 1.0, padded))
    most = min(ROOMY * setting.batch, roomy)
    square = clients * (s / sigma) ** 2 * (1 - 1e-9)
    low, high = 0.0, math.sqrt(square)
    for _ in range(60):
        middle = (low + high) / 2
        fits = rounded_square(executed_row(middle, middle * most, padded), padded, FAR_APART) <= square
        low, high = (middle, high) if fits else (low, middle)
    if low < 1:
        raise Unsuitable(f"{setting.weights:,} weights are too many for this much noise on a grid: train fewer")
    most = min(most, 2.0**29 / low)
    law = DistributedGaussian(setting.weights, setting.norm * most, clients, low * most, s, BITS, clients + COLLUDERS)
    if law.wrap_probability(law.invited) > WRAP:
        raise Unsuitable(f"the sum of so many silos does not fit in a number of {BITS} bits")
    return law


def _guarantee(setting: SiloSetting, event: Event, *assumptions: str) -> PrivacyResult:
    assert event.scope is not None
    who = "a person" if setting.unit == "person" else "an example"
    steps = f"{setting.rounds * setting.steps:,} steps in all, which a silo's ledger counts"
    one = (ONE_SILO,) if setting.unit == "person" else ()
    words = (DRAWN.format(who, setting.q), *one, *assumptions, REAL, steps)
    return PrivacyResult(_total(setting, event), setting.delta, event.scope, words, EXACT)


def _total(setting: SiloSetting, event: Event) -> float:
    return composed_epsilon([(event, setting.rounds * setting.steps)], setting.delta)
