# SPDX-License-Identifier: Apache-2.0
"""The memory of a launch: global memory at its real addresses, and what the threads of a block share."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np

from tests.ptx.operations import Values
from tests.ptx.text import PtxError

LOWEST, HIGHEST = 1 << 16, 1 << 47  # addresses that an element of NumPy's largest array has
NOBODY, SEVERAL, OF_WARP = -1, -2, -3  # who read a byte: several threads of warp n are OF_WARP - n


class Fault(PtxError):
    """An access that a device would not define, of the thread at this place among those that made it."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


def _everything(width: int) -> np.ndarray:
    """All of the process's memory as one array; only elements of a region are looked at."""
    kind = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[width]
    return np.ctypeslib.as_array((kind * (HIGHEST // width)).from_address(LOWEST))


WHOLE = {width: _everything(width) for width in (1, 2, 4, 8)}


class Global:
    """Regions [start, end) that a launch may touch."""

    def __init__(self, regions: Iterable[tuple[int, int]]) -> None:
        merged: list[list[int]] = []
        self.regions = [r for r in regions if r[0] < r[1]]
        for start, end in sorted(self.regions):
            if merged and start < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self.starts, self.ends = (np.array([r[i] for r in merged], np.uint64) for i in (0, 1))

    def check(self, address: Values, size: int) -> None:
        """Every access lies in one region, at a multiple of its size."""
        last = address + np.uint64(size)
        if not len(self.starts):
            raise Fault("this launch may touch no memory", 0)
        region = int(np.searchsorted(self.starts, address.min(), "right")) - 1
        if region < 0 or last.max() > self.ends[region]:
            found = np.searchsorted(self.starts, address, "right").astype(np.int64) - 1
            outside = (found < 0) | (last > self.ends[found])
            if outside.any():
                place = int(np.argmax(outside))
                raise Fault(f"{size} bytes at {int(address[place]):#x} are in no memory of this launch", place)
        odd = address & np.uint64(size - 1)
        if odd.any():
            place = int(np.argmax(odd != 0))
            raise Fault(f"{int(address[place]):#x} is no multiple of {size}", place)

    def load(self, address: Values, width: int) -> Values:
        """The elements at checked addresses."""
        return WHOLE[width][((address - np.uint64(LOWEST)) // np.uint64(width)).view(np.int64)]

    def store(self, address: Values, value: Values, width: int) -> None:
        """Write them; of several at one address, any is the last on a device, and here."""
        WHOLE[width][((address - np.uint64(LOWEST)) // np.uint64(width)).view(np.int64)] = value


def _warp(reader: Values) -> Values:
    """The warp of all who read a byte; -1 where there is no one such."""
    return np.where(reader >= 0, reader // 32, np.where(reader <= OF_WARP, OF_WARP - reader, -1))


class Shared:
    """The shared memory of several blocks, and who touched every byte since the last barrier."""

    def __init__(self, blocks: int, size: int, threads: int) -> None:
        self.size, self.threads = -(-size // 16) * 16, threads
        self.bytes = np.zeros(blocks * self.size, np.uint8)
        self.views = {width: self.bytes.view(f"u{width}") for width in (1, 2, 4, 8)}
        self.writer, self.reader = (np.full(self.bytes.size, NOBODY, np.int32) for _ in range(2))
        self.written, self.read = (np.zeros((2, self.bytes.size), np.int32) for _ in range(2))
        self.atomic = np.zeros(self.bytes.size, np.bool_)
        self.block_time = np.zeros(blocks, np.int32)
        self.warp_time = np.zeros(blocks * threads // 32, np.int32)

    def place(self, address: Values, lanes: Values, size: int) -> Values:
        """The first byte of each access of threads `lanes`, in this memory."""
        outside = address.astype(np.int64) + size > self.size
        if outside.any():
            place = int(np.argmax(outside))
            raise Fault(f"{size} bytes at {int(address[place])} of {self.size} that are shared", place)
        odd = address & address.dtype.type(size - 1)
        if odd.any():
            place = int(np.argmax(odd != 0))
            raise Fault(f"{int(address[place])} is no multiple of {size}", place)
        return address.astype(np.int64) + lanes // self.threads * self.size

    def load(self, at: Values, lanes: Values, width: int) -> Values:
        """Read, and remember who did."""
        cells, who = self._cells(at, lanes, width)
        never = self.writer[cells] == NOBODY
        if never.any():
            raise Fault("shared memory is read before it was written", int(np.argmax(never)) // width)
        self._refuse_race(cells, who, self.writer, self.written, "was written", width)
        before, own = self.reader[cells], who // 32
        now = self._now(who)
        again = (before != who) & (before != NOBODY) & (self.read[0][cells] == now[0])
        mine = np.where(again, np.where(_warp(before) == own, OF_WARP - own, SEVERAL), who)
        self.reader[cells] = mine
        last = self.reader[cells]
        for others, name in ((_warp(last) == own, OF_WARP - own), (_warp(last) != own, np.full_like(own, SEVERAL))):
            meet = (last != mine) & others
            self.reader[cells[meet]] = name[meet]
        self.read[:, cells] = now
        return self.views[width][at // width]

    def store(self, at: Values, lanes: Values, value: Values, width: int, atomic: bool = False) -> None:
        """Write, and remember who did."""
        cells, who = self._cells(at, lanes, width)
        self._refuse_race(cells, who, self.writer, self.written, "was written", width, atomic)
        self._refuse_race(cells, who, self.reader, self.read, "was read", width)
        self.writer[cells], self.written[:, cells], self.atomic[cells] = who, self._now(who), atomic
        self.views[width][at // width] = value
        other = self.views[width][at // width] != value
        if other.any() and not atomic:
            raise Fault("two threads write different values to one place that is shared", int(np.argmax(other)))

    def barrier(self, lanes: Values, of_warps: bool) -> None:
        """What came before it is ordered with what comes after, for whole blocks or whole warps."""
        if of_warps:
            self.warp_time[np.unique(lanes // 32)] += 1
        else:
            self.block_time[np.unique(lanes // self.threads)] += 1

    def _cells(self, at: Values, lanes: Values, width: int) -> tuple[Values, Values]:
        return (at[:, None] + np.arange(width)).ravel(), np.repeat(lanes.astype(np.int32), width)

    def _now(self, who: Values) -> Values:
        return np.stack([self.block_time[who // self.threads], self.warp_time[who // 32]])

    def _refuse_race(
        self, cells: Values, who: Values, other: Values, time: Values, did: str, width: int, atomic: bool = False
    ) -> None:
        other, time = other[cells], time[:, cells]
        now = self._now(who)
        after_warp = (_warp(other) == who // 32) & (time[1] < now[1])
        race = (other != NOBODY) & (other != who) & (time[0] == now[0]) & ~after_warp
        if atomic:
            race &= ~self.atomic[cells]
        if race.any():
            place = int(np.argmax(race))
            by = "several threads" if other[place] <= SEVERAL else f"thread {other[place] % self.threads}"
            raise Fault(f"a race: this shared byte {did} by {by} since the last barrier", place // width)
