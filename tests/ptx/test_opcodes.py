# SPDX-License-Identifier: Apache-2.0
"""Every opcode by its known answers, through the whole machine: text, registers, memory."""

import numpy as np
import pytest

from tests.ptx.answers import ANSWERS, bits
from tests.ptx.comparisons import OPERATIONS
from tests.ptx.machine import launch
from tests.ptx.text import WIDTHS, PtxError, kernels
from tests.ptx.translate import program

REGISTERS = "".join(f"\t.reg .{'pred' if kind == 'p' else f'b{kind}'} %{kind}r<40>;\n" for kind in ("p", 8, 16, 32, 64))
ENTRY = f""".version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0) .reqntid 32
{{
{REGISTERS}	ld.param.b64 %64r30, [k_param_0];
"""


def kernel(lines):
    """A kernel of 32 threads that gets one address, in %64r30; %32r30 is the thread."""
    return (
        ENTRY.replace("%8r", "%br").replace("%16r", "%hr").replace("%32r", "%wr").replace("%64r", "%dr")
        + lines
        + "\tret;\n}\n"
    )


def register(width, i):
    return {1: "%pr", 2: "%hr", 4: "%wr", 8: "%dr"}[width] + str(i)


def run(lines, memory, regions=None, shared=0, grid=(1, 1, 1), threads=32):
    """Execute lines with the address of an array."""
    (entry,) = kernels(kernel(lines).replace(".reqntid 32", f".reqntid {threads}")).values()
    made = program(entry)
    start = memory.ctypes.data
    regions = [(start, start + memory.nbytes)] if regions is None else regions
    launch(made, grid, start.to_bytes(8, "little"), regions, shared)
    return made


@pytest.mark.parametrize("opcode", ANSWERS)
def test_answers(opcode):
    operation = OPERATIONS[opcode]
    kinds = (*operation.operands, *operation.results)
    for operands, results in ANSWERS[opcode]:
        assert len(operands) + len(results) == len(kinds)
        memory, lines, names = np.zeros(16, np.uint64), "", []
        for i, (kind, word) in enumerate(zip(operation.operands, operands, strict=True)):
            memory[i] = bits(word, kind)
            name = register(1 if kind == "pred" else max(2, WIDTHS[kind]), i)
            loaded = register(2, i) if kind == "pred" else name
            lines += f"\tld.global.b{16 if kind == 'pred' else 8 * WIDTHS[kind]} {loaded}, [%dr30+{8 * i}];\n"
            lines += f"\tsetp.ne.b16 {name}, {loaded}, 0;\n" if kind == "pred" else ""
            names.append(name)
        outs = [register(1 if k == "pred" else max(2, WIDTHS[k]), 20 + j) for j, k in enumerate(operation.results)]
        lines += f"\t{opcode} {'|'.join(outs)}, {', '.join(names)};\n"
        for j, (out, kind) in enumerate(zip(outs, operation.results, strict=True)):
            if kind == "pred":
                lines += f"\tselp.b16 %hr{20 + j}, 1, 0, {out};\n"
            width = 2 if kind == "pred" else max(2, WIDTHS[kind])
            lines += f"\tst.global.b{8 * width} [%dr30+{8 * (8 + j)}], {register(width, 20 + j)};\n"
        run(lines, memory)
        widths = [2 if k == "pred" else max(2, WIDTHS[k]) for k in operation.results]
        found = [int(memory[8 + j]) % (1 << 8 * w) for j, w in enumerate(widths)]
        expected = [bits(w, k) for w, k in zip(results, operation.results, strict=True)]
        assert found == expected, f"{opcode} {operands}: {[hex(f) for f in found]} is not {results}"


def test_a_register_of_one_line_has_its_own_type():
    memory = np.array([0x1122334455667788, 0], np.uint64)
    lines = "\tld.global.b64 %dr1, [%dr30];\n\t{ .reg .b32 tmp; mov.b64 {tmp, %wr1}, %dr1; }\n"
    lines += "\t{ .reg .b16 tmp; mov.b32 {%hr1, tmp}, %wr1; }\n\tst.global.b16 [%dr30+8], %hr1;\n"
    run(lines, memory)
    assert memory[1] == 0x3344


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("frob.b32 %wr1, %wr2;", "unknown"),
        ("add.cc.s32 %wr1, %wr30, 1;", "unknown"),
        ("add.rz.f32 %wr1, %wr2, %wr3;", "unknown"),
        ("add.ftz.f32 %wr1, %wr2, %wr3;", "unknown"),
        ("add.s32 %wr1, %wr2;", "operands"),
        ("add.s32 %wr1, %wr2, %wr3, %wr4;", "operands"),
        ("add.s32 %dr1, %wr2, %wr3;", "is .b64"),
        ("add.s64 %dr1, %wr2, %dr3;", "is .b32"),
        ("add.s32 %wr1, %wr2, 0f3F800000;", "is no .s32"),
        ("add.rn.f32 %wr1, %wr2, 1;", "is no .f32"),
        ("add.rn.f64 %dr1, %dr2, 0f3F800000;", "is no .f64"),
        ("add.s32 %wr1, %wr2, 4294967296;", "does not fit"),
        ("add.s32 %wr1, %wr99, 1;", "was not declared"),
        ("setp.eq.s32 %wr1, %wr2, %wr3;", "is no .pred"),
        ("and.b32 %wr1, %wr2, %pr1;", "is no .b32"),
        ("bra $nowhere;", "no label"),
        ("mov.b64 %dr1, {%wr1, %wr2, %wr3};", "not the parts"),
        ("ld.global.v2.b32 %wr1, [%dr30];", "operands"),
        ("ld.global.b64 %wr1, [%dr30];", "is no .b64"),
        ("ld.const.b32 %wr1, [%dr30];", "unknown"),
        ("st.param.b64 [%dr30], %dr1;", "nothing is written to parameters"),
        ("ld.param.b64 %dr1, [other];", "no parameter"),
        ("ld.param.b64 %dr1, [k_param_0+4];", "8 bytes"),
        ("call (%wr1), f, (%wr2);", "line 12"),
        ("shfl.sync.idx.b32 %wr1, %wr2, 0, 31;", "operands"),
    ],
)
def test_what_is_not_understood_is_refused(line, error):
    with pytest.raises(PtxError, match=error):
        program(next(iter(kernels(kernel(f"\t{line}\n")).values())))
