# SPDX-License-Identifier: Apache-2.0
"""Whether the known questions see random changes of compiled code.

    python -m tests.ptx.changes [--arch 90] [--backend cuda] [--changes 60] [--kernel NAME ...] [--page docs/gpu.md]

A change turns one instruction into another of the same types: an addition into a subtraction, a comparison into its
neighbour, a number into another, two operands into each other. It is seen if an answer is wrong or the machine refuses
to go on. Of what was not seen both instructions are executed side by side, and a row of the table says how often their
results differ: never, or where nothing that is written depends on them.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import results
from ldpkernels.launch.proved import Subject, subjects
from tests.ptx import machine
from tests.ptx.answers import ANSWERS
from tests.ptx.coverage import BACKENDS, Cuda, Triton, asked, compiled, write_table
from tests.ptx.operations import LOGICAL, Values, define
from tests.ptx.text import Immediate, Instruction, PtxError
from tests.ptx.translate import ACCESS, BRANCHES, program

ROOTS = {"add": "sub", "sub": "add", "and": "or", "or": "and", "xor": "or", "min": "max", "max": "min"}
COMPARED = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq", "nan": "num"}
SHADOW = "%of_the_change"


def changed(one: Instruction, chance: random.Random) -> Instruction | None:
    """Another instruction of the same types, if there is one."""
    parts, operands = one.opcode.split("."), list(one.operands)
    if one.opcode in BRANCHES or ACCESS.fullmatch(one.opcode):
        return None
    numbers = [i for i, o in enumerate(operands[1:], 1) if isinstance(o, Immediate) and not o.width]
    if numbers and chance.random() < 0.5 and parts[0] != "shfl":
        i = chance.choice(numbers)
        value = operands[i].value  # type: ignore[union-attr]
        operands[i] = Immediate(value ^ 1)
        return dataclasses.replace(one, operands=tuple(operands))
    if parts[0] in ROOTS and parts[-1] != "pred" and not (parts[0] in ("min", "max") and "NaN" in parts):
        return dataclasses.replace(one, opcode=".".join([ROOTS[parts[0]], *parts[1:]]))
    if parts[0] == "setp" and parts[1] in COMPARED and parts[-1] not in ("f16", "f16x2"):
        return dataclasses.replace(one, opcode=".".join([parts[0], COMPARED[parts[1]], *parts[2:]]))
    if parts[0] in ("selp", "shf", "prmt") and operands[1] != operands[2]:
        operands[1], operands[2] = operands[2], operands[1]
        return dataclasses.replace(one, operands=tuple(operands))
    return None


class _Differing:
    """How often two results differ, of how many."""

    def __init__(self) -> None:
        self.times = self.count = 0

    def __call__(self, result: Values, other: Values) -> Values:
        both = np.broadcast_arrays(result, other)
        self.times += int((both[0] != both[1]).sum())
        self.count += both[0].size
        return result


differing = _Differing()
define("differs.*", "t = t t", lambda a, b: differing(a, b), LOGICAL)
ANSWERS.update({f"differs.{kind}": [] for kind in LOGICAL})  # type: ignore[attr-defined]


def side_by_side(found: machine.Program, at: int, other: Instruction) -> list[machine.Block]:
    """Code that computes both results of a place, goes on with its own, and notes where they differ."""
    kernel, one = found.kernel, found.kernel.instructions[at]
    target = one.operands[0]
    assert isinstance(target, str)
    kind = kernel.type_of(target)
    noted = f"differs.{kind if kind == 'pred' else 'b' + kind.lstrip('busf')}"
    shadow = dataclasses.replace(other, operands=(SHADOW, *other.operands[1:]))
    both = [shadow, one, dataclasses.replace(one, opcode=noted, operands=(target, target, SHADOW), guard=None)]
    code = [*kernel.instructions[:at], *both, *kernel.instructions[at + 1 :]]
    labels = {name: place + 2 * (place > at) for name, place in kernel.labels.items()}
    registers = kernel.registers | {SHADOW: kind}
    return program(dataclasses.replace(kernel, instructions=code, labels=labels, registers=registers)).blocks


def trials(
    programs: dict[str, machine.Program], chance: random.Random
) -> Iterator[tuple[machine.Program, int, Instruction]]:
    """Random places in programs, and what stands there instead."""
    names = sorted(programs)
    while True:
        found = programs[chance.choice(names)]
        at = chance.randrange(len(found.kernel.instructions))
        if (other := changed(found.kernel.instructions[at], chance)) is not None:
            yield found, at, other


def executions(found: machine.Program, at: int) -> int:
    """How many threads came to a place."""
    here = [b.first <= at < b.first + len(b.instructions) for b in found.blocks]
    return int(found.executed[here].sum())


def outcome(of: Triton | Cuda, subject: Subject, found: machine.Program, blocks: list[machine.Block]) -> str | None:
    """The error of a question asked of a program with other blocks."""
    kept, counts = found.blocks, found.executed.copy()
    found.blocks, found.executed = blocks, np.zeros(len(blocks), np.int64)
    try:
        answer = asked(of, subject)
        return answer.error if answer else None
    finally:
        found.blocks, found.executed = kept, counts


def explained(of: Triton | Cuda, subject: Subject, found: machine.Program, at: int, other: Instruction) -> str:
    """Why a change is not seen, as far as executing both says it."""
    if not executions(found, at):
        return "never executed"
    if found.kernel.instructions[at].guard or not isinstance(other.operands[0], str):
        return "guarded"
    differing.times = differing.count = 0
    assert outcome(of, subject, found, side_by_side(found, at, other)) is None
    if not differing.times:
        return f"the same result in all {differing.count:,} executions"
    times = f"{differing.times:,} of {differing.count:,}"
    return f"another result in {times} executions, on which nothing that is written depends"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--backend", choices=tuple(BACKENDS), default="triton")
    parser.add_argument("--changes", type=int, default=60)
    parser.add_argument("--kernel", action="append", help="of these kernels alone")
    parser.add_argument("--dtype", action="append", help="of these dtypes alone")
    parser.add_argument("--page", type=Path, help="write the table of changes that were not seen to this page")
    options = parser.parse_args()
    of, subject_of, asked_of = compiled(options.backend, options.arch), dict[str, Subject](), 0
    for subject in subjects():
        if (options.kernel and subject.kernel not in options.kernel) or (
            options.dtype and subject.dtype not in options.dtype
        ):
            continue
        before = set(of.programs)
        answer = asked(of, subject)
        if answer and answer.error:
            sys.exit(f"{subject}: {answer.error}")
        asked_of += answer is not None
        subject_of |= dict.fromkeys(set(of.programs) - before, subject)
    machine.STEPS = 20_000
    rows, seen, drawn = [], 0, trials({name: of.programs[name] for name in subject_of}, random.Random(1))
    whose = {id(of.programs[name]): subject for name, subject in subject_of.items()}
    while seen + len(rows) < options.changes:
        found, at, other = next(drawn)
        code, subject = list(found.kernel.instructions), whose[id(found)]
        code[at] = other
        try:
            blocks = program(dataclasses.replace(found.kernel, instructions=code)).blocks
        except PtxError:  # no such instruction
            continue
        if outcome(of, subject, found, blocks):
            seen += 1
            continue
        was = found.kernel.instructions[at]
        rows.append(
            [
                str(subject),
                f"`{was.text.rstrip(';')}`",
                _difference(was, other),
                explained(of, subject, found, at, other),
            ]
        )
        print(*rows[-1], sep="; ", flush=True)
    print(f"{seen} of {seen + len(rows)} changes seen")
    if options.page:
        table = results.table(["kernel", "instruction", "instead", "why nothing sees it"], rows)
        asked_ = f"sm_{options.arch}: {asked_of} questions, {len(subject_of)} kernels"
        said = f"{asked_}; {seen} of {seen + len(rows)} changes seen.\n\n{table}"
        write_table(options.page, f"changes-{options.backend}", said)
    return 0


def _difference(was: Instruction, other: Instruction) -> str:
    if was.opcode != other.opcode:
        return f"`{other.opcode}`"
    pairs = zip(was.operands, other.operands, strict=True)
    changed_ = [str(b.value) if isinstance(b, Immediate) else str(b) for a, b in pairs if a != b]
    return f"`{', '.join(changed_)}`"


if __name__ == "__main__":
    sys.exit(main())
