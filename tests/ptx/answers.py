# SPDX-License-Identifier: Apache-2.0
"""Known answers: operands of an opcode, and what PTX's manual says of them. An opcode without one is not executed.

A line is `opcode operand ... = result ...`: integers, numbers, `nan` (the pattern that a device's arithmetic gives), or
bits as 0x...; `T` and `F` are predicates.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping

NAN = {"f16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF, "bf16": 0x7FFF}
FORMATS = {"f16": "<e", "f32": "<f", "f64": "<d"}

LINES = """
add.s32 0x7fffffff 1 = 0x80000000 | -1 1 = 0
add.s64 0x7fffffffffffffff 1 = 0x8000000000000000 | 0xffffffff 1 = 0x100000000
add.s16 0x7fff 1 = 0x8000
add.u32 0xffffffff 2 = 1
add.u64 0xffffffffffffffff 2 = 1
sub.s32 0 1 = 0xffffffff
sub.s64 0 1 = 0xffffffffffffffff
sub.s16 0 1 = 0xffff
mul.lo.s16 0x101 0x101 = 0x201
mul.lo.s32 0x10001 0x10001 = 0x20001
mul.lo.s64 0x100000001 0x100000001 = 0x200000001
mul.hi.u32 0xffffffff 0xffffffff = 0xfffffffe | 0x10000 0x10000 = 1
mul.hi.s32 -1 -1 = 0 | -1 1 = 0xffffffff
mul.hi.u64 0xffffffffffffffff 0xffffffffffffffff = 0xfffffffffffffffe
mul.hi.u64 0x123456789abcdef0 0xfedcba9876543210 = 0x121fa00ad77d7422
mul.hi.s64 -1 1 = 0xffffffffffffffff | -2 -3 = 0
mul.wide.s32 -1 2 = -2
mul.wide.u32 0xffffffff 0xffffffff = 0xfffffffe00000001
mul.wide.s16 -2 3 = 0xfffffffa
mul.wide.u16 0xffff 2 = 0x1fffe
mad.lo.s32 0x10001 0x10001 5 = 0x20006
mad.lo.s64 3 5 -20 = -5
mad.lo.u32 3 5 1 = 16
mad.wide.s32 -2 8 100 = 84
mad.wide.u32 0xfffffffe 8 100 = 0x800000054
mad.wide.s16 -2 8 100 = 84
mad.wide.u16 0xfffe 2 1 = 0x1fffd
div.s32 -7 2 = -3 | 7 -2 = -3
div.u32 0xffffffff 2 = 0x7fffffff
div.s64 -7 2 = -3 | -8 2 = -4 | 7 2 = 3
div.u64 0xffffffffffffffff 2 = 0x7fffffffffffffff
rem.s32 -7 2 = -1
rem.s64 -7 2 = -1 | 7 -2 = 1
rem.u32 7 4 = 3
rem.u64 7 4 = 3
neg.s32 5 = -5 | 0x80000000 = 0x80000000
neg.s64 5 = -5
neg.s16 5 = 0xfffb
abs.s32 -5 = 5
abs.s64 -5 = 5
min.s32 -1 1 = -1
max.s32 -1 1 = 1
min.u32 0xffffffff 1 = 1
max.u32 0xffffffff 1 = 0xffffffff
min.s64 -1 1 = -1
max.s64 -1 1 = 1
min.u64 0xffffffffffffffff 1 = 1
max.u64 0xffffffffffffffff 1 = -1
min.s16 0xffff 1 = 0xffff
min.u16 0xffff 1 = 1
max.s16 0xffff 1 = 1
max.u16 0xffff 1 = 0xffff
shl.b16 0x8001 1 = 2 | 1 16 = 0
shl.b32 0x80000001 1 = 2 | 1 31 = 0x80000000 | 1 32 = 0
shl.b64 1 63 = 0x8000000000000000 | 1 64 = 0
shr.u16 0x8000 15 = 1 | 0x8000 16 = 0
shr.s16 0x8000 15 = 0xffff
shr.u32 0x80000000 31 = 1 | 0x80000000 32 = 0
shr.s32 0x80000000 31 = -1 | 0x80000000 77 = -1 | 0x40000000 40 = 0
shr.u64 0x8000000000000000 63 = 1 | -1 64 = 0
shr.s64 0x8000000000000000 63 = -1 | 0x8000000000000000 99 = -1
shr.b32 0x80000000 31 = 1
shr.b64 0x8000000000000000 63 = 1
bfe.u32 0xabcd 4 8 = 0xbc | -1 0 32 = 0xffffffff | -1 0 0 = 0
bfe.s32 0x80 4 4 = -8 | 4 2 1 = -1 | 2 2 1 = 0
bfe.u64 0xabcd 4 8 = 0xbc | 0xffffffffffffffff 6 10 = 0x3ff
bfe.s64 0x80 4 4 = -8 | 0x003ffffffffffc00 10 44 = -1 | 0x001ffffffffffc00 10 44 = 0x7ffffffffff
popc.b32 0xf0f0 = 8
popc.b64 0xffffffffffffffff = 64 | 0 = 0
clz.b32 1 = 31 | 0 = 32
clz.b64 0x8000000000000000 = 0 | 1 = 63
shf.l.wrap.b32 0x80000001 0x12345678 4 = 0x23456788 | 1 2 32 = 2 | 0xc0000000 0xc0000000 1 = 0x80000001
shf.r.wrap.b32 0x80000001 0x12345678 4 = 0x88000000 | 1 2 32 = 1
prmt.b32 0x33221100 0x77665544 0x3340 = 0x33334400 | 0x33221100 0x77665544 0x7654 = 0x77665544 | 0x80 0 0x7778 = 0xff
prmt.b32 0x33221100 0x88665544 0x7f10 = 0x88ff1100
lop3.b32 0xf0 0xcc 0xaa 0x80 = 0x80 | 0xf0 0xcc 0xaa 0x96 = 0x96 | 0xf0 0xcc 0xaa 0xe8 = 0xe8
and.b16 0xf0f0 0xff00 = 0xf000
and.b32 0xf0f0f0f0 0xffff0000 = 0xf0f00000
and.b64 0xf0f0f0f0f0f0f0f0 0xffff00000000ffff = 0xf0f000000000f0f0
and.pred T F = F | T T = T
or.b16 0xf000 0x00f0 = 0xf0f0
or.b32 0xf000 0x00f0 = 0xf0f0
or.b64 0xf000000000000000 0x00f0 = 0xf0000000000000f0
or.pred T F = T | F F = F
xor.b16 0xffff 0x0f0f = 0xf0f0
xor.b32 0xffffffff 0x0f0f0f0f = 0xf0f0f0f0
xor.b64 0xffffffffffffffff 0x0f0f0f0f0f0f0f0f = 0xf0f0f0f0f0f0f0f0
xor.pred T T = F | T F = T
not.b16 0x00ff = 0xff00
not.b32 0xff = 0xffffff00
not.b64 0xff = 0xffffffffffffff00
not.pred T = F | F = T
selp.b16 1 2 T = 1 | 1 2 F = 2
selp.b32 1 2 T = 1 | 1 2 F = 2
selp.b64 1 2 T = 1 | 1 2 F = 2
selp.u16 1 2 F = 2
selp.s16 1 2 F = 2
selp.u32 1 2 F = 2
selp.s32 1 2 T = 1
selp.u64 1 2 F = 2
selp.s64 1 2 F = 2
selp.f32 1.5 2.5 T = 1.5 | 1.5 0x7fc00001 F = 0x7fc00001
selp.f64 1.5 2.5 T = 1.5 | 1.5 2.5 F = 2.5
mov.b16 0xabcd = 0xabcd
mov.b32 0xabcdef01 = 0xabcdef01
mov.b64 0xabcdef0123456789 = 0xabcdef0123456789
mov.u16 0xabcd = 0xabcd
mov.u32 0xabcdef01 = 0xabcdef01
mov.u64 0xabcdef0123456789 = 0xabcdef0123456789
mov.f32 0x7fc00001 = 0x7fc00001
mov.f64 1.5 = 1.5
mov.pred T = T | F = F
add.rn.f32 16777216.0 1.0 = 16777216.0 | 16777218.0 1.0 = 16777220.0 | inf -inf = nan | 0x1 0x1 = 0x2
add.rn.f32 0x7fc00001 1.0 = nan
add.rn.f64 9007199254740992.0 1.0 = 9007199254740992.0 | 0x1 0x1 = 0x2
add.f32 1.0 2.0 = 3.0
add.f64 1.0 2.0 = 3.0
sub.rn.f32 1.0 16777217.0 = -16777215.0 | 0x00800000 0x1 = 0x007fffff
sub.rn.f64 1.0 3.0 = -2.0 | inf inf = nan
sub.f32 1.0 3.0 = -2.0
sub.f64 1.0 3.0 = -2.0
mul.rn.f32 0x3f800001 0x3f800001 = 0x3f800002 | 0x00800000 0.5 = 0x00400000 | inf 0.0 = nan
mul.rn.f64 3.0 -2.0 = -6.0 | 0x0010000000000000 0.5 = 0x0008000000000000
mul.f32 3.0 -2.0 = -6.0
mul.f64 3.0 -2.0 = -6.0
div.rn.f32 1.0 3.0 = 0x3eaaaaab
div.rn.f64 1.0 3.0 = 0x3fd5555555555555 | 1.0 0.0 = inf | 0.0 0.0 = nan
sqrt.rn.f32 2.0 = 0x3fb504f3
sqrt.rn.f64 2.0 = 0x3ff6a09e667f3bcd | -1.0 = nan
fma.rn.f32 0x3f800001 0x3f800001 0xbf800002 = 0x28800000 | 1.0 1.0 0x33800000 = 0x3f800000
fma.rn.f32 0x3f800001 1.0 0x33800000 = 0x3f800002 | 16777217.0 1.0 0x1 = 16777216.0
min.f32 nan 1.0 = 1.0 | -0.0 0.0 = -0.0 | 0.0 -0.0 = -0.0 | nan nan = nan | 1.0 2.0 = 1.0
max.f32 nan 1.0 = 1.0 | -0.0 0.0 = 0.0 | 0.0 -0.0 = 0.0 | 1.0 2.0 = 2.0
min.f64 nan 1.0 = 1.0 | 0.0 -0.0 = -0.0
max.f64 1.0 nan = 1.0 | -0.0 0.0 = 0.0
min.NaN.f32 nan 1.0 = nan | 1.0 nan = nan | 1.0 2.0 = 1.0 | 0.0 -0.0 = -0.0
max.NaN.f32 nan 1.0 = nan | 1.0 2.0 = 2.0
abs.f32 -1.5 = 1.5 | -0.0 = 0.0
abs.f64 -1.5 = 1.5
abs.f16x2 0xbc00bc00 = 0x3c003c00
abs.bf16x2 0xbf808000 = 0x3f800000
neg.f32 1.5 = -1.5 | 0.0 = -0.0
neg.f64 1.5 = -1.5
add.rn.f32x2 0x400000003f800000 0x3f8000003f800000 = 0x4040000040000000
add.f32x2 0x400000003f800000 0x3f8000003f800000 = 0x4040000040000000
sub.rn.f32x2 0x400000003f800000 0x3f8000003f800000 = 0x3f80000000000000
sub.f32x2 0x400000003f800000 0x3f8000003f800000 = 0x3f80000000000000
mul.rn.f32x2 0x400000003f800000 0x4040000040000000 = 0x40c0000040000000
mul.f32x2 0x400000003f800000 0x4040000040000000 = 0x40c0000040000000
fma.rn.f32x2 0x400000003f800000 0x4040000040000000 0x3f8000003f800000 = 0x40e0000040400000
setp.eq.f16 1.0 1.0 = T | nan nan = F
setp.nan.f16 nan 1.0 = T | 1.0 1.0 = F
setp.nan.f16x2 0x7e003c00 0x3c003c00 = F T | 0x3c007e00 0x3c003c00 = T F
cvt.s64.s32 -5 = -5
cvt.u64.u32 0xfffffffb = 0xfffffffb
cvt.u32.u64 0x1234567890abcdef = 0x90abcdef
cvt.u16.u32 0xabcd1234 = 0x1234
cvt.u16.u64 0xabcd12345678 = 0x5678
cvt.u32.u16 0xffff = 0xffff
cvt.s32.s16 0xffff = -1
cvt.u64.u16 0xffff = 0xffff
cvt.s64.s16 0xffff = -1
cvt.s16.s8 0x80 = 0xff80
cvt.s32.s8 0x80 = -128
cvt.s64.s8 0x80 = -128
cvt.u16.u8 0x80 = 0x80
cvt.u32.u8 0xff = 0xff
cvt.u8.u32 0x1ff = 0xff
cvt.u8.u16 0x1ff = 0xff
cvt.u64.u8 0xff = 0xff
cvt.s32.s64 -5 = -5
cvt.u32.s64 0x1fffffffe = 0xfffffffe
cvt.sat.s32.s64 0x7fffffffffffffff = 0x7fffffff | -0x100000000 = 0x80000000
cvt.sat.u32.s64 -5 = 0
cvt.sat.u8.s32 300 = 255 | -1 = 0
cvt.rn.f32.u32 0xffffffff = 4294967296.0 | 16777217 = 16777216.0
cvt.rn.f32.s32 -1 = -1.0 | 16777219 = 16777220.0
cvt.rn.f32.s64 -1 = -1.0
cvt.rn.f32.u64 0xffffffffffffffff = 18446744073709551616.0
cvt.rn.f32.u16 0xffff = 65535.0
cvt.rn.f32.s16 0xffff = -1.0
cvt.rn.f32.u8 0xff = 255.0
cvt.rn.f64.u32 0xffffffff = 4294967295.0
cvt.rn.f64.s32 -1 = -1.0
cvt.rn.f64.s64 9007199254740993 = 9007199254740992.0 | -1 = -1.0
cvt.rn.f64.u64 0xffffffffffffffff = 18446744073709551616.0
cvt.rn.f64.u16 0xffff = 65535.0
cvt.rn.f64.u8 0xff = 255.0
cvt.rni.f32.f32 2.5 = 2.0 | -2.5 = -2.0
cvt.rzi.f32.f32 -2.5 = -2.0
cvt.rmi.f32.f32 -2.5 = -3.0
cvt.rpi.f32.f32 -2.5 = -2.0
cvt.rni.f64.f64 2.5 = 2.0 | 3.5 = 4.0
cvt.rzi.f64.f64 -2.5 = -2.0
cvt.rmi.f64.f64 -2.5 = -3.0 | 2.5 = 2.0
cvt.rpi.f64.f64 -2.5 = -2.0 | 2.5 = 3.0
cvt.rni.s32.f32 2.5 = 2 | -3.5 = -4 | 3e9 = 0x7fffffff
cvt.rzi.s32.f32 -2.9 = -2 | nan = 0 | inf = 0x7fffffff | -inf = 0x80000000
cvt.rmi.s32.f32 -2.1 = -3
cvt.rzi.u32.f32 -1.0 = 0 | 5e9 = 0xffffffff | 2.9 = 2
cvt.rni.s64.f32 2.5 = 2
cvt.rni.s32.f64 2.5 = 2
cvt.rzi.s32.f64 -2.9 = -2 | nan = 0 | 1e10 = 0x7fffffff | -1e10 = 0x80000000
cvt.rmi.s32.f64 -2.1 = -3
cvt.sat.f32.f32 0.25 = 0.25 | 1.5 = 1.0 | -0.5 = 0.0 | -0.0 = 0.0 | nan = 0.0 | inf = 1.0 | -inf = 0.0
cvt.rzi.s64.f32 -2.9 = -2 | 9.5e18 = 0x7fffffffffffffff | nan = 0
fma.rn.f64 2.0 3.0 1.0 = 7.0
fma.rn.f64 0x3ff0000000000001 0x3ff0000000000001 0xbff0000000000002 = 0x3970000000000000 | inf 0.0 1.0 = nan
bfi.b32 0xff 0 8 4 = 0xf00 | 0 0xffffffff 30 8 = 0x3fffffff | 7 0 32 4 = 0 | 0x12345678 0 0 32 = 0x12345678
bfi.b64 0xff 0 60 8 = 0xf000000000000000 | 1 0xffffffffffffffff 0 2 = 0xfffffffffffffffd
cvt.rzi.s64.f64 -2.9 = -2 | nan = 0 | 1e19 = 0x7fffffffffffffff | -1e19 = 0x8000000000000000
cvt.rzi.s64.f64 9007199254740993.0 = 9007199254740992
cvt.rni.s64.f64 2.5 = 2 | -3.5 = -4
cvt.rmi.s64.f64 -2.5 = -3
cvt.rzi.u32.f64 -1.0 = 0 | 5e9 = 0xffffffff | 2.9 = 2
cvt.rzi.u64.f64 1e20 = 0xffffffffffffffff | 2.9 = 2
cvt.rn.f16.f32 1.0 = 0x3c00 | 65520.0 = 0x7c00 | 65519.0 = 0x7bff | 0x33000000 = 0x0 | 0x33000001 = 0x1
cvt.rn.f16.f32 0x3f801000 = 0x3c00 | 0x3f803000 = 0x3c02
cvt.rn.bf16.f32 1.0 = 0x3f80 | 0x3f808000 = 0x3f80 | 0x3f818000 = 0x3f82
cvt.rn.f16x2.f32 1.0 2.0 = 0x3c004000
cvt.rn.bf16x2.f32 1.0 2.0 = 0x3f804000
cvt.f32.f16 0x3c00 = 1.0 | 0x0001 = 0x33800000 | 0x7c00 = inf
cvt.f64.f16 0x3c00 = 1.0 | 0x8001 = 0xbe70000000000000
cvt.f32.bf16 0x3f80 = 1.0 | 0xff80 = -inf | 0x0001 = 0x00010000
cvt.f64.bf16 0x3f80 = 1.0 | 0x0001 = 0x37a0000000000000
cvt.rn.f32.f64 0x3ff0000010000000 = 1.0 | 0x3ff0000010000001 = 0x3f800001 | 1e-45 = 0x1 | 1e300 = inf | nan = nan
cvt.f64.f32 1.5 = 1.5 | 0x1 = 0x36a0000000000000 | nan = nan
"""

for _t in ("16", "32", "64"):
    _high = hex(1 << int(_t) - 1)
    LINES += f"""
