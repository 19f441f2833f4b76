# SPDX-License-Identifier: Apache-2.0
"""PTX as text, read strictly: what is not understood is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

WIDTHS = {"pred": 0, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2}
WIDTHS |= {"b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4}
WIDTHS |= {"b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8}

# Directives that say nothing about what a kernel computes.
IGNORED = {"version", "address_size", "file", "loc", "minnctapersm", "pragma", "section", "target"}

_WORD = r"[$%_A-Za-z][$\w.:]*"
_TOKEN = re.compile(rf'\s*(?:({_WORD})|(0[fd][0-9A-Fa-f]+|-?0x[0-9A-Fa-f]+U?|-?\d+U?)|("[^"]*")|(.))', re.DOTALL)


class PtxError(Exception):
    """Text that this machine does not understand, or an execution that a device would not define."""


@dataclass(frozen=True)
class Immediate:
    """A number, as bits where it is written so: `width` is then its bytes, else 0."""

    value: int
    width: int = 0


@dataclass(frozen=True)
class Address:
    """[base + offset], base a register or a symbol."""

    base: str
    offset: int = 0


@dataclass(frozen=True)
class Several:
    """Registers in braces, or the two predicates of a comparison: `p|q`."""

    parts: tuple[str | Immediate, ...]
    braces: bool


Operand = str | Immediate | Address | Several


@dataclass(frozen=True)
class Instruction:
    """`@guard opcode operands;`"""

    opcode: str
    operands: tuple[Operand, ...]
    guard: str | None
    negated: bool
    text: str
    line: int


@dataclass
class Kernel:
    """An entry: its parameters by name, their offset and type or bytes, its registers' types, and its shared memory."""

    name: str
    params: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    banks: dict[str, tuple[str, int]] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    static_shared: int = 0
    local: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0  # of a thread
    threads: int = 0
    most_threads: int = 1024
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def type_of(self, register: str) -> str:
        """The declared type of a register."""
        if register in self.registers:
            return self.registers[register]
        bank = re.fullmatch(r"(%[A-Za-z_]+)(\d+)", register)
        if bank and bank[1] in self.banks and int(bank[2]) < self.banks[bank[1]][1]:
            return self.banks[bank[1]][0]
        raise PtxError(f"{self.name}: {register} was not declared")


def kernels(source: str) -> dict[str, Kernel]:
    """All entries of a module."""
    module, found, current = _Module(), dict[str, Kernel](), None
    for line, text in _statements(source):
        try:
            current = module.take(text, line, current, found)
        except (PtxError, ValueError, KeyError, IndexError) as error:
            raise PtxError(f"line {line}: {text!r}: {error}") from error
    if module.depth:
        raise PtxError("a brace was left open")
    return found


def kernel_named(source: str, name: str) -> Kernel:
    """One entry of a large module, with the functions that it calls in the places where it calls them."""
    return kernels(_with_calls(source, _body(source, rf"(?:\.visible )?\.entry {re.escape(name)}\(")))[name]


def _body(source: str, head: str) -> str:
    found = re.search(rf"^{head}[^;{{]*^\{{.*?^\}}", source, re.MULTILINE | re.DOTALL)
    if found is None:
        raise PtxError(f"there is no {head}")
    return found[0]


_CALL = re.compile(
    r"\{ // callseq[^{}]*st\.param\.b64\s+\[param0(?:\+0)?\], (%\w+);\s*call\.uni\s+(\w+),\s*\(\s*param0\s*\);\s*\}"
)


def _with_calls(source: str, text: str) -> str:
    """Functions of one address that return nothing: what they do instead of each call of them."""
    calls = 0

    def written(call: re.Match[str]) -> str:
        nonlocal calls
        calls += 1
        code = _body(source, rf"\.func {call[2]}\(").partition("{")[2].rpartition("}")[0]
        code = re.sub(r"%([a-z]+)(?=[\d<])", r"%of_function_\1", code)
        code = re.sub(r"\$(\w+)", rf"$call{calls}_\1", code)
        code = re.sub(rf"ld\.param\.u64 \s*(%\w+), \[{call[2]}_param_0\];", rf"mov.u64 \1, {call[1]};", code)
        return code.replace("ret;", f"bra $call{calls}_end;") + f"\n$call{calls}_end:\n"

    return _CALL.sub(written, text)


