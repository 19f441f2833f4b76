# SPDX-License-Identifier: Apache-2.0
"""Means over clients of unequal data: alike, as the papers have them, or by the numbers of examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, Protocol, TypeVar

import torch

from ldpkernels.federated.training import Client, Weights

Weigh = Literal["alike", "examples"]


class Sum(Protocol):
    """Uploads that are added, and their mean."""

    def mean(self) -> Weights:
        """Of all that were added, by name."""


S = TypeVar("S", bound=Sum)


class Mean:
    """The weighed mean of plain models or updates: a sum in fp64, given in each tensor's own dtype.

    >>> mean = Mean()
    >>> mean.add({"w": torch.tensor([1.0, 2.0])})
    >>> mean.add({"w": torch.tensor([2.0, 4.0])}, weight=3)
    >>> mean.mean()
    {'w': tensor([1.7500, 3.5000])}
    """

    def __init__(self) -> None:
        self.count = 0
        self._weight = 0
        self._sum: Weights = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, weights: Weights, weight: int = 1) -> None:
        """Add one client's."""
        for name, w in weights.items():
            part = w.double() * weight
            self._sum[name] = self._sum[name] + part if name in self._sum else part
            self._dtypes[name] = w.dtype
        self.count += 1
        self._weight += weight

    def mean(self) -> Weights:
        """Nothing where nothing was added."""
        return {name: (total / self._weight).to(self._dtypes[name]) for name, total in self._sum.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of one client's."""
        return sum(total.numel() * self._dtypes[name].itemsize for name, total in self._sum.items())


class Sums(Generic[S]):
    """A sum of noisy uploads for each weight that a client may have, and the weighed mean of all.

    Uploads of one weight are added as they are, in integers. `new` begins a sum, `count` tells how many uploads it has.

    >>> import ldpkernels
    >>> sums = Sums(ldpkernels.Aggregate, lambda sum_: sum_.clients, "examples")
    >>> for weight, upload in ((1, [-1.0]), (3, [1.0])):
    ...     report = ldpkernels.report({"w": torch.tensor(upload)}, C=0.0, R=1.0, eps=20.0, generator=ldpkernels.key(0))
    ...     sums.of_weight(weight).add(report)
    >>> sums.mean(), sums.as_many
    ({'w': tensor([0.5000])}, 1)
    """

    def __init__(self, new: Callable[[], S], count: Callable[[S], int], weigh: Weigh) -> None:
        self._new, self._count, self.weigh = new, count, weigh
        self.by_weight: dict[int, S] = {}

    def of(self, client: Client) -> S:
        """The sum that the client's upload is added to."""
        return self.of_weight(weight_of(client, self.weigh))

    def of_weight(self, weight: int) -> S:
        """The sum of all that have this weight."""
        if weight not in self.by_weight:
            self.by_weight[weight] = self._new()
        return self.by_weight[weight]

    def mean(self) -> Weights:
        """The weighed mean, in each tensor's own dtype; nothing where nothing was added."""
        if len(self.by_weight) == 1:
            return next(iter(self.by_weight.values())).mean()
        mean = Mean()
        for weight, one in sorted(self.by_weight.items()):
            mean.add(one.mean(), weight * self._count(one))
        return mean.mean()

    @property
    def as_many(self) -> int:
        """Of how many clients, all alike, the mean would have the same noise."""
        counts = {weight: self._count(s) for weight, s in self.by_weight.items()}
        return sum(w * n for w, n in counts.items()) ** 2 // sum(w * w * n for w, n in counts.items())


def weight_of(client: Client, weigh: Weigh) -> int:
    """Its weight in the mean: its number of examples is public where they count."""
    return 1 if weigh == "alike" else len(client.data[1])


def check_options(weigh: str, dropout: float) -> None:
    """Refuse what is no way to weigh, and no part of the clients."""
    if weigh not in ("alike", "examples"):
        raise ValueError(f"weigh={weigh!r} must be 'alike' or 'examples'")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be at least 0 and below 1")
