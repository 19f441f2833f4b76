# SPDX-License-Identifier: Apache-2.0
"""What a kernel costs, read from its machine code: no GPU is needed.

The hot path is found in the disassembly by this rule. If the kernel has 128-bit global loads, they mark it; if not, all
global loads do. Its region is the smallest loop with a marked instruction, or the whole kernel if no loop has one. From
the region's entry to its back edge (or to the kernel's exit), the hot path is the path with the most 128-bit accesses,
among those one with the fewest inner loops, and among those the one with the fewest instructions. So what only adds
instructions or loops, or has no wide access, does not count: a rare branch (a tie of 16-bit draws), a tail, a scalar
version for unaligned data. A loop inside the hot path counts as `inner_trips` turns.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

# What sm_80 and sm_90 execute on the integer pipe; IMAD and moves of its kind are on the floating-point one.
ALU = {
    "LOP3", "IADD3", "VIADD", "VIADDMNMX", "VIMNMX", "SHF", "ISETP", "SEL", "FSEL", "FSETP", "FMNMX", "PRMT", "LEA",
    "PLOP3", "BMSK", "SGXT", "I2FP", "FSET", "ISET",
}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """One kernel: its resources, and its hot path for one thread, where that was asked for."""

    kernel: str
    registers: int
    stack_bytes: int
    spills: int = 0  # instructions that read or write local memory, anywhere in the kernel
    elements_per_iteration: int = 0
    instructions_per_element: float = 0.0
    vector_loads: int = 0
    vector_stores: int = 0
    loads_at_once: int = (
        0  # of 128 bits, the most of them before arithmetic of numbers: what a thread waits for together
    )
    loads_of_any_width: int = 0  # the same of any width, anywhere in the kernel without a branch between them
    inner_loops: int = 0
    opcodes: Counter[str] = field(repr=False, default_factory=Counter)

    @property
    def integer_instructions(self) -> float:
        """Instructions an element on the pipe of integers and comparisons, which has half of the issue rate."""
        return sum(n for op, n in self.opcodes.items() if op.split(".")[0] in ALU) / self.elements_per_iteration


@dataclass(frozen=True)
class Instruction:
    """A line of the disassembly."""

    address: int
    predicated: bool
    opcode: str
    operands: str

    @property
    def wide(self) -> bool:
        """A 128-bit access to global memory."""
        return self.opcode.startswith(("LDG", "STG", "LD.", "ST.")) and ".128" in self.opcode

    @property
    def target(self) -> int | None:
        """Where a branch goes."""
        found = re.search(r"0x([0-9a-f]+)\s*$", self.operands)
        return int(found[1], 16) if self.opcode.split(".")[0] == "BRA" and found else None

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction may follow."""
        always = not self.predicated and not re.match(r"!?U?P\d", self.operands) and ".DIV" not in self.opcode
        return not (always and self.opcode.split(".")[0] in ("BRA", "EXIT", "RET", "BRX", "JMX"))


def find_tool(name: str) -> str | None:
    """A CUDA tool: on PATH, in CUDA_HOME, in NVIDIA's wheels, or in the triton package."""
    folders = [Path(os.environ.get(v, "/usr/local/cuda")) / "bin" for v in ("CUDA_HOME", "CUDA_PATH")]
    if nvidia := importlib.util.find_spec("nvidia"):
        folders += [path for p in nvidia.submodule_search_locations or () for path in Path(p).glob("cu*/bin")]
    if triton := importlib.util.find_spec("triton"):
        folders += [Path(p) / "backends" / "nvidia" / "bin" for p in triton.submodule_search_locations or ()]
    return shutil.which(name) or next((str(f / name) for f in folders if os.access(f / name, os.X_OK)), None)


def lacks_nvcc() -> bool:
    """Whether CUDA C++ cannot be compiled and read here."""
    return any(find_tool(tool) is None for tool in ("nvcc", "cuobjdump"))


