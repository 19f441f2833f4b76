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
    """The mean of plain models or updates: a sum in fp64, given in each tensor's own dtype.

    >>> mean = Mean()
    >>> mean.add({"w": torch.tensor([1.0, 2.0])})
    >>> mean.add({"w": torch.tensor([2.0, 4.0])})
    >>> mean.mean()
    {'w': tensor([1.5000, 3.0000])}
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: Weights = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, weights: Weights) -> None:
        """Add one client's."""
        for name, w in weights.items():
            self._sum[name] = self._sum[name] + w.double() if name in self._sum else w.double()
            self._dtypes[name] = w.dtype
        self.count += 1

    def mean(self) -> Weights:
        """Nothing where nothing was added."""
        return {name: (total / self.count).to(self._dtypes[name]) for name, total in self._sum.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of one client's."""
        return sum(total.numel() * self._dtypes[name].itemsize for name, total in self._sum.items())


class Sums(Generic[S]):
    """A sum of uploads for each weight that a client may have, and the weighed mean of all.

    Uploads of one weight are added as they are, in integers where they are integers. `new` begins a sum, `count` tells
    how many uploads it has.

    >>> sums = Sums(Mean, lambda mean: mean.count, "examples")
    >>> sums.of_weight(1).add({"w": torch.tensor([0.0])})
    >>> sums.of_weight(3).add({"w": torch.tensor([4.0])})
    >>> sums.mean(), sums.as_many
    ({'w': tensor([3.])}, 1)
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
        means = {weight: (self._count(s), s.mean()) for weight, s in sorted(self.by_weight.items())}
        if len(means) < 2:
            return next((mean for _, mean in means.values()), {})
        total = sum(weight * count for weight, (count, _) in means.items())
        found: Weights = {}
        for weight, (count, mean) in means.items():
            for name, value in mean.items():
                part = value.double() * (weight * count / total)
                found[name] = found[name] + part if name in found else part
        dtypes = {name: value.dtype for name, value in next(iter(means.values()))[1].items()}
        return {name: value.to(dtypes[name]) for name, value in found.items()}

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
