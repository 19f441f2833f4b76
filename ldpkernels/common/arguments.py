# SPDX-License-Identifier: Apache-2.0
"""The checks of arguments that every function here shares: an error names the argument, its value and the cure."""

from __future__ import annotations

import math
import operator
import os
from numbers import Real
from typing import SupportsIndex

# Nothing is counted beyond this: a product of two counts is still a number that floating point can hold.
MOST = 2**63 - 1
# A smaller one can't be told from rounding; what never fails is delta = 0.
LEAST_DELTA = 1e-300


def _finite(value: object) -> float | None:
    """The number as a float, or None where it is no finite one."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def shown(value: object) -> str:
    """The value as an error shows it; Python refuses to write out whole numbers of thousands of digits."""
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and value > MOST**4 else repr(value)


def number(name: str, value: object) -> float:
    """Return value, of any type that has a number, as a float."""
    if isinstance(value, (str, bytes, bool)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name}={value!r} must be a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError(f"{name} is an integer above the largest floating-point number: pass a smaller one") from None


def integer(name: str, value: object, most: int, interval: str) -> int:
    """Return value, a number of any type, as the integer from 0 to `most` that it is."""
    whole = _whole(value)
    if whole is None or not 0 <= whole <= most:
        raise ValueError(f"{name}={shown(value)} must be an integer from {interval}")
    return whole


def positive(name: str, value: float, cure: str = "") -> float:
    """Return value as a float; it must be finite and above 0."""
    number = _finite(value)
    if number is None or number <= 0:
        raise ValueError(f"{name} = {shown(value)} is not a finite number above 0" + f": {cure}" * bool(cure))
    return number


def non_negative(name: str, value: float) -> float:
    """Return value as a float; it must be finite and at least 0."""
    number = _finite(value)
    if number is None or number < 0:
        raise ValueError(f"{name} = {shown(value)} is not a finite number of 0 or more")
    return number


def count(name: str, value: int, least: int = 1, most: int = MOST) -> int:
    """Return value as an int; it must be a whole number from `least` to `most`."""
    whole = _whole(value)
    if whole is None or whole < least:
        raise ValueError(f"{name} = {shown(value)} is not a whole number of {least} or more")
    if whole > most:
        raise ValueError(f"{name} = {shown(value)} is above {most:,}, the most that is counted: give a smaller number")
    return whole


def _whole(value: object) -> int | None:
    """The whole number, of any size, or None where it is none."""
    if type(value) is int:  # to ask whether it is a protocol's takes ten microseconds
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    number = _finite(value)
    return int(number) if number is not None and number.is_integer() else None


def probability(name: str, value: float, *, one: bool = True) -> float:
    """Return value as a float; it must lie in (0, 1], or in (0, 1) without `one`."""
    number = _finite(value)
    if number is None or not 0 < number <= 1 or (number == 1 and not one):
        interval = f"(0, 1{']' if one else ')'}"
        raise ValueError(f"{name} = {shown(value)} is outside {interval}: give a probability in {interval}")
    return number


def excluded(delta: float, *, zero: bool = False) -> float:
    """Return delta as a float; it must lie in (0, 1), or be 0 where that is allowed, and not be vanishingly small."""
    number = _finite(delta)
    if number is None or not 0 <= number < 1 or (number == 0 and not zero):
        interval = f"{'[' if zero else '('}0, 1)"
        raise ValueError(f"delta = {shown(delta)} is outside {interval}: give a probability in {interval}")
    if 0 < number < LEAST_DELTA:
        raise ValueError(
            f"delta = {shown(delta)} is below {LEAST_DELTA:g}, the least that can be computed: give a larger one"
            + (", or 0" if zero else "")
        )
    return number


def choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return value; it must be one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} = {shown(value)} is unknown: choose one of {', '.join(allowed)}")
    return value


def is_name(text: str | None) -> bool:
    """Whether the text stands for a function, "package.module:function": it has a colon, and is not a folder.

    Whether it is well formed is for whoever imports it to say.

    >>> is_name("torchvision.models:resnet18"), is_name("data/mnist"), is_name(None)
    (True, False, False)
    """
    return text is not None and ":" in text and not os.path.isdir(text)