setp.eq.s{_t} 1 1 = T | 1 {_high} = F
setp.ne.s{_t} 1 1 = F | 1 {_high} = T
setp.lt.s{_t} {_high} 0 = T | 1 1 = F
setp.le.s{_t} {_high} 0 = T | 1 1 = T | 2 1 = F
setp.gt.s{_t} 0 {_high} = T | 1 1 = F
setp.ge.s{_t} 0 {_high} = T | 1 1 = T | 1 2 = F
setp.eq.b{_t} 1 1 = T | 1 {_high} = F
setp.ne.b{_t} 1 1 = F | 1 {_high} = T
setp.eq.u{_t} 1 1 = T | 1 {_high} = F
setp.ne.u{_t} 1 1 = F | 1 {_high} = T
setp.lt.u{_t} 0 {_high} = T | {_high} 0 = F
setp.le.u{_t} {_high} 0 = F | 1 1 = T
setp.gt.u{_t} {_high} 0 = T | 1 1 = F
setp.ge.u{_t} 0 {_high} = F | 1 1 = T
"""
for _t in ("f32", "f64"):
    LINES += f"""
setp.eq.{_t} 1.0 1.0 = T | nan nan = F | 0.0 -0.0 = T
setp.ne.{_t} 1.0 2.0 = T | nan 1.0 = F | 0.0 -0.0 = F
setp.lt.{_t} 1.0 2.0 = T | nan 1.0 = F | 1.0 1.0 = F
setp.le.{_t} 1.0 1.0 = T | nan 1.0 = F | 2.0 1.0 = F
setp.gt.{_t} 2.0 1.0 = T | nan 1.0 = F | 1.0 1.0 = F
setp.ge.{_t} 1.0 1.0 = T | nan 1.0 = F | 1.0 2.0 = F
setp.equ.{_t} 1.0 1.0 = T | nan 1.0 = T | 1.0 2.0 = F
setp.neu.{_t} 1.0 1.0 = F | nan nan = T | 1.0 2.0 = T
setp.ltu.{_t} 1.0 2.0 = T | nan 1.0 = T | 1.0 1.0 = F
setp.leu.{_t} 1.0 1.0 = T | nan 1.0 = T | 2.0 1.0 = F
setp.gtu.{_t} 2.0 1.0 = T | nan 1.0 = T | 1.0 1.0 = F
setp.geu.{_t} 1.0 1.0 = T | nan 1.0 = T | 1.0 2.0 = F
setp.nan.{_t} 1.0 1.0 = F | nan 1.0 = T | 1.0 nan = T
setp.num.{_t} 1.0 1.0 = T | nan 1.0 = F | 1.0 nan = F
"""


def bits(word: str, kind: str) -> int:
    """What a word of a line says of a type."""
    if kind == "pred":
        return {"T": 1, "F": 0}[word]
    width = {"f16x2": 32, "bf16x2": 32, "f32x2": 64, "bf16": 16}.get(kind) or int(kind.lstrip("busf"))
    if word == "nan":
        return NAN[kind]
    if kind in FORMATS and not word.startswith("0x"):
        return int.from_bytes(struct.pack(FORMATS[kind], float(word)), "little")
    return int(word, 0) % (1 << width)


def _read() -> Mapping[str, list[tuple[list[str], list[str]]]]:
    found: dict[str, list[tuple[list[str], list[str]]]] = defaultdict(list)
    for line in filter(None, LINES.splitlines()):
        opcode, _, cases = line.partition(" ")
        for case in cases.split("|"):
            operands, _, results = case.partition("=")
            found[opcode].append((operands.split(), results.split()))
    return found


ANSWERS = _read()
