# SPDX-License-Identifier: Apache-2.0
"""A clipping norm that follows a quantile of the clients' norms, for one private bit a client (Andrew et al. 2021).

docs/mechanisms/adaptive_clipping.md has the accounting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ldpkernels import launch
from ldpkernels.accounting.events import GaussianEvent, SkellamEvent
from ldpkernels.accounting.neighbours import CENTRAL
from ldpkernels.common import arguments
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.common.keys import Generator, numpy_key
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.noise_table import (
    DISTANCE,
    MOST_STDDEV,
    NoiseTable,
    gaussian_table,
    skellam_table,
    wide_gaussian_table,
)

UP = 1 + 2.0**-40


@dataclass(frozen=True)
class AdaptiveClipping:
    """A norm that follows a quantile of the clients' lengths, by one noised bit from each client and round.

    A client's bit says whether its update is within the norm. Bits count as plus or minus 1: one client changes their
    sum by 1 against zeros in its place, and by 2 against any other client. The adversary sees the sums.

    Args:
        noise_multiplier: z, the multiplier that bit and update have **together**. The update gets `update_multiplier`,
            the bits get 2 `bit_stddev`.
        clients: How many are expected in a round.
        quantile: Which part of the clients should be within the norm: 0.5 makes it their median.
        rate: How fast: the norm is multiplied by exp(-rate (fraction within - quantile)).
        bit_stddev: Deviation of the noise on the number of bits; None for clients / 20, as in the paper.

    >>> law = AdaptiveClipping(noise_multiplier=1.0, clients=100)
    >>> law.bit_stddev, round(law.update_multiplier, 6)
    (5.0, 1.005038)
    >>> law.next_norm(1.0, total=-100, clients=100)  # nobody is within: the norm grows
    1.1051709180756477
    """

    noise_multiplier: float
    clients: int
    quantile: float = 0.5
    rate: float = 0.2
    bit_stddev: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", arguments.count("clients", self.clients, most=10**9))
        z = arguments.positive("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", z)
        quantile = arguments.probability("quantile", self.quantile)
        object.__setattr__(self, "quantile", quantile)
        object.__setattr__(self, "rate", arguments.positive("rate", self.rate))
        spread = self.clients / 20 if self.bit_stddev is None else arguments.positive("bit_stddev", self.bit_stddev)
        object.__setattr__(self, "bit_stddev", spread)
        if not 1.0 <= 2 * spread <= 2.0**22:
            raise ValueError(f"bit_stddev={spread} must be from 0.5 to 2^21")
        if 2 * spread <= z:
            raise ValueError(
                f"bit_stddev={spread} is too small for noise_multiplier={z}: the bits alone would cost more than the "
                f"whole, so pass more than {z / 2}"
            )

    @property
    def bit_multiplier(self) -> float:
        """The noise multiplier of the bits' sum alone."""
        assert self.bit_stddev is not None
        return 2 * self.bit_stddev

    @property
    def update_multiplier(self) -> float:
        """(z^-2 - (2 bit_stddev)^-2)^(-1/2), rounded up: with it, bits and update together have the multiplier z."""
        z, b = self.noise_multiplier, self.bit_multiplier
        return z / math.sqrt((1 - z / b) * (1 + z / b)) * UP

    @property
    def event(self) -> SkellamEvent:
        """The bits' sum alone, from shares of at least `clients` by secure aggregation: a client against zeros."""
        return SkellamEvent(self.clients * self._share_variance / UP, 1.0, 1.0, slack=self.clients * DISTANCE)

    @property
    def noised_event(self) -> GaussianEvent:
        """The bits' sum alone, as `noised` gives it; compose it with method="rdp"."""
        return GaussianEvent(self.bit_multiplier, slack=DISTANCE, scope=CENTRAL)

    def bit(self, length: float, norm: float) -> int:
        """A client's bit: 1 if its update's length is within the norm, -1 if it is longer or not a number."""
        return 1 if length <= norm else -1

    def share(self, length: float, norm: float, *, generator: Generator = None) -> int:
        """A client's bit with its share of the noise, for a secure sum; private only in the sum.

        >>> law = AdaptiveClipping(noise_multiplier=1.0, clients=100)
        >>> isinstance(law.share(0.3, norm=1.0), int)
        True
        """
        return self.bit(length, norm) + _draw(skellam_table(self._share_variance), generator)

    def noised(self, bits: Iterable[int], *, generator: Generator = None) -> int:
        """The sum of bits plus a discrete Gaussian of deviation 2 bit_stddev or more, for a trusted server."""
        bits = list(bits)
        if any(one not in (-1, 1) for one in bits):
            raise ValueError("bits are 1 or -1")
        return sum(bits) + _draw(_table(self.bit_multiplier), generator)

    def fraction(self, total: int, clients: int) -> float:
        """An unbiased estimate of the share of clients that are within the norm."""
        return (total / arguments.count("clients", clients) + 1) / 2

    def next_norm(self, norm: float, total: int, clients: int) -> float:
        """The next round's norm. It depends only on the noised sum of this round's bits, so it costs nothing more."""
        step = -self.rate * (min(max(self.fraction(total, clients), -1.0), 2.0) - self.quantile)
        return arguments.positive("norm", norm) * math.exp(step)

    @property
    def _share_variance(self) -> float:
        return max(self.bit_multiplier**2 / self.clients, 0.25)


def _table(stddev: float) -> NoiseTable:
    """A discrete Gaussian of at least this deviation."""
    if stddev <= MOST_STDDEV:
        return gaussian_table(stddev)
    return wide_gaussian_table(math.ceil(math.log2(stddev / 64)))


def _draw(table: NoiseTable, generator: Generator) -> int:
    zero, out = np.zeros(1, np.int32), np.empty(1, np.uint32)
    spans = span_table([zero.ctypes.data], [out.ctypes.data], [1], [DTYPES["float32"]])
    launch.add_noise(spans, table, numpy_key(generator), bits=32)
    return int(out.view(np.int32)[0])
