# SPDX-License-Identifier: Apache-2.0
"""What every opcode computes, each thread by itself, as a NumPy function of typed operands.

Registers hold unsigned integers. An operation names the types as which its operands are read, and as which its results
are written; only what is listed here exists.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Any  # an array of one element a thread, or a NumPy number for all of them

TYPES = {"pred": np.bool_, "f16": np.float16, "f32": np.float32, "f64": np.float64}
TYPES |= {f"u{n}": np.dtype(f"u{n // 8}").type for n in (8, 16, 32, 64)}
TYPES |= {f"b{n}": np.dtype(f"u{n // 8}").type for n in (8, 16, 32, 64)}
TYPES |= {f"s{n}": np.dtype(f"i{n // 8}").type for n in (8, 16, 32, 64)}
TYPES |= {"bf16": np.uint16, "f16x2": np.uint32, "bf16x2": np.uint32, "f32x2": np.uint64}
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}

SIGNED, UNSIGNED = ("s16", "s32", "s64"), ("u16", "u32", "u64")
INTEGERS, PLAIN, FLOATS = SIGNED + UNSIGNED, ("b16", "b32", "b64"), ("f32", "f64")


@dataclass(frozen=True)
class Operation:
    """Types of results and of operands, and the function. Two results are `p|q` or, `of_braces`, a list in braces."""

    results: tuple[str, ...]
    operands: tuple[str, ...]
    function: Callable[..., Any]
    loose: bool = False  # a register may be wider than a type: of cvt, whose result is extended


OPERATIONS: dict[str, Operation] = {}


def define(
    opcode: str, signature: str, function: Callable[..., Any], types: tuple[str, ...] = ("",), **more: Any
) -> None:
    """An opcode of each type: `t` stands for the type, in the opcode after its last dot, `w` for one twice as wide."""
    for t in types:
        wide = f"{t[:1]}{2 * int(t[1:])}" if t[1:].isdigit() else ""
        named = opcode.replace("*", t)
        results, _, operands = signature.partition("=")
        types_of = {"t": t, "w": wide}
        sides = [tuple(types_of.get(word, word) for word in side.split()) for side in (results, operands)]
        if named in OPERATIONS:
            raise ValueError(f"{named} is there twice")
        OPERATIONS[named] = Operation(*sides, _of(function, t), **more)


def _of(function: Callable[..., Any], t: str) -> Callable[..., Any]:
    """A function of a type, where one is asked for by the name of its first argument."""
    names = function.__code__.co_varnames[:1] if hasattr(function, "__code__") else ()
    return function(t) if names == ("of_type",) else function


def canonical(x: Values) -> Values:
    """Arithmetic's NaN is one bit pattern on a device."""
    nan = np.isnan(x)
    if nan.any():
        pattern = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[x.itemsize]
        return np.where(nan, np.array(pattern, BITS[x.itemsize]).view(x.dtype), x)
    return x


