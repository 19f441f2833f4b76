# SPDX-License-Identifier: Apache-2.0
"""How the numbers of a report lie in its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ldpkernels.common.arrays import Bytes, Integers
from ldpkernels.laws.weightwise import Reported


@dataclass(frozen=True)
class Codec:
    """Where the numbers of each tensor lie: each tensor starts a byte of its own."""

    numbers_a_byte: int  # 8, which are bits, or 1

    def payload_bytes(self, sizes: Sequence[int]) -> int:
        """The length of a report of tensors of these sizes."""
        return self._starts(sizes)[-1]

    def sums_bytes(self, sizes: Sequence[int], count: int) -> int:
        """The length of the sum of so many reports: a plane for each bit of their number, or an integer a byte."""
        widths = count.bit_length() if self.numbers_a_byte == 8 else sums_dtype(count).itemsize
        return widths * self.payload_bytes(sizes)

    def offsets(self, sizes: Sequence[int]) -> list[int]:
        """The byte at which each tensor starts."""
        return self._starts(sizes)[:-1]

    def unused_bits(self, sizes: Sequence[int]) -> tuple[Integers, Bytes]:
        """Bytes with bits after a tensor's last weight, and a mask of those: zero, so that equal reports are equal."""
        k = self.numbers_a_byte
        ends = zip(sizes, self._starts(sizes)[:-1], strict=True)
        found = [(start + size // k, 0xFF & 0xFF << size % k) for size, start in ends if size % k]
        at, masks = np.array(found, np.int64).reshape(-1, 2).T
        return at, masks.astype(np.uint8)

    def _starts(self, sizes: Sequence[int]) -> list[int]:
        """The byte at which each tensor starts, and the one behind the last."""
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] - (-size // self.numbers_a_byte))
        return starts


def codec_of(reported: Reported) -> Codec:
    """The codec of reports of bits or of cells."""
    return Codec(8 if reported == "bits" else 1)


def sums_dtype(count: int) -> np.dtype[np.unsignedinteger]:
    """The format of the sums of so many bytes."""
    return np.dtype(np.uint64 if 255 * count >= 2**32 else np.uint32)
