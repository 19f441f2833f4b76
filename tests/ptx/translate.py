# SPDX-License-Identifier: Apache-2.0
"""From PTX to a Python function for each block of instructions: machine.py says who executes it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from tests.ptx import together
from tests.ptx.answers import ANSWERS
from tests.ptx.comparisons import OPERATIONS
from tests.ptx.machine import DONE, Block, Program
from tests.ptx.operations import TYPES
from tests.ptx.text import WIDTHS, Address, Immediate, Instruction, Kernel, Operand, PtxError, Several, kernels

BRANCHES = {"bra", "bra.uni", "ret"}
ACCESS = re.compile(
    r"(?:(?P<ld>ld)|st)(?:\.(?P<sem>volatile|relaxed\.\w+))?(?:\.(?P<space>global|shared(?:::cta)?|param|local))?"
    r"(?:\.(?:nc|L1::\w+|L2::\w+))*(?:\.v(?P<n>[24]))?\.(?P<type>[busf]\d+)"
)
BYTES = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


@lru_cache(maxsize=512)
def translated(source: str) -> Program:
    """The one kernel of a module."""
    (kernel,) = kernels(source).values()
    return program(kernel)


def program(kernel: Kernel) -> Program:
    """Blocks begin where branches lead, and behind them: compilers have labels of their own besides."""
    code = kernel.instructions
    named = {str(o) for one in code if one.opcode in BRANCHES for o in one.operands}
    starts = {0} | {place for label, place in kernel.labels.items() if label in named}
    starts |= {i + 1 for i, one in enumerate(code) if one.opcode in BRANCHES}
    order = sorted(s for s in starts if s < len(code))
    index = {start: i for i, start in enumerate(order)}
    blocks = []
    for start, end in zip(order, [*order[1:], len(code)], strict=True):
        several = 1
        for one in code[start:end]:
            several = max(several, together.threads(one.opcode, kernel.threads))
        if not kernel.threads or (kernel.threads % 32 and several > 1):
            raise PtxError(f"{kernel.name} has {kernel.threads} threads, which are no whole warps")
        blocks.append(Block(start, code[start:end], several))
    registers = [{name for one in block.instructions for name in _names(one)} for block in blocks]
    uses = Counter(name for names in registers for name in names)
    for i, block in enumerate(blocks):
        outside = {name for name in registers[i] if uses[name] > 1}
        block.run = _Writer(kernel, index).function(block, i, len(blocks), outside)
    return Program(kernel, blocks)


def _names(one: Instruction) -> Iterator[str]:
    """The registers and symbols that an instruction names."""
    if one.guard:
        yield one.guard
    for operand in one.operands:
        if isinstance(operand, Address):
            yield operand.base
        elif isinstance(operand, Several):
            yield from (p for p in operand.parts if isinstance(p, str))
        elif isinstance(operand, str):
            yield operand


class _Writer:
    """Writes the Python of one block."""

    def __init__(self, kernel: Kernel, index: dict[int, int]) -> None:
        self.kernel, self.index = kernel, index
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"np": np}
        self.written: dict[str, None] = {}
        self.read: dict[str, None] = {}
        self.constants: dict[tuple[str, int], str] = {}

    def function(self, block: Block, i: int, blocks: int, outside: set[str]) -> Any:
        """f(wave, lanes): executes the block and returns where its threads go on."""
        following = f"return {i + 1 if i + 1 < blocks else 'DONE'}"
        for k, one in enumerate(block.instructions):
            try:
                if one.opcode in BRANCHES:
                    following = self._branch(one, i, blocks)
                else:
                    self._instruction(one, k)
            except (PtxError, KeyError, ValueError) as error:
                raise PtxError(f"{self.kernel.name}, line {one.line}: {one.text}: {error}") from error
        get = [f"{_local(r)} = m.get({r!r}, i)" for r in self.read]
        put = [f"m.put({r!r}, {_local(r)}, i)" for r in self.written if r in outside or r in self.read]
        if i + 1 == blocks and not block.instructions[-1].opcode == "ret" and following.endswith("DONE"):
            raise PtxError(f"{self.kernel.name} ends without ret")
        source = "\n    ".join(["def run(m, i):", *get, *self.lines, *put, following])
        self.scope["DONE"] = DONE
        exec(compile(source, f"<{self.kernel.name} block {i}>", "exec"), self.scope)
        return self.scope["run"]

    def _branch(self, one: Instruction, i: int, blocks: int) -> str:
        other = str(i + 1 if i + 1 < blocks else "DONE")
        if one.opcode == "ret":
            target = "DONE"
        else:
            (label,) = one.operands
            if label not in self.kernel.labels:
                raise PtxError(f"there is no label {label}")
            place = self.kernel.labels[str(label)]
            target = str(self.index[place]) if place in self.index else "DONE"
        if one.guard is None:
            return f"return {target}"
        guard = self._guard(one)
        return f"return np.where({guard}, {target}, {other})"

    def _guard(self, one: Instruction) -> str:
        assert one.guard is not None
        return f"{'~' if one.negated else ''}{self.register(one.guard, 'pred')}"

    def _instruction(self, one: Instruction, k: int) -> None:
        if access := ACCESS.fullmatch(one.opcode):
            self._access(one, k, access)
        elif one.opcode in ("mov.b32", "mov.b64") and any(isinstance(o, Several) for o in one.operands):
            self._pack(one)
        elif one.opcode.startswith("cvta."):
            self._same_address(one)
        elif one.opcode.split(".")[0] in together.OPCODES:
            self._together(one, k)
        elif one.opcode in OPERATIONS and one.opcode in ANSWERS:
            self._operation(one)
        else:
            raise PtxError(f"{one.opcode} is unknown")

    def _operation(self, one: Instruction) -> None:
        name = one.opcode
        operation = OPERATIONS[name]
        results, *operands = one.operands
        if name in ("min.f32", "max.f32", "min.NaN.f32", "max.NaN.f32") and len(operands) == 3:
            first = self._call(name, [self.value(o, "f32") for o in operands[:2]])
            self._assign(results, "f32", self._call(name, [first, self.value(operands[2], "f32")]), one)
            return
        if len(operands) != len(operation.operands):
            raise PtxError(f"{len(operands)} operands where {len(operation.operands)} belong")
        values = [self.value(o, t, operation.loose) for o, t in zip(operands, operation.operands, strict=True)]
        call = self._call(name, values)
        if len(operation.results) == 2:
            if not isinstance(results, Several) or results.braces or len(results.parts) != 2:
                raise PtxError("two results belong here")
            self.lines.append(f"t0, t1 = {call}")
            for part, kind, value in zip(results.parts, operation.results, ("t0", "t1"), strict=True):
                self._assign(part, kind, value, one)
        else:
            self._assign(results, operation.results[0], call, one, operation.loose)

    def _call(self, name: str, values: list[str]) -> str:
        function = "f_" + re.sub(r"\W", "_", name)
        self.scope[function] = OPERATIONS[name].function
        return f"{function}({', '.join(values)})"

    def register(self, name: str, kind: str, loose: bool = False) -> str:
        """A register read as a type, of its own width."""
        declared = self.kernel.type_of(name)
        wide, needed = WIDTHS[declared], WIDTHS[kind]
        if (declared == "pred") != (kind == "pred") or (wide < needed if loose else wide != needed):
            raise PtxError(f"{name} is .{declared}, which is no .{kind}")
        if name not in self.written:
            self.read.setdefault(name)
        text = _local(name)
        if kind == "pred":
            return text
        if wide != needed:
            text = f"{text}.astype('u{needed}')"
        unsigned = np.dtype(TYPES[kind]).kind == "u"
        return text if unsigned else f"{text}.view({self._type(kind)})"

    def _type(self, kind: str) -> str:
        self.scope[f"T_{kind}"] = TYPES[kind]
        return f"T_{kind}"

    def value(self, operand: Operand, kind: str, loose: bool = False) -> str:
        """An operand read as a type."""
        if isinstance(operand, Immediate):
            return self._constant(operand, kind)
        if not isinstance(operand, str):
            raise PtxError("a register or a number belongs here")
        if operand in self.kernel.shared:
            return self._constant(Immediate(self.kernel.shared[operand]), kind)
        if operand in self.kernel.params and kind in ("b64", "u64"):
            return f"m.address_of_parameter({self.kernel.params[operand][0]})"
        if operand in self.kernel.local and kind in ("b64", "u64"):
            return f"m.local_address({self.kernel.local[operand]}, i)"
        if operand.startswith("%") and operand in _SPECIAL:
            if kind not in ("u32", "b32"):
                raise PtxError(f"{operand} is .u32")
            return f"m.special_of({operand!r}, i)"
        return self.register(operand, kind, loose)

    def _constant(self, number: Immediate, kind: str) -> str:
        if kind == "pred":
            return "np.True_" if number.value else "np.False_"
        width = WIDTHS[kind]
        numeric = kind in ("f16", "f32", "f64")
        if (number.width and (number.width != width or kind[0] in "su")) or (numeric and not number.width):
            raise PtxError(f"{number.value:#x} is no .{kind}")
        if not -(1 << 8 * width - 1) <= number.value < 1 << 8 * width:
            raise PtxError(f"{number.value} does not fit in .{kind}")
        bits = np.array(number.value & (1 << 8 * width) - 1, f"u{width}").view(TYPES[kind])[()]
        name = self.constants.setdefault((kind, number.value), f"c{len(self.constants)}_{kind}")
        self.scope[name] = bits
        return name

    def _assign(self, target: Operand, kind: str, value: str, one: Instruction, loose: bool = False) -> None:
        """Write a register, of the threads whose guard lets them."""
        if target == "_":
            self.lines.append(value)
            return
        if not isinstance(target, str):
            raise PtxError("a register belongs here")
        declared = self.kernel.type_of(target)
        wide, needed = WIDTHS[declared], WIDTHS[kind]
        if (declared == "pred") != (kind == "pred") or (wide < needed if loose else wide != needed):
            raise PtxError(f"{target} is .{declared}, which is no .{kind}")
        if kind != "pred":
            if wide != needed:
                extend = f"i{wide}" if kind[0] == "s" else f"u{wide}"
                value = f"np.asarray({value}).astype('{extend}').view('u{wide}')"
            elif np.dtype(TYPES[kind]).kind != "u":
                value = f"{value}.view('u{wide}')"
        if one.guard is not None:
            before = self.register(target, "pred" if kind == "pred" else f"b{8 * wide}")
            value = f"np.where({self._guard(one)}, {value}, {before})"
        self.lines.append(f"{_local(target)} = {value}")
        self.written.setdefault(target)

    def _pack(self, one: Instruction) -> None:
        target, source = one.operands
        width = WIDTHS[one.opcode[4:]]
        several = target if isinstance(target, Several) else source
        assert isinstance(several, Several)
        part = width // len(several.parts)
        if not several.braces or part not in (2, 4) or part * len(several.parts) != width:
            raise PtxError("these are not the parts of a register")
        if isinstance(target, Several):
            whole = self.value(source, f"b{8 * width}")
            self.lines.append(f"t0 = {whole}")
            for i, name in enumerate(target.parts):
                if name != "_":
                    shifted = f"(t0 >> t0.dtype.type({8 * part * i})).astype('u{part}')"
                    self._assign(name, f"b{8 * part}", shifted, one)
        else:
            values = [f"np.asarray({self.value(p, f'b{8 * part}')}).astype('u{width}')" for p in several.parts]
            joined = " | ".join(f"({v} << np.uint{8 * width}({8 * part * i}))" for i, v in enumerate(values))
            self._assign(target, f"b{8 * width}", f"({joined})", one)

    def _same_address(self, one: Instruction) -> None:
        """Addresses of global and local memory and of parameters are generic ones as they are."""
        if not re.fullmatch(r"cvta(\.to)?\.(global|local)\.u64", one.opcode):
            raise PtxError(f"{one.opcode} is unknown")
        target, source = one.operands
        self._assign(target, "u64", f"{self.value(source, 'u64')}.copy()", one)

    def _access(self, one: Instruction, k: int, found: re.Match[str]) -> None:
        kind, space, loads = found["type"], (found["space"] or "generic").split(":")[0], bool(found["ld"])
        target, address = one.operands if loads else one.operands[::-1]
        parts = target.parts if isinstance(target, Several) else (target,)
        if len(parts) != int(found["n"] or 1) or not isinstance(address, Address):
            raise PtxError(f"{found['n'] or 1} operands and an address belong here")
        width = WIDTHS[kind]
        if space == "param":
            if not loads:
                raise PtxError("nothing is written to parameters")
            if not address.base.startswith("%"):
                self._parameters(parts, address, kind, width, one)
                return
        pointer = "u32" if space == "shared" else "u64"
        base = self.value(address.base, pointer)
        mask = self._guard(one) if one.guard else "None"
        where = f"{base} + np.uint{pointer[1:]}({address.offset % (1 << int(pointer[1:]))})"
        self.scope["load"], self.scope["store"] = together.load, together.store
        if loads:
            self.lines.append(f"t = load(m, i, {k}, {space!r}, {where}, {mask}, {width}, {len(parts)})")
            for j, part in enumerate(parts):
                if isinstance(part, str) and part != "_":
                    self._assign(part, kind, f"t[{j}].view({self._type(kind)})", one, loose=True)
        else:
            values = ", ".join(
                self.value(p, kind if isinstance(p, str) else f"b{8 * width}", loose=True) for p in parts
            )
            self.lines.append(f"store(m, i, {k}, {space!r}, {where}, {mask}, {width}, ({values},))")

    def _parameters(
        self, parts: tuple[str | Immediate, ...], address: Address, kind: str, width: int, one: Instruction
    ) -> None:
        """Parameters by their names."""
        if address.base not in self.kernel.params:
            raise PtxError("this is no parameter")
        offset, _, size = self.kernel.params[address.base]
        if not 0 <= address.offset <= size - width * len(parts):
            raise PtxError(f"the parameter has {size} bytes")
        for i, part in enumerate(parts):
            at = offset + address.offset + i * width
            read = f"np.frombuffer(m.params, 'u{width}', 1, {at})[0].view({self._type(kind)})"
            self._assign(part, kind, read, one, loose=True)

    def _together(self, one: Instruction, k: int) -> None:
        """What threads do with each other: the functions of together.py, with operands of their types."""
        function, results, operands = together.described(one.opcode)
        self.scope["f_" + function.__name__] = function
        given = list(one.operands)
        outs: list[Operand] = []
        if results:
            first = given.pop(0)
            outs = list(first.parts) if isinstance(first, Several) else [first]
            if isinstance(first, Several) and not first.braces and len(outs) == len(results) + 1:
                results = (*results, "pred")
        if len(outs) != len(results) or len(given) != len(operands):
            raise PtxError("these are not its operands")
        values = []
        for operand, kind in zip(given, operands, strict=True):
            if isinstance(operand, Address):
                pointer = "u64" if kind == "global" else "u32"
                wide = "uint64" if pointer == "u64" else "uint32"
                values.append(f"{self.value(operand.base, pointer)} + np.{wide}({operand.offset})")
            elif isinstance(operand, Several):
                values.append("(" + ", ".join(self.value(p, kind) for p in operand.parts) + ",)")
            else:
                values.append(self.value(operand, kind))
        mask = self._guard(one) if one.guard else "None"
        call = f"f_{function.__name__}(m, i, {k}, {one.opcode!r}, {mask}, {', '.join(values)})"
        self.lines.append(f"t = {call}" if outs else call)
        for j, (out, kind) in enumerate(zip(outs, results, strict=True)):
            if out != "_":
                self._assign(out, kind, f"t[{j}]", one)


_SPECIAL = {f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"} | {"%laneid"}


def _local(register: str) -> str:
    return "r_" + re.sub(r"\W", "_", register)
