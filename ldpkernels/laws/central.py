# SPDX-License-Identifier: Apache-2.0
"""Noise on a sum of clipped updates, by a server that is trusted with every one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ldpkernels import arguments
from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import ConcentratedEvent, Event, GaussianEvent, SampledGaussianEvent
from ldpkernels.dtypes import FLOAT32
from ldpkernels.laws import clipped_noise

UP = 1 + 2.0**-40  # more than the rounding of a division


@dataclass(frozen=True)
class CentralGaussian:
    """The sum of updates clipped to `norm`, with noise of deviation noise_multiplier * norm on every weight.

    A `VectorLaw` (ldpkernels/laws/vector_law.py) about the sum. The guarantee holds between a run with a client and one
    without it, or with zeros in its place. `ldpkernels.clipped_noised_sum` executes it.

    Args:
        noise_multiplier: The noise's deviation over the norm.
        dimension: d, the numbers in an update.
        norm: The L2 norm to which an update is clipped.
        participation: The probability with which each client is in a round, by a draw that is kept secret. It lowers
            what a round costs.
        noise: "gaussian", real arithmetic, or "discrete", whose guarantee holds for the bits that are released.

    >>> law = CentralGaussian(1.0, dimension=10)
    >>> law.event, round(law.epsilon(1e-5, rounds=4), 3), law.mean_error(100)
    (GaussianEvent(noise_multiplier=1.0), 9.997, 0.001)
    """

    name: ClassVar[str] = "central gaussian"
    noise_multiplier: float
    dimension: int
    norm: float = 1.0
    participation: float = 1.0
    noise: Literal["gaussian", "discrete"] = "gaussian"

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "norm"):
            object.__setattr__(self, name, arguments.positive(name, getattr(self, name)))
        object.__setattr__(self, "dimension", arguments.count("dimension", self.dimension, most=2**40))
        object.__setattr__(self, "participation", arguments.probability("participation", self.participation))
        clipped_noise.check([self.norm], self.noise_multiplier, self.noise, "flat", [FLOAT32])
        if self.noise == "discrete" and self.participation < 1:
            raise ValueError(
                f"nothing is proved here of discrete noise on samples, as participation={self.participation} draws"
                " them: pass participation=1, or noise='gaussian'"
            )

    @property
    def event(self) -> Event:
        """One noised sum. Of discrete noise its Renyi divergences are proved, which are at most a Gaussian's."""
        if self.noise == "discrete":
            return ConcentratedEvent(0.5 / self.noise_multiplier / self.noise_multiplier * UP)
        if self.participation < 1:
            return SampledGaussianEvent(self.noise_multiplier, self.participation)
        return GaussianEvent(self.noise_multiplier)

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """The eps of so many sums at delta."""
        return composed_epsilon([(self.event, arguments.count("rounds", rounds))], delta)

    def mean_error(self, clients: int) -> float:
        """Expected squared distance of the mean of so many updates from the mean of the clipped ones."""
        return self.dimension * (self.noise_multiplier * self.norm / arguments.count("clients", clients)) ** 2

    @property
    def bytes(self) -> int:
        """What a client sends: its update in fp32."""
        return 4 * self.dimension
