# SPDX-License-Identifier: Apache-2.0
"""A run of LDP-FL's tables: what it is, by which name it is kept, and what it costs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

RangeMethod = Literal["minmax", "capped", "quantile", "noise-subtracted"]

PAPER = {  # n and rounds of the paper's experiments, its fixed radius, its learning rate
    "mnist": (100, 10, 0.075, 0.03),
    "fashion-mnist": (200, 15, 0.015, 0.03),
    "cifar10": (500, 15, 1.0, 0.015),
}
# Local epochs, which the paper does not give, one number for each dataset throughout, by the run without noise.
EPOCHS = {"mnist": 2, "fashion-mnist": 10, "cifar10": 10}
# The paper's noise-free accuracy: its headline and what it says that the noise costs.
NOISE_FREE = {"mnist": 0.9721, "fashion-mnist": 0.8758, "cifar10": 0.6255}
EXAMPLES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000}
STEP = {"mnist": 4e-4, "fashion-mnist": 4e-4, "cifar10": 4e-3}  # seconds of a quiet core for a step of ten examples
COUNTING = {"mnist": 0.3, "fashion-mnist": 0.3, "cifar10": 4.0}  # and for the test examples, in every round
NETWORK = {"mnist": "ldp-fl-cnn", "fashion-mnist": "ldp-fl-cnn", "cifar10": "small-vgg-normalised"}
SEEDS = 5

_NAME = re.compile(
    r"(\S+) n=(\d+)(?: trained=(\d+))?(?: f=(\S+))? T=(\d+) "
    r"(?:no noise|(\S+) eps=(\S+) (?:adaptive(?: by (\S+))?|(\S+) r=(\S+))) B=(\d+) E=(\d+)"
    r"(?: lr=(\S+))?(?: net=(\S+))? seed=(\d+)"
)


@dataclass(frozen=True)
class Setting:
    """One run. `radius` None means adaptive ranges, starting from the initial weights; `eps` None means no noise.

    Where `trained` is not 0, so many train in a round, drawn anew each time, and stand for all whom the round selects:
    each perturbs its weights as often as it stands for a client, so that the mean has the noise of them all.
    """

    dataset: str
    eps: float | None
    clients: int
    rounds: int
    radius: float | None
    upload: str = "weights"
    mechanism: str = "two-point"
    batch: int = 10
    epochs: int = 1
    fraction: float = 1.0
    seed: int = 0
    trained: int = 0
    adapts: RangeMethod = "minmax"
    network: str = ""
    rate: float = 0.0  # 0: the paper's

    @property
    def name(self) -> str:
        noise = "no noise" if self.eps is None else f"{self.mechanism} eps={self.eps:g} {self.ranges}"
        part = f" trained={self.trained}" if self.trained else ""
        part += "" if self.fraction == 1 else f" f={self.fraction:g}"
        local = f"B={self.batch} E={self.epochs}" + (f" lr={self.rate:g}" if self.rate else "")
        local += f" net={self.network}" if self.network else ""
        return f"{self.dataset} n={self.clients}{part} T={self.rounds} {noise} {local} seed={self.seed}"

    @classmethod
    def of(cls, name: str) -> Setting:
        """The run of a name."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name!r} is no run of this table")
        dataset, n, trained, part, rounds, mechanism, eps, adapts, *rest = found.groups()
        upload, radius, batch, epochs, rate, network, seed = rest
        if eps is None:
            upload, radius = "weights", str(PAPER[dataset][2])
        return cls(
            dataset,
            None if eps is None else float(eps),
            int(n),
            int(rounds),
            None if radius is None else float(radius),
            upload or "weights",
            mechanism or "two-point",
            int(batch),
            int(epochs),
            float(part or 1),
            int(seed),
            int(trained or 0),
            adapts or "minmax",  # type: ignore[arg-type]
            network or "",
            float(rate or 0),
        )

    @property
    def ranges(self) -> str:
        """What is perturbed, within which ranges."""
        if self.radius is None:
            return "adaptive" if self.adapts == "minmax" else f"adaptive by {self.adapts}"
        return f"{self.upload} r={self.radius:g}"

    @property
    def share(self) -> float:
        """The part of the clients that trains in a round."""
        return self.trained / self.clients if self.trained else self.fraction

    @property
    def minutes(self) -> float:
        """Of a quiet core."""
        examples = EXAMPLES[self.dataset] * self.share * self.epochs * self.rounds
        usual = self.dataset == "cifar10" or not self.network
        training = examples / 10 * (STEP[self.dataset] if usual else 1e-3)
        return (training + self.rounds * COUNTING[self.dataset]) / 60

    @property
    def twin(self) -> Setting:
        """The same run without noise."""
        home = PAPER[self.dataset][2]
        fraction = 1.0 if self.trained else self.fraction
        plain: dict[str, Any] = {"mechanism": "two-point", "adapts": "minmax", "fraction": fraction}
        return replace(self, eps=None, radius=home, upload="weights", **plain)


def setting(dataset: str, eps: float | None, *, ranges: str = "fixed", **changes: Any) -> Setting:
    """The paper's setting, with changes: the fixed ranges are of weights, or of updates where `upload` says so."""
    clients, rounds, radius, _ = PAPER[dataset]
    values = {"clients": clients, "rounds": rounds, "radius": radius if ranges == "fixed" else None}
    return Setting(dataset, eps, **{**values, "epochs": EPOCHS[dataset], **changes})


def seeds(s: Setting, count: int = SEEDS) -> list[Setting]:
    """The same with so many seeds."""
    return [replace(s, seed=seed) for seed in range(count)]


def by_few(s: Setting, trained: int = 20) -> Setting:
    """The same, some clients standing for all."""
    return replace(s, trained=trained)
