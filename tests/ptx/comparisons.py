# SPDX-License-Identifier: Apache-2.0
"""Comparisons and conversions: the rest of what operations.py begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.operations import FLOATS, INTEGERS, OPERATIONS, PLAIN, TYPES, Values, canonical, define

ORDERED: dict[str, Callable[..., Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),  # of NaN no comparison is true
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}
UNORDERED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "nan": "num"}
COMPARED: dict[str, Callable[..., Any]] = dict(ORDERED)
COMPARED |= {name: lambda a, b, f=ORDERED[other]: ~f(a, b) for name, other in UNORDERED.items()}

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    define(f"setp.{_name}.*", "pred = t t", COMPARED[_name], INTEGERS)
for _name in ("eq", "ne"):
    define(f"setp.{_name}.*", "pred = t t", COMPARED[_name], PLAIN)
for _name, _same in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")):
    define(f"setp.{_name}.*", "pred = t t", COMPARED[_same], ("u16", "u32", "u64"))
for _name, _function in COMPARED.items():
    define(f"setp.{_name}.*", "pred = t t", _function, (*FLOATS, "f16"))
    for _joined, _both in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        _with: Any = lambda a, b, p, f=_function, g=_both: g(f(a, b), p)  # noqa: E731
        define(f"setp.{_name}.{_joined}.*", "pred = t t pred", _with, FLOATS)
        if _name in ("eq", "ne", "lt", "le", "gt", "ge"):
            define(f"setp.{_name}.{_joined}.*", "pred = t t pred", _with, INTEGERS)


def _two_numbers(compare: Callable[..., Any]) -> Callable[..., Any]:
    """Of the low and of the high halves."""

    def function(a: Values, b: Values) -> tuple[Values, Values]:
        halves = [[(x >> np.uint32(n)).astype(np.uint16).view(np.float16) for x in (a, b)] for n in (0, 16)]
        return compare(*halves[0]), compare(*halves[1])

    return function


define("setp.nan.f16x2", "pred pred = f16x2 f16x2", _two_numbers(COMPARED["nan"]))


def _integer(round_: Callable[..., Any], target: str) -> Callable[..., Any]:
    """Beyond the ends, the ends; of NaN, nothing."""
    dtype = np.dtype(TYPES[target])
    ends = np.iinfo(dtype)

    def function(x: Values) -> Values:
        z = round_(x.astype(np.float64))
        inside = (z >= float(ends.min)) & (z < float(ends.max // 2 + 1) * 2)
        found = np.where(inside, z, 0.0).astype(dtype)
        found = np.where(z >= float(ends.max // 2 + 1) * 2, dtype.type(ends.max), found)
        return np.where(z < float(ends.min), dtype.type(ends.min), found)

    return function


def _to_half(x: Values) -> Values:
    return canonical(x.astype(np.float16))


def _brain(x: Values) -> Values:
    """bf16 from fp32: the nearest, ties to even."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded.astype(np.uint16))


def _widened(x: Values) -> Values:
    return canonical((x.astype(np.uint32) << np.uint32(16)).view(np.float32))


def _pair(narrow: Callable[..., Any]) -> Callable[..., Any]:
    """The first operand is the high half."""

    def function(a: Values, b: Values) -> Values:
        high, low = (narrow(x).view(np.uint16).astype(np.uint32) for x in (a, b))
        return low | high << np.uint32(16)

    return function


WHOLE = tuple(f"{k}{n}" for k in "su" for n in (8, 16, 32, 64))
ROUNDED = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}

for _to in WHOLE:
    for _from in WHOLE:
        if _to != _from:
            _dtype = TYPES[_to]
            define(f"cvt.{_to}.{_from}", f"{_to} = {_from}", lambda x, d=_dtype: x.astype(d), loose=True)
            _ends = np.iinfo(_dtype)
            _clipped: Any = lambda x, d=_dtype, e=_ends: (  # noqa: E731
                np.clip(x, max(e.min, np.iinfo(x.dtype).min), min(e.max, np.iinfo(x.dtype).max)).astype(d)
            )
            define(f"cvt.sat.{_to}.{_from}", f"{_to} = {_from}", _clipped, loose=True)
for _from in WHOLE:
    for _to in FLOATS:
        define(f"cvt.rn.{_to}.{_from}", f"{_to} = {_from}", lambda x, d=TYPES[_to]: x.astype(d), loose=True)
for _name, _function in ROUNDED.items():
    for _from in FLOATS:
        define(f"cvt.{_name}i.{_from}.{_from}", f"{_from} = {_from}", lambda x, f=_function: canonical(f(x)))
        for _to in WHOLE[2:4] + WHOLE[6:8]:
            define(f"cvt.{_name}i.{_to}.{_from}", f"{_to} = {_from}", _integer(_function, _to))
for _name, _narrow in (("f16", _to_half), ("bf16", _brain)):
    define(f"cvt.rn.{_name}.f32", f"{_name} = f32", _narrow)
    define(f"cvt.rn.{_name}x2.f32", f"{_name}x2 = f32 f32", _pair(_narrow))
define("cvt.f32.f16", "f32 = f16", lambda x: canonical(x.astype(np.float32)))
define("cvt.f64.f16", "f64 = f16", lambda x: canonical(x.astype(np.float64)))
define("cvt.sat.f32.f32", "f32 = f32", lambda x: np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0)))
define("cvt.f32.bf16", "f32 = bf16", _widened)
define("cvt.f64.bf16", "f64 = bf16", lambda x: canonical(_widened(x).astype(np.float64)))
define("cvt.rn.f32.f64", "f32 = f64", lambda x: canonical(x.astype(np.float32)))
define("cvt.f64.f32", "f64 = f32", lambda x: canonical(x.astype(np.float64)))

__all__ = ["OPERATIONS"]
