# SPDX-License-Identifier: Apache-2.0
"""Optional dependencies, and the checks of arguments that every function here shares."""

import importlib
import math
from numbers import Real
from typing import Any


def require(module: str) -> Any:
    """Import an optional dependency at its first use; the error names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this computation needs {module}: pip install ldpkernels[accounting]") from error


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def positive(name: str, value: float, cure: str = "give a finite number above 0") -> float:
    """Return value as a float; it must be finite and above 0."""
    if not _number(value) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} = {value!r} is not a finite number above 0: {cure}")
    return float(value)


def non_negative(name: str, value: float) -> float:
    """Return value as a float; it must be finite and at least 0."""
    if not _number(value) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} = {value!r} is not a finite number of 0 or more")
    return float(value)


def count(name: str, value: int, least: int = 1) -> int:
    """Return value as an int; it must be a whole number of at least `least`."""
    if not _number(value) or not math.isfinite(value) or int(value) != value or value < least:
        raise ValueError(f"{name} = {value!r} is not a whole number of {least} or more")
    return int(value)


def probability(name: str, value: float, *, zero: bool = False, one: bool = True) -> float:
    """Return value as a float; it must lie in (0, 1], or in the variant that the keywords allow."""
    if not _number(value) or not ((value >= 0 if zero else value > 0) and (value <= 1 if one else value < 1)):
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise ValueError(f"{name} = {value!r} is outside {interval}: give a probability in {interval}")
    return float(value)


def choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return value; it must be one of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{name} = {value!r} is unknown: choose one of {', '.join(allowed)}")
    return value
