# SPDX-License-Identifier: Apache-2.0
"""The four floating-point formats, and exact rounding into them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Dtype:
    """A binary floating-point format and the code by which the kernels know it."""

    name: str
    code: int
    itemsize: int
    precision: int  # significant bits
    min_exponent: int  # of the smallest normal number, 2 ** min_exponent
    max_exponent: int  # of the largest finite number, below 2 ** (max_exponent + 1)

    @property
    def largest(self) -> Fraction:
        """The largest finite number."""
        return (2 - Fraction(1, 2 ** (self.precision - 1))) * Fraction(2) ** self.max_exponent

    def quantum(self, x: Fraction | float) -> Fraction:
        """The spacing of this format's numbers around x."""
        exponent = math.frexp(float(x))[1] - 1 if x else self.min_exponent
        if abs(Fraction(x)) < Fraction(2) ** exponent:  # float(x) was rounded up to a power of two
            exponent -= 1
        return Fraction(2) ** (max(exponent, self.min_exponent) - self.precision + 1)

    def floor(self, x: Fraction) -> Fraction:
        """The largest number of this format that is at most x."""
        quantum = self.quantum(x)
        return math.floor(x / quantum) * quantum

    def ceil(self, x: Fraction) -> Fraction:
        """The smallest number of this format that is at least x."""
        return -self.floor(-x)

    def nearest(self, x: Fraction | float) -> Fraction:
        """The number of this format nearest to x, ties to even."""
        quantum = self.quantum(x)
        return round(Fraction(x) / quantum) * quantum

    def holds(self, x: Fraction) -> bool:
        """Whether x is a finite number of this format."""
        return abs(x) <= self.largest and self.nearest(x) == x

    def bits(self, x: Fraction) -> int:
        """The bit pattern of a number of this format."""
        sign = int(x < 0) << (8 * self.itemsize - 1)
        quantum = self.quantum(x)
        significand = int(abs(x) / quantum)
        exponent = quantum.numerator.bit_length() - quantum.denominator.bit_length()
        hidden = 1 << (self.precision - 1)
        if significand < hidden:
            return sign | significand
        biased = exponent + self.precision - 1 - self.min_exponent + 1
        return sign | biased << (self.precision - 1) | (significand - hidden)


FLOAT32 = Dtype("float32", 0, 4, 24, -126, 127)
FLOAT64 = Dtype("float64", 1, 8, 53, -1022, 1023)
BFLOAT16 = Dtype("bfloat16", 2, 2, 8, -126, 127)
FLOAT16 = Dtype("float16", 3, 2, 11, -14, 15)
DTYPES = {d.name: d for d in (FLOAT32, FLOAT64, BFLOAT16, FLOAT16)}


def compute_dtype(dtype: Dtype) -> Dtype:
    """The format in which a kernel compares weights of `dtype` with their range."""
    return FLOAT64 if dtype is FLOAT64 else FLOAT32
