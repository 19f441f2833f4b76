# SPDX-License-Identifier: Apache-2.0
"""Means over clients of unequal data: alike, as the papers have them, or by the numbers of examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import torch

from ldpkernels.federated.training import Client, Weights

Weigh = Literal["alike", "examples"]


class Sum(Protocol):
    """A sum of uploads that count alike."""

    @property
    def clients(self) -> int:
        """The number of uploads that were added."""

    def mean(self) -> Weights:
        """The mean of the uploads that were added, by name."""


class Mean:
    """The weighed mean of plain models or updates: a sum in fp64, given in each tensor's own dtype.

    >>> mean = Mean()
    >>> mean.add({"w": torch.tensor([1.0, 2.0])})
    >>> mean.add({"w": torch.tensor([2.0, 4.0])}, weight=3)
    >>> mean.mean()
    {'w': tensor([1.7500, 3.5000])}
    """

    def __init__(self) -> None:
        self._weight = 0
        self._sum: Weights = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, weights: Weights, weight: int = 1) -> None:
        """Add one client's tensors, so many times."""
        for name, w in weights.items():
            part = w.double() * weight
            self._sum[name] = self._sum[name] + part if name in self._sum else part
            self._dtypes[name] = w.dtype
        self._weight += weight

    def mean(self) -> Weights:
        """The mean of what was added; nothing if nothing was added."""
        return {name: (total / self._weight).to(self._dtypes[name]) for name, total in self._sum.items()}


def weighed_mean(sums: Mapping[int, Sum]) -> Weights:
    """The mean of all uploads, from one sum for each weight that clients have; nothing if there is no sum.

    Uploads with the same weight are added in integers. Only the means of these sums are weighed in floating point.

    >>> import ldpkernels
    >>> sums = {1: ldpkernels.Aggregate(), 3: ldpkernels.Aggregate()}
    >>> for weight, upload in ((1, [-1.0]), (3, [1.0])):
    ...     report = ldpkernels.report({"w": torch.tensor(upload)}, C=0.0, R=1.0, eps=20.0, generator=ldpkernels.key(0))
    ...     sums[weight].add(report)
    >>> weighed_mean(sums), alike_clients(sums)
    ({'w': tensor([0.5000])}, 1)
    """
    if len(sums) == 1:
        return next(iter(sums.values())).mean()
    mean = Mean()
    for weight, one in sorted(sums.items()):
        mean.add(one.mean(), weight * one.clients)
    return mean.mean()


def alike_clients(sums: Mapping[int, Sum]) -> int:
    """The number of clients of equal weight whose mean would have the same noise as that of these sums."""
    weighed = sum(weight * one.clients for weight, one in sums.items())
    return weighed**2 // sum(weight**2 * one.clients for weight, one in sums.items())


def weight_of(client: Client, weigh: Weigh) -> int:
    """The client's weight in the mean. If examples count, its number of examples is public."""
    return 1 if weigh == "alike" else len(client.data[1])


def check_options(weigh: str, dropout: float) -> None:
    """Refuse an unknown way to weigh, and a dropout that is not a part of the clients."""
    if weigh not in ("alike", "examples"):
        raise ValueError(f"weigh={weigh!r} must be 'alike' or 'examples'")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be at least 0 and below 1")
