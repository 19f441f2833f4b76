# SPDX-License-Identifier: Apache-2.0
"""Which blocks of compiled code the known questions reach, and whether they see random changes of it.

    python -m tests.ptx.changes [--arch 90] [--changes 60] [--kernel NAME ...]

A change turns one instruction into another of the same types: an addition into a subtraction, a comparison into its
neighbour, a number into another, two operands into each other. It is seen if an answer is wrong or the machine refuses
to go on. What was not seen is printed, with whether it was executed at all: to be explained.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # it is read when triton is imported
os.environ.setdefault("TRITON_CACHE_DIR", str(Path(__file__).resolve().parents[2] / "build" / "ptx-cache"))

import torch

from ldpkernels.launch.proved import Answer, Subject, ask, subjects
from tests.ptx import device, machine
from tests.ptx.text import Immediate, Instruction, PtxError
from tests.ptx.translate import ACCESS, BRANCHES, program

ROOTS = {"add": "sub", "sub": "add", "and": "or", "or": "and", "xor": "or", "min": "max", "max": "min"}
COMPARED = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq", "nan": "num"}


def asked(subject: Subject) -> Answer:
    with device.taking_tensors_of_the_host():
        return ask("triton", subject, torch.device("cpu"))


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


def is_executed(found: machine.Program, at: int) -> bool:
    return any(
        n and b.first <= at < b.first + len(b.instructions) for n, b in zip(found.executed, found.blocks, strict=True)
    )


def coverage(chosen: list[Subject]) -> dict[str, tuple[Subject, machine.Program]]:
    """Ask everything, and print what was executed of each kernel's code."""
    of: dict[str, tuple[Subject, machine.Program]] = {}
    reached, there, wrong = 0, 0, 0
    for subject in chosen:
        before = set(device.record.programs)
        answer = asked(subject)
        wrong += answer.error is not None
        if answer.error:
            print(f"{subject}: {answer.error}", flush=True)
        for name in set(device.record.programs) - before:
            found = device.record.programs[name]
            of[name] = subject, found
            reached, there = reached + int((found.executed > 0).sum()), there + len(found.blocks)
    print(f"{len(chosen)} questions, {wrong} wrong answers; {len(of)} kernels, {reached} of {there} blocks executed")
    return of


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--changes", type=int, default=60)
    parser.add_argument("--kernel", action="append", help="of these kernels alone")
    parser.add_argument("--dtype", action="append", help="of these dtypes alone")
    options = parser.parse_args()
    device.install(options.arch)
    chosen = [s for s in subjects() if not options.kernel or s.kernel in options.kernel]
    of = coverage([s for s in chosen if not options.dtype or s.dtype in options.dtype])
    chance, seen, unseen = random.Random(1), 0, 0
    machine.STEPS = 20_000
    if not options.changes:
        return 0
    drawn = trials({name: found for name, (_, found) in of.items()}, chance)
    subject_of = {id(found): subject for subject, found in of.values()}
    while seen + unseen < options.changes:
        found, at, other = next(drawn)
        executed, kept = is_executed(found, at), found.blocks
        code = list(found.kernel.instructions)
        code[at] = other
        try:
            found.blocks = program(dataclasses.replace(found.kernel, instructions=code)).blocks
        except PtxError:  # no such instruction
            continue
        counts = found.executed.copy()
        try:
            error = asked(subject_of[id(found)]).error
        finally:
            found.blocks, found.executed = kept, counts
        if error:
            seen += 1
            continue
        unseen += 1
        where = f"{subject_of[id(found)]}, line {other.line}: {code[at].text}"
        print(
            f"not seen ({'executed' if executed else 'never executed'}): {where} -> {other.opcode} {other.operands}",
            flush=True,
        )
    print(f"{seen} of {options.changes} changes seen")
    return 0


if __name__ == "__main__":
    sys.exit(main())
