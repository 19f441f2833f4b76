# SPDX-License-Identifier: Apache-2.0
"""A discrete Gaussian on every weight of an update that is clipped to an L2 norm: (eps, delta) for the whole of it.

docs/mechanisms/vector_gaussian.md has the law, and why its event is a Gaussian's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ldpkernels import launch
from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import GaussianEvent
from ldpkernels.accounting.losses import bisect_upper
from ldpkernels.accounting.neighbours import LOCAL
from ldpkernels.common import arguments
from ldpkernels.common.arrays import AnyArray, Array, Floats
from ldpkernels.common.dtypes import DTYPES, FLOAT64, Dtype
from ldpkernels.common.keys import Key
from ldpkernels.inputs import flat
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.clipped_noise import MARGIN as ROUNDING
from ldpkernels.laws.noise_table import MOST_SHIFT, NoiseTable, wide_gaussian_table
from ldpkernels.laws.weightwise import checked_eps

if TYPE_CHECKING:
    import torch

FLOAT32 = DTYPES["float32"]
GRID_STD = 2**22  # standard deviation of the noise in units of the grid, always
MOST_GRID_NORM = 2**31 - 1
MARGIN = 2.0**-16  # of the noise multiplier: pays for the discrete Gaussian's distance from a rounded one


@dataclass(frozen=True)
class VectorGaussian:
    """Clip to `norm`, cut to a grid of sigma / 2^22, add a discrete Gaussian of deviation sigma to every weight.

    Neighbours are any two updates, so their distance is twice the norm; the adversary is the server. This is a
    `VectorLaw` (ldpkernels/laws/vector_law.py).

    >>> law = VectorGaussian.calibrated(8.0, 1e-5, dimension=1_000_000, norm=1.0)
    >>> round(law.sigma, 3), law.epsilon(1e-5) <= 8.0, law.bytes
    (1.2, True, 4000000)
    """

    name: ClassVar[str] = "gaussian"
    sigma: float
    dimension: int
    norm: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", arguments.positive("sigma", self.sigma))
        object.__setattr__(self, "norm", arguments.positive("norm", self.norm))
        object.__setattr__(self, "dimension", arguments.count("dimension", self.dimension, most=2**40))
        if not 2.0**-400 <= self.sigma <= 2.0**400:
            raise ValueError(f"sigma={self.sigma} must be from 2^-400 to 2^400: change the unit of the weights")
        if not 1 <= self.norm / self.unit <= MOST_GRID_NORM:
            raise ValueError(
                f"sigma={self.sigma} is {self.sigma / self.norm:.3g} times norm={self.norm}: it must be from 2^-9 to "
                "2^22 times the norm"
            )
        if 0.79 * MARGIN / self.noise_multiplier < 2 * self._log_ratio:
            raise ValueError(
                f"sigma={self.sigma} is so large next to norm={self.norm} that the grid's own distance from a Gaussian "
                f"of {self.dimension} weights counts: pass a smaller sigma"
            )

    @classmethod
    def calibrated(
        cls, eps: float, delta: float, *, dimension: int, norm: float = 1.0, rounds: int = 1
    ) -> VectorGaussian:
        """The least noise with which so many reports of one client together are (eps, delta)-LDP.

        That is between any two updates, against the server.
        """
        return cls(least_sigma(lambda s: cls(s, dimension, norm).epsilon(delta, rounds), eps, norm), dimension, norm)

    @property
    def unit(self) -> float:
        """The grid's spacing, sigma / 2^22 exactly."""
        return self.sigma / GRID_STD

    @property
    def square_bound(self) -> int:
        """The largest sum of squares of an update in units of the grid. No integer vector beyond it is released."""
        return math.floor((Fraction(self.norm) / Fraction(self.unit)) ** 2)

    @property
    def table(self) -> NoiseTable:
        """The noise, in units of the grid."""
        return wide_gaussian_table(MOST_SHIFT)

    @property
    def noise_multiplier(self) -> float:
        """Deviation over the distance of any two updates, less the margin; rounded down."""
        return self.sigma / self.norm / 2 * (1 - MARGIN) * (1 - 2.0**-50)

    @property
    def event(self) -> GaussianEvent:
        """What one report costs. The distance of each weight's noise from its law, below 1e-23, is included."""
        slack = self.dimension * (self.table.distance + 2.0**-90)
        return GaussianEvent(self.noise_multiplier, slack=slack, scope=LOCAL)

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """The eps of so many reports at delta, between any two updates, against the server; rounded up.

        The table's distance from its law, times e^eps, is taken out of delta. So beyond some eps the noise cannot get
        smaller: at delta = 1e-5 that is 32.3 for 10,000 weights, and 27.8 for a million.
        """
        return composed_epsilon([(self, arguments.count("rounds", rounds))], arguments.excluded(delta))

    @property
    def variance(self) -> float:
        """An upper bound on the variance of a weight of a report."""
        return self.sigma**2

    @property
    def worst_error(self) -> float:
        """Expected squared distance of a report from the clipped update: the noise, and at most a unit a weight."""
        return self.dimension * (self.variance + self.unit**2)

    def mean_error(self, clients: int) -> float:
        """An upper bound on the expected squared distance of the reports' mean from that of their clipped updates."""
        clients = arguments.count("clients", clients)
        return self.dimension * (self.variance / clients + self.unit**2)

    @property
    def bytes(self) -> int:
        """The bytes of a report in fp32."""
        return 4 * self.dimension

    def error(self, x: Array) -> float:
        """An upper bound on the expected squared distance of a report from x, the same for any x within the norm."""
        return self.worst_error

    def sample(self, x: Array, key: Key) -> Floats:
        """A report of x, of any length."""
        x, out = np.ascontiguousarray(x, np.float64), np.empty(self.dimension)
        self.write([x.ctypes.data], [FLOAT64], [out], key)
        return out

    def write(
        self,
        addresses: Sequence[int],
        dtypes: Sequence[Dtype],
        outs: Sequence[AnyArray],
        key: Key,
        device: torch.device | None = None,
    ) -> None:
        """Write a report of an update, whose parts lie at these addresses, to arrays of their sizes, fp32 or fp64.

        Everything is on one device; None is the host. Raises OverflowError before anything is written if a weight or
        the norm is not a finite number.
        """
        sizes = [math.prod(out.shape) for out in outs]
        integers, places = self.integers(addresses, dtypes, sizes, device)
        formats = [FLOAT64 if out.itemsize == 8 else FLOAT32 for out in outs]
        released = span_table(places, [flat.address(out) for out in outs], sizes, formats)
        launch.add_noise(released, self.table, key, unit=self.unit, device=device)
        del integers  # whose memory was read

    def integers(
        self, addresses: Sequence[int], dtypes: Sequence[Dtype], sizes: Sequence[int], device: torch.device | None
    ) -> tuple[AnyArray, list[int]]:
        """The clipped update in units of the grid, as int32, and where its parts lie; raises as `write` does."""
        if sum(sizes) != self.dimension:
            raise ValueError(f"the update has {sum(sizes)} weights, and dimension={self.dimension}")
        integers = launch.empty(self.dimension, np.int32, device)
        places = [flat.address(integers) + 4 * sum(sizes[:i]) for i in range(len(sizes))]
        spans = span_table(addresses, places, sizes, dtypes)
        above = launch.norm(spans, device) * ROUNDING
        if not math.isfinite(above):
            raise OverflowError("a weight is not a finite number, or the sum of all squares is not")
        scale = min(1.0, self.norm / above if above else 1.0) / self.unit
        squares = launch.quantise(spans, scale, None, device=device)
        if squares > self.square_bound:  # the guarantee stands on this comparison, and on no floating-point number
            raise ArithmeticError(f"a clipped update has {squares} where at most {self.square_bound} were expected")
        return integers, places

    @property
    def _log_ratio(self) -> float:
        """How far the laws of two whole vectors, a discrete and a rounded Gaussian, are apart but for 2^-90."""
        exponent = 90 * math.log(2)
        return (math.sqrt(2 * exponent * self.dimension / 90) + exponent * 2 / 3 * 11) / GRID_STD**2


def least_sigma(epsilon: Callable[[float], float], eps: float, norm: float) -> float:
    """The least deviation, of what grids have for this norm, whose epsilon is at most eps."""
    eps, norm = checked_eps(eps), arguments.positive("norm", norm)

    def exceeds(sigma: float) -> bool:
        return epsilon(sigma) > eps

    low, high = norm * 2.0**-8, norm * 2.0**10
    if exceeds(high):
        raise ValueError(f"eps={eps} needs more than 1,024 times norm={norm} of noise: raise eps")
    return bisect_upper(exceeds, low, high) if exceeds(low) else low