def _float(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: canonical(function(*x))


def _lesser(a: Values, b: Values) -> Values:
    """The number of two where one is NaN, and -0 below 0."""
    bits = BITS[a.itemsize]
    return canonical(np.where(a == b, (a.view(bits) | b.view(bits)).view(a.dtype), np.fmin(a, b)))


def _greater(a: Values, b: Values) -> Values:
    bits = BITS[a.itemsize]
    return canonical(np.where(a == b, (a.view(bits) & b.view(bits)).view(a.dtype), np.fmax(a, b)))


def _or_nan(choose: Callable[..., Any]) -> Callable[..., Any]:
    def function(*x: Values) -> Values:
        nan = np.isnan(x[0])
        found = x[0]
        for other in x[1:]:
            nan, found = nan | np.isnan(other), choose(found, other)
        return canonical(np.where(nan, found.dtype.type(np.nan), found))

    return function


def _shifted(of_type: str) -> Callable[..., Any]:
    """To the right; by the width or more, what is left is the sign or nothing."""
    width = int(of_type[1:])

    def function(a: Values, n: Values) -> Values:
        by = np.minimum(n, width - 1).astype(a.dtype)
        return a >> by if of_type[0] == "s" else np.where(n >= width, a.dtype.type(0), a >> by)

    return function


def _raised(of_type: str) -> Callable[..., Any]:
    width = int(of_type[1:])
    return lambda a, n: np.where(n >= width, a.dtype.type(0), a << np.minimum(n, width - 1).astype(a.dtype))


def _high(of_type: str) -> Callable[..., Any]:
    width, signed = int(of_type[1:]), of_type[0] == "s"
    wide = TYPES[f"{of_type[0]}{2 * width}"] if width < 64 else None

    def function(a: Values, b: Values) -> Values:
        if wide:
            return (a.astype(wide) * b.astype(wide) >> wide(width)).astype(a.dtype)
        ua, ub, low, half = a.view("u8"), b.view("u8"), np.uint64(2**32 - 1), np.uint64(32)
        a0, a1, b0, b1 = ua & low, ua >> half, ub & low, ub >> half
        middle = a1 * b0 + (a0 * b0 >> half)
        other = a0 * b1 + (middle & low)
        high = a1 * b1 + (middle >> half) + (other >> half)
        if signed:
            high = high - np.where(a < 0, ub, np.uint64(0)) - np.where(b < 0, ua, np.uint64(0))
        return high.view(a.dtype)

    return function


def _divided(a: Values, b: Values) -> Values:
    """Towards zero; by nothing, all bits are set."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    found = a // safe
    if a.dtype.kind == "i":
        found = found + ((found < 0) & (found * safe != a)).astype(a.dtype)
    return np.where(b == 0, a.dtype.type(-1 if a.dtype.kind == "i" else np.iinfo(a.dtype).max), found)


def _remains(a: Values, b: Values) -> Values:
    return a - _divided(a, b) * b


def _fused(a: Values, b: Values, c: Values) -> Values:
    """fp32 with one rounding: fp64 holds the product, and a sum that is rounded to odd is rounded once."""
    p, q = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    s = p + q
    v = s - p
    error = (p - (s - v)) + (q - v)
    bits = s.view(np.int64)
    odd = np.where((error > 0) == (s > 0), bits + 1, bits - 1)
    inexact = np.isfinite(s) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, odd, bits).view(np.float64).astype(np.float32)


_FMA = ctypes.CDLL(None).fma  # of libm, with one rounding
_FMA.restype, _FMA.argtypes = ctypes.c_double, [ctypes.c_double] * 3


def _field(of_type: str) -> Callable[..., Any]:
    """`len` bits from `pos`, of a signed type extended by the highest of them, or of the number."""
    width = int(of_type[1:])
    dtype = TYPES[f"u{width}"]

    def function(a: Values, pos: Values, length: Values) -> Values:
        ua = np.asarray(a).view(dtype)
        pos, length = (x & np.uint32(0xFF) for x in (pos, length))
        kept = np.minimum(length, np.uint32(width)).astype(dtype)
        at = np.minimum(pos, np.uint32(width - 1)).astype(dtype)
        found = np.where(pos >= width, dtype(0), ua >> at)
        mask = np.where(kept >= width, ~dtype(0), (dtype(1) << np.minimum(kept, dtype(width - 1))) - dtype(1))
        found = found & mask
        if of_type[0] == "s":
            last = np.minimum(pos.astype(np.int64) + length - 1, width - 1).clip(0).astype(dtype)
            sign = (ua >> last & dtype(1) != 0) & (kept > 0)
            room = np.where(pos >= width, dtype(0), np.minimum(kept, dtype(width) - at))
            above = np.where(room >= width, dtype(0), ~dtype(0) << np.minimum(room, dtype(width - 1)))
            found = np.where(sign, found | above, found)
        return found.view(TYPES[of_type])

    return function


def _inserted(of_type: str) -> Callable[..., Any]:
    """The lowest `length` bits of a in the place of those of b from `pos` on, as far as there are any."""
    width = int(of_type[1:])
    dtype = TYPES[of_type]

    def function(a: Values, b: Values, pos: Values, length: Values) -> Values:
        pos, length = (x & np.uint32(0xFF) for x in (pos, length))
        kept, at = (np.minimum(x, np.uint32(width - 1)).astype(dtype) for x in (length, pos))
        low = np.where(length >= width, ~dtype(0), (dtype(1) << kept) - dtype(1))
        mask = np.where(pos >= width, dtype(0), low << at)
        return (b & ~mask) | (a << at & mask)

    return function


def _permuted(a: Values, b: Values, selector: Values) -> Values:
    """Four bytes of the eight of b:a; a selector's high bit asks for the byte's sign instead."""
    pair = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    found = np.uint32(0)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i)
        byte = (pair >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & np.uint32(0xFF)
        byte = np.where(nibble & np.uint32(8), (byte >> np.uint32(7)) * np.uint32(0xFF), byte)
        found = found | byte << np.uint32(8 * i)
    return found


def _looked_up(a: Values, b: Values, c: Values, table: Values) -> Values:
    found = np.zeros_like(a)
    for i in range(8):
        chosen = (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        found = found | np.where(table >> np.uint32(i) & np.uint32(1), chosen, np.uint32(0))
    return found


def _count(x: Values) -> Values:
    """One bits, by halves, as NumPy has a function of that since 2.0 alone."""
    x = np.asarray(x).astype(np.uint64)
    for bits, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        x = (x & np.uint64(mask)) + (x >> np.uint64(bits) & np.uint64(mask))
    return (x * np.uint64(0x0101010101010101) >> np.uint64(56)).astype(np.uint32)


def _leading(x: Values) -> Values:
    found, width = np.zeros(np.shape(x), np.uint32), 8 * x.itemsize
    for i in range(width):
        found = found + (x >> x.dtype.type(i) != 0)
    return (np.uint32(width) - found).astype(np.uint32)


def _wide(of_type: str) -> Callable[..., Any]:
    wide = TYPES[f"{of_type[0]}{2 * int(of_type[1:])}"]
    return lambda a, b, *c: sum(c, a.astype(wide) * b.astype(wide))


# Arithmetic of integers wraps.
define("add.*", "t = t t", lambda a, b: a + b, INTEGERS)
define("sub.*", "t = t t", lambda a, b: a - b, INTEGERS)
define("mul.lo.*", "t = t t", lambda a, b: a * b, INTEGERS)
define("mul.hi.*", "t = t t", _high, INTEGERS)
define("mul.wide.*", "w = t t", _wide, ("s16", "s32", "u16", "u32"))
define("mad.lo.*", "t = t t t", lambda a, b, c: a * b + c, INTEGERS)
define("mad.wide.*", "w = t t w", _wide, ("s16", "s32", "u16", "u32"))
define("div.*", "t = t t", _divided, INTEGERS)
define("rem.*", "t = t t", _remains, INTEGERS)
define("neg.*", "t = t", lambda a: -a, SIGNED)
define("abs.*", "t = t", np.abs, SIGNED)
define("min.*", "t = t t", np.minimum, INTEGERS)
define("max.*", "t = t t", np.maximum, INTEGERS)
define("shl.*", "t = t u32", _raised, PLAIN)
define("shr.*", "t = t u32", _shifted, INTEGERS + PLAIN)
define("bfe.*", "t = t u32 u32", _field, ("s32", "s64", "u32", "u64"))
define("bfi.*", "t = t t u32 u32", _inserted, ("b32", "b64"))
define("popc.*", "u32 = t", _count, ("b32", "b64"))
define("clz.*", "u32 = t", _leading, ("b32", "b64"))


def _turn_left(a: Values, b: Values, n: Values) -> Values:
    n = n & np.uint32(31)
    return np.where(n == 0, b, b << n | a >> (np.uint32(32) - n & np.uint32(31)))


def _turn_right(a: Values, b: Values, n: Values) -> Values:
    n = n & np.uint32(31)
    return np.where(n == 0, a, a >> n | b << (np.uint32(32) - n & np.uint32(31)))


define("shf.l.wrap.b32", "b32 = b32 b32 u32", _turn_left)
define("shf.r.wrap.b32", "b32 = b32 b32 u32", _turn_right)
define("prmt.b32", "b32 = b32 b32 b32", _permuted)
define("lop3.b32", "b32 = b32 b32 b32 u32", _looked_up)

LOGICAL = (*PLAIN, "pred")
define("and.*", "t = t t", lambda a, b: a & b, LOGICAL)
define("or.*", "t = t t", lambda a, b: a | b, LOGICAL)
define("xor.*", "t = t t", lambda a, b: a ^ b, LOGICAL)
define("not.*", "t = t", lambda a: ~a, LOGICAL)
define("selp.*", "t = t t pred", lambda a, b, p: np.where(p, a, b), (*PLAIN, *INTEGERS, *FLOATS))
define("mov.*", "t = t", lambda a: a.copy(), (*PLAIN, *UNSIGNED, *FLOATS, "pred"))

# Arithmetic of numbers: one rounding, subnormal numbers as they are.
for _name, _function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
    define(f"{_name}.rn.*", "t = t t", _float(_function), FLOATS)
    define(f"{_name}.*", "t = t t", _float(_function), FLOATS)
define("div.rn.*", "t = t t", _float(np.divide), FLOATS)
define("sqrt.rn.*", "t = t", _float(np.sqrt), FLOATS)
define("fma.rn.f32", "f32 = f32 f32 f32", _float(_fused))
define("fma.rn.f64", "f64 = f64 f64 f64", _float(np.vectorize(_FMA, otypes=[np.float64])))
define("min.*", "t = t t", _lesser, FLOATS)
define("max.*", "t = t t", _greater, FLOATS)
define("min.NaN.f32", "f32 = f32 f32", _or_nan(_lesser))
define("max.NaN.f32", "f32 = f32 f32", _or_nan(_greater))


def _bitwise(change: Callable[[Values, Any], Values], lanes: int = 1) -> Callable[..., Any]:
    """Of the sign, which is no arithmetic."""

    def function(x: Values) -> Values:
        bits = BITS[x.itemsize]
        width = 8 * x.itemsize // lanes
        sign = bits(sum(1 << (width * (i + 1) - 1) for i in range(lanes)))
        return change(x.view(bits), sign).view(x.dtype)

    return function


define("abs.*", "t = t", _bitwise(lambda x, sign: x & ~sign), FLOATS)
define("neg.*", "t = t", _bitwise(lambda x, sign: x ^ sign), FLOATS)
define("abs.*", "t = t", _bitwise(lambda x, sign: x & ~sign, 2), ("f16x2", "bf16x2"))


def _halves(function: Callable[..., Any]) -> Callable[..., Any]:
    """Both numbers of a register."""

    def both(*x: Values) -> Values:
        low = function(*(np.atleast_1d(a).astype(np.uint32).view(np.float32) for a in x))
        high = function(*((np.atleast_1d(a) >> np.uint64(32)).astype(np.uint32).view(np.float32) for a in x))
        return canonical(low).view(np.uint32).astype(np.uint64) | canonical(high).view(np.uint32).astype(
            np.uint64
        ) << np.uint64(32)

    return both


for _name, _function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
    define(f"{_name}.rn.f32x2", "f32x2 = f32x2 f32x2", _halves(_function))
    define(f"{_name}.f32x2", "f32x2 = f32x2 f32x2", _halves(_function))
define("fma.rn.f32x2", "f32x2 = f32x2 f32x2 f32x2", _halves(_fused))
