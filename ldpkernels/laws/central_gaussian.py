# SPDX-License-Identifier: Apache-2.0
"""A discrete Gaussian that a trusted server adds once, to the sum of its clients' clipped updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ldpkernels import launch
from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import GaussianEvent
from ldpkernels.accounting.neighbours import CENTRAL, Relation, Scope
from ldpkernels.common import arguments
from ldpkernels.common.arrays import Array, Floats, Integers
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.common.keys import Generator, numpy_key
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.vector_gaussian import FLOAT32, VectorGaussian, least_sigma

MOST_CLIENTS = 2**30  # integers of 32 bits, of which int64 holds the sum


@dataclass(frozen=True)
class CentralGaussian:
    """Clip to `norm`, cut to a grid of sigma / 2^22, add up as integers, add a discrete Gaussian of deviation sigma.

    Neighbours are a client's update and zeros in its place, so their distance is the norm. Who takes part is not a
    secret, because rounds of too few clients are visible. **The server sees every update and is trusted**: the
    guarantee holds against whoever sees what it makes of the sums. This is a `VectorLaw`
    (ldpkernels/laws/vector_law.py), with the grid and the proof of `VectorGaussian`.

    Args:
        sigma: The noise on a sum, in the weights' unit.
        dimension: Numbers of an update.
        norm: The L2 norm to which an update is clipped.
        clients: How many are expected in a round. Sums are divided by this public number, however many came.

    >>> law = CentralGaussian.calibrated(8.0, 1e-5, dimension=1_000_000, clients=100, rounds=20)
    >>> round(law.sigma, 2), law.epsilon(1e-5, rounds=20) <= 8.0
    (2.68, True)
    """

    name: ClassVar[str] = "central-gaussian"
    scope: ClassVar[Scope] = replace(CENTRAL, relation=Relation.ZERO_OUT)
    sigma: float
    dimension: int
    norm: float = 1.0
    clients: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self.grid).items():
            object.__setattr__(self, name, value)  # as it checked them
        object.__setattr__(self, "clients", arguments.count("clients", self.clients, most=MOST_CLIENTS))
        self.event  # noqa: B018  # it refuses a sigma too large for its grid

    @classmethod
    def calibrated(
        cls, eps: float, delta: float, *, dimension: int, clients: int, norm: float = 1.0, rounds: int = 1
    ) -> CentralGaussian:
        """The least noise with which so many rounds together are (eps, delta)-DP, between an update and zeros.

        The adversary is that of the class: it sees what the server makes of the sums.
        """
        sigma = least_sigma(lambda s: cls(s, dimension, norm, clients).epsilon(delta, rounds), eps, norm)
        return cls(sigma, dimension, norm, clients)

    @property
    def grid(self) -> VectorGaussian:
        """The law that has this grid, norm and noise."""
        return VectorGaussian(self.sigma, self.dimension, self.norm)

    @property
    def _alike(self) -> VectorGaussian:
        """The law of any two updates at the distance of one update from none."""
        return VectorGaussian(self.sigma, self.dimension, self.norm / 2)

    @property
    def event(self) -> GaussianEvent:
        """What one sum costs, for `ldpkernels.accounting`."""
        return replace(self._alike.event, scope=self.scope)

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """The eps of so many sums at delta: an update against zeros, for whoever sees what is made of them."""
        return composed_epsilon([(self, arguments.count("rounds", rounds))], arguments.excluded(delta))

    def mean_error(self, clients: int) -> float:
        """An upper bound on the expected squared distance of a released mean from the mean of the clipped updates."""
        clients = arguments.count("clients", clients)
        return self.dimension * ((self.sigma / clients) ** 2 + self.grid.unit**2)

    @property
    def bytes(self) -> int:
        """The bytes of an update in fp32."""
        return 4 * self.dimension

    def integers(self, x: Array) -> Integers:
        """One client's clipped update in units of the grid. Raises OverflowError if a weight is not a finite number."""
        x = np.ascontiguousarray(x)
        dtype = FLOAT64 if x.dtype == np.float64 else FLOAT32
        integers, _ = self.grid.integers([x.ctypes.data], [dtype], [x.size], None)
        found: Integers = np.asarray(integers).astype(np.int64)
        return found

    def released(self, total: Integers, *, generator: Generator = None) -> Floats:
        """What may be released of a sum of clients' integers, **once**: the noised sum over `clients`.

        >>> law = CentralGaussian(0.5, dimension=3, clients=100)
        >>> total = sum(law.integers(np.full(3, 0.1)) for _ in range(100))
        >>> bool(abs(law.released(total) - 0.1).max() < 0.1)
        True
        """
        if total.dtype != np.int64 or total.shape != (self.dimension,):
            raise ValueError(f"total is {total.dtype} of shape {total.shape}: pass {self.dimension} integers of int64")
        nothing, noise = np.zeros(self.dimension, np.int32), np.empty(self.dimension)
        spans = span_table([nothing.ctypes.data], [noise.ctypes.data], [self.dimension], [FLOAT64])
        launch.add_noise(spans, self.grid.table, numpy_key(generator))  # whole numbers, which fp64 holds
        mean: Floats = np.multiply(total + noise.astype(np.int64), self.grid.unit / self.clients, dtype=np.float64)
        return mean