def run_tool(name: str, *arguments: str) -> str:
    """What a CUDA tool prints."""
    tool = find_tool(name)
    if tool is None:
        raise FileNotFoundError(f"{name} not found: put it on PATH, set CUDA_HOME, or install triton")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    raise RuntimeError(f"{name} failed:\n{done.stderr[-4000:]}")


@functools.lru_cache(maxsize=1)
def _resources(path: str, _written: int) -> dict[str, dict[str, int]]:
    """Registers and memory of every kernel of a cubin, which was written then."""
    said = run_tool("cuobjdump", "--dump-resource-usage", path)
    kernels = re.findall(r"Function (\S+):\s*(.*)", said)
    return {name: {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", used)} for name, used in kernels}


@functools.lru_cache(maxsize=1)
def _codes(path: str, _written: int) -> dict[str, str]:
    """The machine code of every kernel of a cubin, which takes cuobjdump a third of a second."""
    sections = re.split(r"^\s*Function : (\S+)$", run_tool("cuobjdump", "-sass", path), flags=re.M)
    return dict(zip(sections[1::2], sections[2::2], strict=True))


def analyse_cubin(path: str | Path, kernel_regex: str, elements_per_iteration: int = 0, inner_trips: int = 1) -> Cost:
    """The cost of the one kernel of a cubin whose (mangled) name matches.

    `elements_per_iteration` is how many elements one thread finishes on one pass through the hot path. Without it the
    machine code is read where the kernel has a stack alone, to see what is spilled there: no stack, no spills.
    """
    file = (str(path), Path(path).stat().st_mtime_ns)
    kernels = _resources(*file)
    names = [name for name in kernels if re.search(kernel_regex, name)]
    if len(names) != 1:
        raise ValueError(f"{len(names)} kernels of {path} match {kernel_regex!r}; it has {', '.join(kernels)}")
    (name,) = names
    registers, stack = kernels[name]["REG"], kernels[name]["STACK"]
    if not (elements_per_iteration or stack):
        return Cost(name, registers, stack)
    code = _instructions(_codes(*file)[name])
    spills = sum(i.opcode.startswith(("STL", "LDL")) for i in code)
    if not elements_per_iteration:
        return Cost(name, registers, stack, spills)
    path_code, inner = _hot_path(code)
    again = [i for loop in inner for i in loop] * (inner_trips - 1)
    return Cost(
        name,
        registers,
        stack,
        spills,
        elements_per_iteration=elements_per_iteration,
        instructions_per_element=(len(path_code) + len(again)) / elements_per_iteration,
        vector_loads=sum(i.wide and i.opcode.startswith("LD") for i in path_code),
        vector_stores=sum(i.wide and i.opcode.startswith("ST") for i in path_code),
        loads_at_once=_loads_at_once([i for i in path_code if i.wide or not i.opcode.startswith("LD")]),
        loads_of_any_width=_loads_at_once(code, ("BRA",)),
        inner_loops=len(inner),
        opcodes=Counter(i.opcode for i in [*path_code, *again]),
    )


def _loads_at_once(code: list[Instruction], ends: tuple[str, ...] = ()) -> int:
    most = run = 0
    for i in code:
        if i.opcode.startswith(("FADD", "FMUL", "FFMA", "DADD", "DMUL", "DFMA", *ends)):
            run = 0
        run += i.opcode.startswith(("LDG", "LD."))
        most = max(most, run)
    return most


def _instructions(sass: str) -> list[Instruction]:
    lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);", sass, flags=re.M)
    return [Instruction(int(a, 16), bool(p), op, rest.strip()) for a, p, op, rest in lines]


def _hot_path(code: list[Instruction]) -> tuple[list[Instruction], list[list[Instruction]]]:
    """The instructions of the hot path, and those of each loop inside it."""
    blocks = _blocks(code)
    after = _successors(blocks)
    loops = _loops(after)
    loads = {n: [i for i in blocks[n] if i.opcode.startswith(("LDG", "LD."))] for n in after}
    marked = {n for n in after if any(i.wide for i in loads[n])} or {n for n in after if loads[n]}
    size = {h: sum(len(blocks[n]) for n in nodes) for h, nodes in loops.items()}
    header = min((h for h, nodes in loops.items() if nodes & marked), key=lambda h: size[h], default=min(after))
    hot = loops[header] if header in loops and loops[header] & marked else set(after)

    def score(node: int) -> tuple[int, int, int]:
        return sum(i.wide for i in blocks[node]), -(node in loops and node != header), -len(blocks[node])

    # The best path by the sum of scores, over the region without back edges, in topological order.
    best: dict[int, tuple[tuple[int, ...], list[int]]] = {header: (score(header), [header])}
    ends = []
    for node in _topological(header, hot, after, loops):
        so_far, route = best[node]
        if any(s == header for s in after[node]) or (hot == set(after) and not after[node]):
            ends.append(best[node])
        for s in after[node] & hot:
            if s == header or node in loops.get(s, ()):
                continue
            candidate = (tuple(a + b for a, b in zip(so_far, score(s), strict=True)), [*route, s])
            best[s] = max(best.get(s, candidate), candidate)
    route = max(ends)[1]
    inside = [nodes for nodes in loops.values() if nodes < hot and nodes <= set(route)]
    return [i for n in route for i in blocks[n]], [[i for n in nodes for i in blocks[n]] for nodes in inside]


def _blocks(code: list[Instruction]) -> dict[int, list[Instruction]]:
    starts = {code[0].address} | {i.target for i in code if i.target is not None}
    starts |= {b.address for a, b in pairwise(code) if a.target is not None or not a.falls_through}
    blocks: dict[int, list[Instruction]] = {}
    for i in code:
        if i.address in starts:
            current = blocks[i.address] = []
        current.append(i)
    return blocks


def _successors(blocks: dict[int, list[Instruction]]) -> dict[int, set[int]]:
    """The control flow between the blocks that can be reached."""
    order = sorted(blocks)
    following = dict(pairwise(order))
    after: dict[int, set[int]] = {}
    todo = [order[0]]
    while todo:
        node = todo.pop()
        if node in after:
            continue
        last = blocks[node][-1]
        out = {last.target} if last.target is not None else set()
        if last.falls_through and node in following:
            out.add(following[node])
        after[node] = {n for n in out if n in blocks}
        todo += after[node]
    return after


def _loops(after: dict[int, set[int]]) -> dict[int, set[int]]:
    """The natural loops: header to blocks."""
    before: dict[int, set[int]] = {n: set() for n in after}
    for n, out in after.items():
        for s in out:
            before[s].add(n)
    entry = min(after)
    dominators = {n: set(after) for n in after} | {entry: {entry}}
    changed = True
    while changed:
        changed = False
        for n in sorted(after):
            if n != entry:
                new = {n} | set.intersection(*(dominators[p] for p in before[n]))
                changed |= new != dominators[n]
                dominators[n] = new
    loops: dict[int, set[int]] = {}
    for n, out in after.items():
        for header in out & dominators[n]:
            nodes = loops.setdefault(header, {header})
            todo = [n]
            while todo:
                m = todo.pop()
                if m not in nodes:
                    nodes.add(m)
                    todo += before[m]
    return loops


def _topological(header: int, region: set[int], after: dict[int, set[int]], loops: dict[int, set[int]]) -> list[int]:
    """The region's blocks that the header reaches, each after those that lead to it."""
    order, seen = [], set()

    def visit(node: int) -> None:
        seen.add(node)
        for s in sorted(after[node] & region):
            if s not in seen and node not in loops.get(s, ()):
                visit(s)
        order.append(node)

    visit(header)
    return order[::-1]