# A register of one line's own, of which another line may have another type.
_SCOPE = re.compile(r"\{ \.reg \.(\w+) (\w+); [^{}\n]*\{[^{}\n]*\}[^{}\n]*\}")


def _statements(source: str) -> Iterator[tuple[int, str]]:
    """Statements, labels, braces of scopes and whole headers of entries, with their lines."""
    source = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.DOTALL)
    source = re.sub(r"//[^\n]*", "", source)
    source = _SCOPE.sub(lambda m: re.sub(rf"\b{m[2]}\b", f"{m[2]}_{m[1]}", m[0]), source)
    debug = source.find("\n\t.section")  # of the debugger, to the end
    source = source if debug < 0 else source[:debug]
    place, line = 0, 1
    pattern = re.compile(
        r"\s*(?:(\.(?:version|target|address_size|file|loc)\b[^\n]*)"  # to the end of the line
        r"|((?:\.visible|\.weak)?\s*\.entry[^{]*)"
        r"|([$_A-Za-z][$\w]*:)"
        r"|([{}])(?![^;{}]*\}[^;]*;)"
        r"|([^;]*;))"
    )
    while place < len(source.rstrip()):
        match = pattern.match(source, place)
        if match is None:
            raise PtxError(f"line {line}: {source[place : place + 60]!r} is no statement")
        start = match.start(match.lastindex or 0)
        line += source.count("\n", place, start)
        yield line, " ".join(match[match.lastindex or 0].split())
        line += source.count("\n", start, match.end())
        place = match.end()


