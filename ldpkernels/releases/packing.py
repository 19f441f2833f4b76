# SPDX-License-Identifier: Apache-2.0
"""Reports as integers that a secure sum adds: several weights an integer, in a base that no honest sum overflows.

The sum modulo 2^32 of everyone's integers is the counts of a round, which is what `Aggregate` has in the clear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ldpkernels.calls.expectation import Expected
from ldpkernels.calls.reports import Aggregate, Report
from ldpkernels.common.arrays import Array, Integers
from ldpkernels.laws.registry import mechanism_named
from ldpkernels.releases.release import Arrays, EachWeight
from ldpkernels.wire.codec import sums_dtype
from ldpkernels.wire.envelope import encode
from ldpkernels.wire.layout import Layout

BITS: Literal[32] = 32  # of an integer


@dataclass(frozen=True)
class Packing:
    """How many weights an integer holds, and in which base.

    >>> Packing.of(EachWeight(1.0, "two-point"), clients=10)
    Packing(largest=1, clients=10, digits=9)
    """

    largest: int  # number that a client reports of a weight
    clients: int
    digits: int

    @classmethod
    def of(cls, release: EachWeight, clients: int) -> Packing:
        """The tightest for so many clients."""
        if clients < 1:
            raise ValueError(f"clients={clients} must be at least 1")
        largest = 1 if mechanism_named(release.mechanism, release.eps).reported == "bits" else 255
        digits = 0
        while (largest * clients + 1) ** (digits + 1) <= 2**BITS:
            digits += 1
        if not digits:
            raise ValueError(
                f"{clients} clients' reports do not fit a secure sum modulo 2^{BITS}: select fewer a round"
            )
        return cls(largest, clients, digits)

    @property
    def base(self) -> int:
        """One more than the largest sum of a weight."""
        return self.largest * self.clients + 1

    def length(self, weights: int) -> int:
        """How many integers so many weights take."""
        return -(-weights // self.digits)

    def packed(self, report: Report) -> Integers:
        """A client's integers."""
        numbers = _numbers(report)
        rows = np.zeros((self.length(numbers.size), self.digits), np.int64)
        rows.reshape(-1)[: numbers.size] = numbers
        integers: Integers = rows @ self._powers
        return integers

    def counts(self, sums: Array, clients: int, weights: int) -> Integers:
        """The sum of each weight over so many clients, from the sums of their integers."""
        whole = sums.astype(np.int64)
        if whole.shape != (self.length(weights),) or (whole >= self.base**self.digits).any():
            raise ValueError(_LIE)
        numbers: Integers = (whole[:, None] // self._powers % self.base).reshape(-1)
        if numbers[weights:].any() or (numbers > self.largest * clients).any():
            raise ValueError(_LIE)
        return numbers[:weights]

    @property
    def _powers(self) -> Integers:
        return self.base ** np.arange(self.digits, dtype=np.int64)


_LIE = "the secure sum is none that honest reports have: a client sent something else, and nobody can say which"


def aggregate_of(expect: Expected[Arrays], counts: Integers, clients: int) -> Aggregate[Arrays]:
    """The aggregate of so many reports, from the sum of each weight."""
    layout = expect.layout
    if _bits(layout):
        payload = b"".join(_bytes(layout, counts >> plane & 1) for plane in range(clients.bit_length()))
    else:
        payload = counts.astype(sums_dtype(clients).newbyteorder("<")).tobytes()
    return Aggregate.from_bytes(encode({"kind": "aggregate", "clients": clients, **layout.header}, payload), expect)


def _bits(layout: Layout) -> bool:
    return mechanism_named(layout.mechanism, layout.eps).reported == "bits"


def _numbers(report: Report) -> Integers:
    """What a report has of each weight, tensor after tensor."""
    layout, data = report.layout, report.bits
    if not _bits(layout):
        return data.astype(np.int64)
    starts = layout.codec.offsets(layout.sizes)
    parts = [
        np.unpackbits(data[at:], count=size, bitorder="little") for at, size in zip(starts, layout.sizes, strict=True)
    ]
    return np.concatenate(parts).astype(np.int64)


def _bytes(layout: Layout, ones: Integers) -> bytes:
    """A bit for each weight, laid out as in a report: every tensor from a byte of its own."""
    parts = np.split(ones.astype(np.uint8), np.cumsum(layout.sizes)[:-1])
    return b"".join(np.packbits(part, bitorder="little").tobytes() for part in parts)
