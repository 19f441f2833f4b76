# SPDX-License-Identifier: Apache-2.0
"""What instructions do with memory and with other threads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.machine import Wave
from tests.ptx.memory import Fault
from tests.ptx.operations import TYPES, Values
from tests.ptx.text import PtxError

OPCODES = {"shfl", "bar", "barrier", "redux", "ldmatrix", "stmatrix", "atom", "red", "vote", "activemask", "match"}
ALL = 0xFFFFFFFF
MATRIX = re.compile(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared\.b16")


def threads(opcode: str, of_program: int) -> int:
    """How many threads must execute an instruction at once."""
    root = opcode.split(".")[0]
    if opcode.startswith(("bar.sync", "barrier.sync")):
        return of_program
    return 32 if root in ("shfl", "redux", "ldmatrix", "stmatrix", "vote") or opcode == "bar.warp.sync" else 1


def load(
    m: Wave, i: Values | None, k: int, space: str, address: Values, mask: Values | None, width: int, n: int
) -> Any:
    """n neighbouring elements for every thread whose guard lets it; nothing for the others."""
    m.at = k
    who = m.masked(mask, i)
    found = np.zeros((n, len(m.lanes)), f"u{width}")
    if len(who):
        at = np.broadcast_to(address, len(m.lanes))[who]
        try:
            if space != "shared":
                memory = m.memory_of(space)
                memory.check(at, n * width)
                for j in range(n):
                    found[j, who] = memory.load(at + np.uint64(j * width), width)
            else:
                place = m.shared.place(at, m.lanes[who], n * width)
                for j in range(n):
                    found[j, who] = m.shared.load(place + j * width, m.lanes[who], width)
        except Fault as fault:
            raise Fault(str(fault), int(who[fault.place])) from None
    return found


def store(
    m: Wave, i: Values | None, k: int, space: str, address: Values, mask: Values | None, width: int, values: Any
) -> None:
    """The same, to memory."""
    m.at = k
    who = m.masked(mask, i)
    if not len(who):
        return
    at = np.broadcast_to(address, len(m.lanes))[who]
    dtype = f"u{width}"
    rows = [np.broadcast_to(v.view(f"u{v.itemsize}").astype(dtype), len(m.lanes))[who] for v in values]
    try:
        if space != "shared":
            memory = m.memory_of(space)
            memory.check(at, len(rows) * width)
            for j, row in enumerate(rows):
                memory.store(at + np.uint64(j * width), row, width)
        else:
            place = m.shared.place(at, m.lanes[who], len(rows) * width)
            for j, row in enumerate(rows):
                m.shared.store(place + j * width, m.lanes[who], row, width)
    except Fault as fault:
        raise Fault(str(fault), int(who[fault.place])) from None


def described(opcode: str) -> tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]:
    """An instruction's function, the types of its results and those of its operands."""
    if re.fullmatch(r"shfl\.sync\.(idx|bfly|up|down)\.b32", opcode):
        return _shuffle, ("b32",), ("b32", "u32", "u32", "u32")
    if opcode in ("bar.sync", "barrier.sync"):
        return _barrier, (), ("u32",)
    if opcode == "bar.warp.sync":
        return _barrier, (), ("u32",)
    if match := re.fullmatch(r"redux\.sync\.(add|min|max)\.([us]32)|redux\.sync\.(and|or|xor)\.(b32)", opcode):
        kind = match[2] or match[4]
        return _reduce, (kind,), (kind, "u32")
    if match := MATRIX.fullmatch(opcode):
        several = ("b32",) * int(match[2])
        return (_load_matrix, several, ("shared",)) if match[1] == "ld" else (_store_matrix, (), ("shared", "b32"))
    if match := re.fullmatch(
        r"(atom|red)(?:\.(?:relaxed|acq_rel|gpu|sys|cta))*\.(global|shared)(?:\.(?:relaxed|acq_rel|gpu|sys|cta))*\.add\.([us]\d+)",
        opcode,
    ):
        return _add, (match[3],) if match[1] == "atom" else (), (match[2], match[3])
    raise PtxError(f"{opcode} is unknown")


def _everyone(mask: Values | None, members: Values) -> None:
    if mask is not None:
        raise PtxError("what threads do together is not guarded")
    if not (np.asarray(members) == ALL).all():
        raise PtxError("parts of a warp are not modelled")


def _shuffle(
    m: Wave,
    i: Values | None,
    k: int,
    opcode: str,
    mask: Values | None,
    a: Values,
    b: Values,
    c: Values,
    members: Values,
) -> tuple[Values, Values]:
    m.at = k
    _everyone(mask, members)
    rows, by, clamp = m.together(a), m.together(b).astype(np.int64), m.together(c).astype(np.int64)
    lane = np.arange(32)[None, :]
    segment, last = clamp >> 8 & 31, clamp & 31
    highest, lowest = (lane & segment) | (last & ~segment), lane & segment
    mode, by = opcode.split(".")[2], by & 31
    if mode == "up":
        source = lane - by
        inside = source >= highest
    elif mode == "down":
        source = lane + by
        inside = source <= highest
    else:
        source = lane ^ by if mode == "bfly" else lowest | (by & ~segment)
        inside = source <= highest
    source = np.where(inside, source, lane)
    return np.take_along_axis(rows, source, 1).ravel(), inside.ravel()