class _Module:
    def __init__(self) -> None:
        self.depth, self.shared, self.extern = 0, dict[str, tuple[int, int]](), set[str]()

    def take(self, text: str, line: int, kernel: Kernel | None, found: dict[str, Kernel]) -> Kernel | None:
        if text == "{":
            self.depth += 1
        elif text == "}":
            self.depth -= 1
            if self.depth == 0:
                return None
        elif ".entry" in text.split("(")[0]:
            return self._entry(text, found)
        elif text.endswith(":"):
            assert kernel is not None
            if text[:-1] in kernel.labels:
                raise PtxError("this label is there twice")
            kernel.labels[text[:-1]] = len(kernel.instructions)
        elif text.startswith("."):
            self._directive(text.rstrip(";").strip(), kernel)
        else:
            assert kernel is not None
            kernel.instructions.append(instruction(text, line))
        return kernel

    def _entry(self, text: str, found: dict[str, Kernel]) -> Kernel:
        head = re.match(r"(?:\.visible|\.weak)? ?\.entry ([$\w]+) ?\((.*?)\)(.*)", text)
        if head is None:
            raise PtxError("this is no entry")
        kernel = found[head[1]] = Kernel(head[1])
        size = 0
        for parameter in filter(None, (p.strip() for p in head[2].split(","))):
            match = re.fullmatch(
                r"\.param(?: \.align (\d+))? \.(\w+)(?: \.ptr(?: \.global)? \.align \d+)? ([$\w]+)(?:\[(\d+)\])?",
                parameter,
            )
            if match is None:
                raise PtxError(f"{parameter!r} is no parameter")
            item = WIDTHS[match[2]]
            size = -(-size // int(match[1] or item)) * int(match[1] or item)
            kernel.params[match[3]] = size, match[2], item * int(match[4] or 1)
            size += kernel.params[match[3]][2]
        for name, value in re.findall(r"\.(\w+) ([\d, ]+)", head[3]):
            if name == "reqntid":
                kernel.threads = int(value.split(",")[0])
            elif name == "maxntid":
                kernel.most_threads = int(value.split(",")[0])
            elif name not in IGNORED:
                raise PtxError(f".{name} is unknown")
        for name, (offset, bytes_) in self.shared.items():
            kernel.shared[name], kernel.static_shared = offset, max(kernel.static_shared, offset + bytes_)
        return kernel

    def _directive(self, text: str, kernel: Kernel | None) -> None:
        if match := re.fullmatch(r"\.reg \.(\w+) (.*)", text):
            assert kernel is not None
            for name in match[2].split(","):
                bank = re.fullmatch(r"\s*(%?[$\w]+?)(?:<(\d+)>)?\s*", name)
                if bank is None or match[1] not in WIDTHS:
                    raise PtxError("these are no registers")
                if bank[2]:
                    kernel.banks[bank[1]] = match[1], int(bank[2])
                else:
                    kernel.registers[bank[1]] = match[1]
        elif match := re.fullmatch(r"\.local \.align (\d+) \.b8 ([$\w]+)\[(\d+)\]", text):
            assert kernel is not None
            start = -(-kernel.local_bytes // int(match[1])) * int(match[1])
            kernel.local[match[2]], kernel.local_bytes = start, start + int(match[3])
        elif match := re.fullmatch(r"(\.extern )?\.shared \.align (\d+) \.b8 ([$\w]+)\[(\d*)\]", text):
            places = kernel.shared if kernel else None
            end = kernel.static_shared if kernel else max((o + n for o, n in self.shared.values()), default=0)
            start = -(-end // int(match[2])) * int(match[2])
            size = int(match[4] or 0)
            if places is not None:
                assert kernel is not None
                places[match[3]], kernel.static_shared = start, start + size
            else:
                self.shared[match[3]] = start, size
        elif text.split()[0][1:] not in IGNORED:
            raise PtxError("this directive is unknown")


def instruction(text: str, line: int = 0) -> Instruction:
    """One statement that ends with a semicolon."""
    match = re.fullmatch(r"(?:@(!?)(%?[$\w]+) )?([a-z][\w.:]*) ?(.*);", " ".join(text.split()))
    if match is None:
        raise PtxError(f"{text!r} is no instruction")
    tokens = [m for m in _TOKEN.findall(match[4]) if any(m)]
    return Instruction(match[3], tuple(_operands(tokens)), match[2] or None, match[1] == "!", text, line)


def _operands(tokens: list[tuple[str, str, str, str]]) -> Iterator[Operand]:
    words = [a or b or c or d for a, b, c, d in tokens]
    at = 0

    def one() -> str | Immediate:
        nonlocal at
        word = words[at]
        at += 1
        if re.fullmatch(_WORD, word):
            return word
        if word[:2] in ("0f", "0d"):
            width = 4 if word[1] == "f" else 8
            if len(word) != 2 + 2 * width:
                raise PtxError(f"{word} does not have {2 * width} digits")
            return Immediate(int(word[2:], 16), width)
        return Immediate(int(word.rstrip("U"), 0))

    def expect(*choices: str) -> str:
        nonlocal at
        if at >= len(words) or words[at] not in choices:
            raise PtxError(f"{' or '.join(choices)} is missing")
        at += 1
        return words[at - 1]

    while at < len(words):
        if words[at] == "{":
            at += 1
            parts = [one()]
            while expect(",", "}") == ",":
                parts.append(one())
            yield Several(tuple(parts), braces=True)
        elif words[at] == "[":
            at += 1
            base, offset = one(), 0
            if not isinstance(base, str):
                raise PtxError("an address begins with a register or a symbol")
            if at < len(words) and words[at] == "+":
                at += 1
                number = one()
                if not isinstance(number, Immediate) or number.width:
                    raise PtxError("an offset is an integer")
                offset = number.value
            expect("]")
            yield Address(base, offset)
        else:
            first = one()
            if at < len(words) and words[at] == "|":
                at += 1
                yield Several((first, one()), braces=False)
            else:
                yield first
        if at < len(words):
            expect(",")
