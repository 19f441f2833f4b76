# SPDX-License-Identifier: Apache-2.0
"""A machine that executes PTX on the host: many programs at once, each thread with a program counter of its own.

Of all threads the ones that are least far go on, block by block of instructions (translate.py). What threads do
together (shuffles, barriers) waits until all of a warp, or of a program, are there; where nobody can go on, that is an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ptx.memory import Fault, Global, Shared
from tests.ptx.operations import BITS, Values
from tests.ptx.text import WIDTHS, Instruction, Kernel, PtxError

AT_ONCE = 1 << 14  # threads: their registers stay in the caches
DONE = 1 << 30
STEPS = 2_000_000  # blocks of instructions, after which a launch is held to have no end


@dataclass
class Block:
    """Instructions that are executed one after the other, and who must be there for them: 1, 32 or all of a program."""

    first: int
    instructions: list[Instruction]
    together: int
    run: Callable[[Wave, Values | None], Any] | None = None


@dataclass
class Program:
    """A translated kernel, and how many threads executed each of its blocks of instructions."""

    kernel: Kernel
    blocks: list[Block]
    executed: Values = field(init=False)

    def __post_init__(self) -> None:
        self.executed = np.zeros(len(self.blocks), np.int64)

    def instructions(self) -> int:
        """How many were executed, of all threads."""
        return int(sum(n * len(b.instructions) for n, b in zip(self.executed, self.blocks, strict=True)))


class Wave:
    """Programs that run at once: what their instructions read and write."""

    def __init__(
        self, program: Program, ids: Values, grid: tuple[int, ...], params: bytes, memory: Global, shared: int
    ):
        kernel = program.kernel
        self.program, self.params, self.memory = program, params, memory
        self.threads, self.count = kernel.threads, len(ids) * kernel.threads
        self.everyone = np.arange(self.count)
        self.thread = (self.everyone % self.threads).astype(np.uint32)
        self.block = np.repeat(ids, self.threads)
        self.special = {
            "%tid.x": self.thread, "%tid.y": np.uint32(0), "%tid.z": np.uint32(0),
            "%ntid.x": np.uint32(self.threads), "%ntid.y": np.uint32(1), "%ntid.z": np.uint32(1),
            "%ctaid.x": (self.block % grid[0]).astype(np.uint32),
            "%ctaid.y": (self.block // grid[0] % grid[1]).astype(np.uint32),
            "%ctaid.z": (self.block // grid[0] // grid[1]).astype(np.uint32),
            "%nctaid.x": np.uint32(grid[0]), "%nctaid.y": np.uint32(grid[1]), "%nctaid.z": np.uint32(grid[2]),
            "%laneid": self.thread % np.uint32(32),
        }  # fmt: skip
        self.shared = Shared(len(ids), shared, self.threads)
        self.there = _aligned(len(params))  # the parameters, where a pointer to them points
        self.there[:] = np.frombuffer(params, np.uint8)
        self._each = -(-kernel.local_bytes // 16) * 16
        self.local = _aligned(self.count * self._each)
        own = {"param": [_region(self.there)], "local": [_region(self.local)]}
        own["generic"] = [*memory.regions, *own["param"], *own["local"]]
        self._spaces = {"global": memory} | {name: Global(regions) for name, regions in own.items()}
        self.registers: dict[str, Values] = {}
        self.at = 0  # of the block's instructions, the one that is executed
        self.lanes = self.everyone

    def memory_of(self, space: str) -> Global:
        """What an instruction of a state space may touch."""
        return self._spaces[space]

    def address_of_parameter(self, offset: int) -> Values:
        """Where a parameter begins."""
        return np.uint64(self.there.ctypes.data + offset)

    def local_address(self, offset: int, lanes: Values | None) -> Values:
        """Where each thread's own memory begins."""
        start = np.uint64(self.local.ctypes.data + offset)
        found = start + self.everyone.astype(np.uint64) * np.uint64(self._each)
        return found if lanes is None else found[lanes]

    def get(self, name: str, lanes: Values | None) -> Values:
        """A register of some threads."""
        value = self.registers[name] if name in self.registers else self._undefined(name)
        return value if lanes is None or np.ndim(value) == 0 else value[lanes]

    def special_of(self, name: str, lanes: Values | None) -> Values:
        """A register that is read alone, of some threads."""
        value = self.special[name]
        return value if lanes is None or np.ndim(value) == 0 else value[lanes]

    def put(self, name: str, value: Values, lanes: Values | None) -> None:
        """Write a register of some threads."""
        if lanes is None:
            self.registers[name] = value
            return
        old = self.registers.get(name)
        if old is None:
            old = self._undefined(name)
        if np.ndim(old) == 0:
            old = self.registers[name] = np.full(self.count, old)
        old[lanes] = value

    def _undefined(self, name: str) -> Values:
        """What is in a register that was not written: a compiler may move it, but a result that needs it is wrong."""
        width = WIDTHS[self.program.kernel.type_of(name)]
        return BITS[width](0xA5A5A5A5A5A5A5A5 % (1 << 8 * width)) if width else np.True_

    def run(self) -> None:
        """Until every thread has returned."""
        blocks, executed = self.program.blocks, self.program.executed
        counter = np.zeros(self.count, np.int64)
        for _ in range(STEPS):
            low = int(counter.min())
            if low == DONE:
                return
            chosen = self._ready(counter, low)
            low = int(counter[chosen[0]])
            lanes = None if len(chosen) == self.count else chosen
            self.lanes, self.now = chosen, blocks[low]
            executed[low] += len(chosen)
            try:
                counter[chosen] = blocks[low].run(self, lanes)
            except Fault as fault:
                raise self._error(str(fault), chosen[min(fault.place, len(chosen) - 1)]) from None
            except PtxError as error:
                raise self._error(str(error), chosen[0]) from None
        raise self._error(f"no end after {STEPS} steps", chosen[0])

    def _ready(self, counter: Values, low: int) -> Values:
        """The threads that are least far and need not wait."""
        for at in (low, *np.unique(counter)[1:].tolist()):
            if at == DONE:
                break
            chosen = np.flatnonzero(counter == at)
            together = self.program.blocks[at].together
            if together > 1 and len(chosen) < self.count:
                group = chosen // together
                whole = np.bincount(group, minlength=self.count // together) == together
                chosen = chosen[whole[group]]
            if len(chosen):
                return chosen
        self.now, self.at = self.program.blocks[low], 0
        raise self._error("a deadlock: these threads wait for others that do not come", int(np.argmin(counter)))

    def _error(self, message: str, lane: int) -> PtxError:
        instruction = self.now.instructions[min(self.at, len(self.now.instructions) - 1)]
        where = f"{self.program.kernel.name}, line {instruction.line}: {instruction.text}"
        return PtxError(f"{where}: block {self.block[lane]}, thread {self.thread[lane]}: {message}")

    def masked(self, mask: Values | None, lanes: Values | None) -> Values:
        """The places, among those that execute, of those whose guard lets them."""
        n = self.count if lanes is None else len(lanes)
        return np.arange(n) if mask is None else np.flatnonzero(np.broadcast_to(mask, n))

    def together(self, value: Values) -> Values:
        """One row for each warp."""
        return np.broadcast_to(value, len(self.lanes)).reshape(-1, 32)


def _aligned(size: int) -> Values:
    """Memory that nobody has written."""
    memory = np.full(size + 16, 0xA5, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + size]


def _region(memory: Values) -> tuple[int, int]:
    return memory.ctypes.data, memory.ctypes.data + memory.nbytes


def launch(
    program: Program, grid: tuple[int, ...], params: bytes, regions: Iterable[tuple[int, int]], shared: int = 0
) -> None:
    """Run all programs of a grid, some after others."""
    memory, total = Global(regions), grid[0] * grid[1] * grid[2]
    at_once = max(1, AT_ONCE // program.kernel.threads)
    with np.errstate(all="ignore"):
        for first in range(0, total, at_once):
            ids = np.arange(first, min(first + at_once, total))
            Wave(program, ids, grid, params, memory, max(shared, program.kernel.static_shared)).run()
