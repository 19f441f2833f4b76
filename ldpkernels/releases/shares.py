# SPDX-License-Identifier: Apache-2.0
"""A client's share of the noise of a sum: the law, how many must be in the sum, and the terms of each round's sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ldpkernels.accounting import Event
from ldpkernels.arrays import Array, Words
from ldpkernels.keys import Generator, Key
from ldpkernels.laws.distributed import Shares
from ldpkernels.releases.release import Arrays, EachWeight, WholeVector, release_of
from ldpkernels.secure_sums import Terms
from ldpkernels.updates import decode, encode
from ldpkernels.updates.rotation import rotation_of


@dataclass(frozen=True)
class SharesOfNoise:
    """Updates as integers under a law's noise, which leave by a secure sum and by nothing else.

    Args:
        law: `DistributedGaussian` or `DistributedSkellam`: its event is what a round costs a client.
        threshold: The fewest clients whose sum is opened.
        colluders: How many of them may be in league with the server or with whoever reads the model, which counts
            itself if it is a client.
        roster: The Ed25519 public keys of those who may take part, by number. Without it, `law.event` is right against
            a server that follows the protocol, and no other.

    >>> import ldpkernels
    >>> law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=10, clients=4, invited=6)
    >>> SharesOfNoise(law, threshold=5).sum_terms(1, 1).honest
    4
    """

    law: Shares
    threshold: int
    colluders: int = 1
    roster: Mapping[int, bytes] | None = None

    def __post_init__(self) -> None:
        self.sum_terms(0, 0)  # it refuses what leaves too little noise in a sum

    @property
    def terms(self) -> dict[str, float | str]:
        """What both sides compare."""
        return {"law": repr(self.law), "threshold": self.threshold, "colluders": self.colluders}

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """One event for a round's sum."""
        if sum(sizes) != self.law.dimension:
            raise ValueError(f"the arrays have {sum(sizes)} numbers, and the law is of {self.law.dimension}")
        return self.law.event, 1

    def rotation(self, run: int, round_: int) -> Key:
        """The round's public rotation, which everyone makes for itself."""
        return rotation_of(f"run {run}, round {round_}")

    def sum_terms(self, run: int, round_: int) -> Terms:
        """The terms of a round's secure sum."""
        return Terms.of(
            self.law, self.rotation(run, round_), round=f"run {run}, round {round_}".encode(),
            threshold=self.threshold, colluders=self.colluders, roster=self.roster,
        )  # fmt: skip

    def integers(self, update: Arrays, run: int, round_: int, generator: Generator) -> Words:
        """A client's integers."""
        return encode(dict(update), self.law, self.rotation(run, round_), generator=generator, buffers="perturb")

    def mean(self, total: Array, like: Arrays, clients: int, run: int, round_: int) -> Arrays:
        """The clients' mean, in the shapes and formats of these arrays."""
        flat = decode(total, self.law, self.rotation(run, round_), clients=clients)
        parts = np.split(flat, np.cumsum([array.size for array in like.values()])[:-1])
        named = zip(like.items(), parts, strict=True)
        return {name: np.asarray(part.reshape(array.shape), array.dtype) for (name, array), part in named}


def released(
    eps: float | None,
    mechanism: str,
    norm: float | None,
    bound: float | None,
    delta: float,
    law: Shares | None,
    threshold: int | None,
    colluders: int,
    roster: Mapping[int, bytes] | None,
) -> EachWeight | WholeVector | SharesOfNoise:
    """What these settings release: reports of a mechanism at eps, or shares of a law's noise."""
    if law is None:
        if eps is None or threshold is not None or roster is not None:
            raise ValueError("pass eps, or a law with its threshold (and roster)")
        return release_of(eps, mechanism, norm, bound, delta)
    if eps is not None or norm is not None or bound is not None or threshold is None:
        raise ValueError("a law has its own eps and norm: pass law and threshold, without eps, norm or bound")
    return SharesOfNoise(law, threshold, colluders, roster)
