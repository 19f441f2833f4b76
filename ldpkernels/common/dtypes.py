# SPDX-License-Identifier: Apache-2.0
"""The four floating-point formats, and exact rounding into them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, Union

from numpy.typing import DTypeLike as NumpyDtype

if TYPE_CHECKING:
    import torch

DtypeLike: TypeAlias = Union[NumpyDtype, "torch.dtype"]


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
    _number: struct.Struct = field(init=False, repr=False)
    _pattern: struct.Struct = field(init=False, repr=False)
    _dropped: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        width = struct.calcsize(self.code_of_struct)
        object.__setattr__(self, "_number", struct.Struct("<" + self.code_of_struct))
        object.__setattr__(self, "_pattern", struct.Struct("<" + {2: "H", 4: "I", 8: "Q"}[width]))
        object.__setattr__(self, "_dropped", 8 * (width - self.itemsize))  # bfloat16 is half a float32

    @cached_property
    def largest(self) -> Fraction:
        """The largest finite number."""
        return power_of_two(self.max_exponent + 1) - power_of_two(self.max_exponent - self.precision + 1)

    def spacing(self, x: Fraction) -> int:
        """The power of two by which this format's numbers around x are apart."""
        return self.spacing_at(x.numerator, x.denominator, 0)

    def spacing_at(self, n: int, d: int, exponent: int) -> int:
        """The power of two by which this format's numbers around n / d * 2 ** exponent are apart."""
        n = abs(n)
        if not n:
            return self.min_exponent - self.precision + 1
        top = n.bit_length() - d.bit_length()
        if (n << max(-top, 0)) < (d << max(top, 0)):
            top -= 1
        return max(top + exponent, self.min_exponent) - self.precision + 1

    def floor(self, x: Fraction) -> Fraction:
        """The largest number of this format that is at most x."""
        return floor_to(x, self.spacing(x))

    def ceil(self, x: Fraction) -> Fraction:
        """The smallest number of this format that is at least x."""
        return -self.floor(-x)

    def ceil_at(self, n: int, d: int, exponent: int) -> float:
        """The smallest number of this format that is at least n / d * 2 ** exponent."""
        spacing = self.spacing_at(n, d, exponent)
        return scaled(-floor_at(-n, d, exponent - spacing), spacing)

    def exceeded(self, n: int, d: int, exponent: int) -> bool:
        """Whether n / d * 2 ** exponent is above the largest finite number."""
        if n.bit_length() - d.bit_length() + exponent < self.max_exponent:
            return False
        step = self.max_exponent - self.precision + 1
        return -floor_at(-n, d, exponent - step) >= 1 << self.precision

    def nearest(self, x: float) -> float:
        """x rounded to this format, ties to even; an OverflowError where it has no finite number."""
        rounded: float = self._number.unpack(self._number.pack(x))[0]
        return rounded

    def holds(self, x: Fraction) -> bool:
        """Whether x is a finite number of this format."""
        d = x.denominator
        return d & (d - 1) == 0 and self.holds_at(x.numerator, 1 - d.bit_length())

    def holds_at(self, n: int, exponent: int) -> bool:
        """Whether n * 2 ** exponent is a finite number of this format."""
        if not n:
            return True
        zeros = (n & -n).bit_length() - 1
        digits, lowest, highest = n.bit_length() - zeros, zeros + exponent, n.bit_length() + exponent - 1
        return digits <= self.precision and self.min_exponent - self.precision < lowest and highest <= self.max_exponent

    def bits(self, x: float) -> int:
        """The bit pattern of a number of this format."""
        pattern: int = self._pattern.unpack(self._number.pack(x))[0]
        return pattern >> self._dropped


def power_of_two(exponent: int) -> Fraction:
    """2 ** exponent, exactly."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_at(n: int, d: int, exponent: int) -> int:
    """The largest integer that is at most n / d * 2 ** exponent."""
    return (n << exponent) // d if exponent >= 0 else n // (d << -exponent)


def nearest(n: int, d: int) -> int:
    """n / d to the nearest integer, ties to even."""
    twice, odd = divmod(2 * n + d, 2 * d)
    return twice - (odd == 0 and twice % 2)


def scaled(n: int, exponent: int) -> float:
    """n * 2 ** exponent, which must be a float."""
    return float(n << exponent) if exponent >= 0 else n / (1 << -exponent)


def floor_to(x: Fraction, spacing: int) -> Fraction:
    """The largest multiple of 2 ** spacing that is at most x."""
    return floor_at(x.numerator, x.denominator, -spacing) * power_of_two(spacing)


FLOAT32 = Dtype("float32", 0, 4, 24, -126, 127, "f")
FLOAT64 = Dtype("float64", 1, 8, 53, -1022, 1023, "d")
BFLOAT16 = Dtype("bfloat16", 2, 2, 8, -126, 127, "f")
FLOAT16 = Dtype("float16", 3, 2, 11, -14, 15, "e")
DTYPES = {d.name: d for d in (FLOAT32, FLOAT64, BFLOAT16, FLOAT16)}


def compute_dtype(dtype: Dtype) -> Dtype:
    """The format in which a kernel compares weights of `dtype` with their range."""
    return FLOAT64 if dtype is FLOAT64 else FLOAT32


def dtype_named(dtype: DtypeLike) -> Dtype:
    """One of the four formats, from its name or from a NumPy or torch dtype.

    >>> dtype_named("torch.bfloat16").name
    'bfloat16'
    """
    name = str(getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"dtype {dtype} is not supported: use one of {', '.join(DTYPES)}")
    return DTYPES[name]