def _barrier(m: Wave, i: Values | None, k: int, opcode: str, mask: Values | None, which: Values) -> None:
    m.at = k
    of_warps = opcode == "bar.warp.sync"
    if of_warps:
        _everyone(mask, which)
    elif mask is not None or np.asarray(which).any():
        raise PtxError("only the barrier 0 is modelled, of all threads")
    m.shared.barrier(m.lanes, of_warps)


def _reduce(
    m: Wave, i: Values | None, k: int, opcode: str, mask: Values | None, a: Values, members: Values
) -> tuple[Values]:
    m.at = k
    _everyone(mask, members)
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    name, kind = opcode.split(".")[2:]
    rows = m.together(a)
    found = (function | {"xor": np.bitwise_xor})[name].reduce(rows, axis=1, dtype=TYPES[kind])
    return (np.repeat(found, 32),)


def _rows(m: Wave, address: Values, opcode: str, matrix: int) -> tuple[Values, int, int]:
    """Where each thread's two elements of a matrix are: the first's address, the step to the second, their bytes."""
    rows = m.together(address).astype(np.int64)[:, 8 * matrix : 8 * matrix + 8]
    if (rows & 15).any():
        place = int(np.argmax((rows & 15).ravel() != 0))
        raise Fault("a matrix's row is no multiple of 16", place // 8 * 32 + place % 8 + 8 * matrix)
    lane = np.arange(32)
    return rows, 2 * (lane % 4), lane // 4


def _elements(m: Wave, address: Values, opcode: str, matrix: int) -> list[Values]:
    rows, two, eight = _rows(m, address, opcode, matrix)
    if ".trans" in opcode:
        return [(rows[:, two + j] + 2 * eight).ravel() for j in (0, 1)]
    return [(rows[:, eight] + 2 * (two + j)).ravel() for j in (0, 1)]


def _load_matrix(m: Wave, i: Values | None, k: int, opcode: str, mask: Values | None, address: Values) -> list[Values]:
    m.at = k
    _everyone(mask, np.uint32(ALL))
    found = []
    for matrix in range(int(MATRIX.fullmatch(opcode)[2])):  # type: ignore[index]
        halves = []
        for at in _elements(m, address, opcode, matrix):
            place = m.shared.place(at, m.lanes, 2)
            halves.append(m.shared.load(place, m.lanes, 2).astype(np.uint32))
        found.append(halves[0] | halves[1] << np.uint32(16))
    return found


def _store_matrix(
    m: Wave, i: Values | None, k: int, opcode: str, mask: Values | None, address: Values, values: tuple[Values, ...]
) -> None:
    m.at = k
    _everyone(mask, np.uint32(ALL))
    several = int(MATRIX.fullmatch(opcode)[2])  # type: ignore[index]
    if len(values) != several:
        raise PtxError(f"{several} registers belong here")
    for matrix, value in enumerate(values):
        value = m.together(value).ravel()
        for j, at in enumerate(_elements(m, address, opcode, matrix)):
            place = m.shared.place(at, m.lanes, 2)
            m.shared.store(place, m.lanes, (value >> np.uint32(16 * j)).astype(np.uint16), 2)


def _add(
    m: Wave, i: Values | None, k: int, opcode: str, mask: Values | None, address: Values, value: Values
) -> tuple[Values]:
    """Sums in the order of the threads; each gets what was there before it."""
    m.at = k
    who = m.masked(mask, i)
    kind = np.dtype(f"u{value.itemsize}")
    old = np.zeros(len(m.lanes), kind)
    if len(who):
        at = np.broadcast_to(address, len(m.lanes))[who]
        value = np.broadcast_to(value.view(kind), len(m.lanes))[who]
        lanes, width = m.lanes[who], kind.itemsize
        if ".global" in opcode:
            m.memory.check(at, width)
            place = at
            before = m.memory.load(at, width)
        else:
            place = m.shared.place(at, lanes, width)
            m.shared.store(place, lanes, m.shared.views[width][place // width], width, atomic=True)
            before = m.shared.views[width][place // width]
        order = np.lexsort((np.arange(len(place)), m.lanes[who] // m.threads, place))
        sums = np.cumsum(value[order], dtype=kind)
        first = np.r_[True, place[order][1:] != place[order][:-1]]
        base = np.where(first, sums - value[order], 0)[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
        after = before[order] + sums - base
        if ".global" in opcode:
            m.memory.store(place[order], after, width)
        else:
            m.shared.views[width][place[order] // width] = after
        old[who[order]] = after - value[order]
    return (old.view(value.dtype),)
