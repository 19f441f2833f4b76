# SPDX-License-Identifier: Apache-2.0
"""Whose record a row is, who is drawn for a batch, and what a person counts with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from ldpkernels.common import arguments
from ldpkernels.common.arrays import Integers
from ldpkernels.ops.keys import refuse_unseeded

Source: TypeAlias = "Literal['secure'] | torch.Generator"
_BITS = 53


@dataclass(frozen=True)
class People:
    """The rows of each person, one person after the other."""

    rows: Integers
    counts: Integers
    most: int

    def drawn(self, q: float, source: Source) -> tuple[torch.Tensor, torch.Tensor, int]:
        """The rows of a Poisson sample of people, at most so many of each, the place of each row's person, how many."""
        chosen = sample(len(self.counts), q, source).numpy()
        rows, whose = self.rows[np.repeat(chosen, self.counts)], np.repeat(np.arange(chosen.sum()), self.counts[chosen])
        if self.counts.max(initial=0) > self.most:  # who is told the choice still sees no more than a clipped gradient
            seed = None if source == "secure" else int(torch.randint(2**62, (), generator=source))
            order = np.lexsort((np.random.default_rng(seed).random(len(rows)), whose))
            first = np.searchsorted(whose, whose)  # sorting keeps each person's places
            kept = order[np.arange(len(rows)) - first < self.most]
            rows, whose = rows[kept], whose[kept]
        return torch.from_numpy(rows), torch.from_numpy(whose), int(chosen.sum())


def people_of(data: Sequence[torch.Tensor], persons: torch.Tensor | None, most: int) -> People:
    """The people whose records the rows are; each row is one of its own where nobody is named."""
    most = arguments.count("most", most)
    if not data or len({len(part) for part in data}) != 1 or not len(data[0]):
        raise ValueError(f"data has {[len(part) for part in data]} rows: pass tensors with one row for each example")
    rows = np.arange(len(data[0]))
    if persons is None:
        return People(rows, np.ones_like(rows), 1)
    names = persons.detach().cpu().numpy()
    if names.shape != rows.shape or names.dtype.kind not in "iu":
        raise ValueError(
            f"persons is {persons.dtype} of shape {tuple(persons.shape)}: pass an integer for each of the"
            f" {len(rows)} rows, the same for all records of a person"
        )
    return People(np.argsort(names, kind="stable"), np.unique(names, return_counts=True)[1], most)


def means(values: torch.Tensor, whose: torch.Tensor, people: int) -> torch.Tensor:
    """Each person's mean of the rows that are its own."""
    if len(values) == people:
        return values
    whose = whose.to(values.device)
    weights = 1 / whose.bincount(minlength=people).to(values.dtype)[whose]
    shape = (-1, *(1 for _ in values.shape[1:]))
    return values.new_zeros((people, *values.shape[1:])).index_add_(0, whose, values * weights.reshape(shape))


def check_source(generator: Source) -> None:
    """Refuse what randomness does not come from here."""
    if generator != "secure" and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator is a {type(generator).__name__}: pass 'secure' or a torch.Generator")
    if generator != "secure":
        refuse_unseeded(generator)


def sample(people: int, q: float, generator: Source) -> torch.Tensor:
    """Who is in a batch, each by a draw of its own, with a probability of q or less by 2^-53."""
    below = int(q * 2**_BITS)
    if isinstance(generator, torch.Generator):
        return (torch.randint(2**_BITS, (people,), generator=generator, device=generator.device) < below).cpu()
    words = np.frombuffer(os.urandom(8 * people), dtype=np.uint64) >> np.uint64(64 - _BITS)
    return torch.from_numpy(words < np.uint64(below))
