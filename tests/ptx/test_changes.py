# SPDX-License-Identifier: Apache-2.0
"""What is said of changes that nothing sees, of a kernel in which each kind is known."""

import dataclasses
import random

import numpy as np
import pytest

pytest.importorskip("torch")
from ldpkernels.launch.proved import Answer
from tests.ptx import changes
from tests.ptx.machine import launch
from tests.ptx.test_opcodes import kernel
from tests.ptx.text import instruction, kernels
from tests.ptx.translate import program

CODE = """	mov.u32 %wr30, %tid.x;
	mul.wide.u32 %dr1, %wr30, 4;
	add.s64 %dr2, %dr30, %dr1;
	add.s32 %wr1, %wr30, 5;
	setp.lt.s32 %pr1, %wr30, 64;
	@!%pr1 bra $never;
	add.s32 %wr2, %wr30, 9;
	and.b32 %wr2, %wr2, 0;
	add.s32 %wr1, %wr1, %wr2;
	bra $end;
$never:
	add.s32 %wr1, %wr1, 1;
$end:
	st.global.b32 [%dr2], %wr1;
"""


@pytest.fixture
def found(monkeypatch):
    """A program of which one question is known: every thread's number and 5."""
    (entry,) = kernels(kernel(CODE)).values()
    made = program(entry)

    def asked(of, subject):
        memory = np.zeros(32, np.uint32)
        start = memory.ctypes.data
        launch(made, (1, 1, 1), start.to_bytes(8, "little"), [(start, start + 128)])
        right = memory.tolist() == list(range(5, 37))
        return Answer(subject, "triton", None if right else "gives other numbers")

    monkeypatch.setattr(changes, "asked", asked)
    assert asked(None, None).error is None
    return made


@pytest.mark.parametrize(
    ("at", "instead", "why"),
    [
        (4, "sub.s32 %wr1, %wr30, 5;", None),
        (5, "setp.le.s32 %pr1, %wr30, 64;", "the same result in all 32 executions"),
        (
            7,
            "sub.s32 %wr2, %wr30, 9;",
            "another result in 32 of 32 executions, on which nothing that is written depends",
        ),
        (11, "add.s32 %wr1, %wr1, 2;", "never executed"),
    ],
)
def test_why_a_change_is_not_seen(found, at, instead, why):
    other = instruction(instead)
    code = list(found.kernel.instructions)
    code[at] = other
    error = changes.outcome(None, None, found, program(dataclasses.replace(found.kernel, instructions=code)).blocks)
    assert (error is None) == (why is not None)
    if why:
        assert changes.explained(None, None, found, at, other) == why


def test_changes_keep_types():
    """Each is an instruction that the machine takes, and another than before."""
    (entry,) = kernels(kernel(CODE)).values()
    chance, made = random.Random(1), 0
    for at, one in enumerate(entry.instructions):
        for _ in range(5):
            other = changes.changed(one, chance)
            if other is not None:
                code = [*entry.instructions[:at], other, *entry.instructions[at + 1 :]]
                program(dataclasses.replace(entry, instructions=code))
                assert other != one
                made += 1
    assert made > 20
