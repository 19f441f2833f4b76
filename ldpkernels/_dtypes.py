# SPDX-License-Identifier: Apache-2.0
"""The four floating-point formats, and exact rounding into them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Dtype:
    """A binary floating-point format and the code by which the kernels know it."""

    name: str
    code: int
    itemsize: int
    precision: int  # significant bits
    min_exponent: int  # of the smallest normal number, 2 ** min_exponent
    max_exponent: int  # of the largest finite number, below 2 ** (max_exponent + 1)
    code_of_struct: str

    @cached_property
    def largest(self) -> Fraction:
        """The largest finite number."""
        return power_of_two(self.max_exponent + 1) - power_of_two(self.max_exponent - self.precision + 1)

    def spacing(self, x: Fraction) -> int:
        """The power of two by which this format's numbers around x are apart."""
        n, d = abs(x.numerator), x.denominator
        exponent = n.bit_length() - d.bit_length() if n else self.min_exponent
        if n and (n << max(-exponent, 0)) < (d << max(exponent, 0)):
            exponent -= 1
        return max(exponent, self.min_exponent) - self.precision + 1

    def floor(self, x: Fraction) -> Fraction:
        """The largest number of this format that is at most x."""
        return floor_to(x, self.spacing(x))

    def ceil(self, x: Fraction) -> Fraction:
        """The smallest number of this format that is at least x."""
        return -self.floor(-x)

    def nearest(self, x: float) -> float:
        """x rounded to this format, ties to even; an OverflowError where it has no finite number."""
        rounded: float = struct.unpack(self.code_of_struct, struct.pack(self.code_of_struct, x))[0]
        return rounded

    def holds(self, x: Fraction) -> bool:
        """Whether x is a finite number of this format."""
        return abs(x) <= self.largest and self.floor(x) == x

    def bits(self, x: float) -> int:
        """The bit pattern of a number of this format."""
        packed = struct.pack("<" + self.code_of_struct, x)
        return int.from_bytes(packed, "little") >> 8 * (len(packed) - self.itemsize)  # bfloat16 is half a float32


def power_of_two(exponent: int) -> Fraction:
    """2 ** exponent, exactly."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_to(x: Fraction, spacing: int) -> Fraction:
    """The largest multiple of 2 ** spacing that is at most x."""
    if spacing >= 0:
        return Fraction(x.numerator // (x.denominator << spacing) << spacing)
    return Fraction((x.numerator << -spacing) // x.denominator, 1 << -spacing)


FLOAT32 = Dtype("float32", 0, 4, 24, -126, 127, "f")
FLOAT64 = Dtype("float64", 1, 8, 53, -1022, 1023, "d")
BFLOAT16 = Dtype("bfloat16", 2, 2, 8, -126, 127, "f")
FLOAT16 = Dtype("float16", 3, 2, 11, -14, 15, "e")
DTYPES = {d.name: d for d in (FLOAT32, FLOAT64, BFLOAT16, FLOAT16)}


def compute_dtype(dtype: Dtype) -> Dtype:
    """The format in which a kernel compares weights of `dtype` with their range."""
    return FLOAT64 if dtype is FLOAT64 else FLOAT32
