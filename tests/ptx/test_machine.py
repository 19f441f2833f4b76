# SPDX-License-Identifier: Apache-2.0
"""What threads do with memory and with each other, and that what a device would not define is an error."""

import numpy as np
import pytest

from tests.ptx.test_opcodes import run
from tests.ptx.text import PtxError

LANE = "\tmov.u32 %wr30, %tid.x;\n\tmul.wide.u32 %dr1, %wr30, 4;\n\tadd.s64 %dr2, %dr30, %dr1;\n"
OUT = "\tst.global.b32 [%dr2], %wr10;\n"
SHARED = "\t.shared .align 16 .b8 s[512];\n\tmov.u32 %wr1, s;\n\tshl.b32 %wr2, %wr30, 2;\n\tadd.s32 %wr3, %wr1, %wr2;\n"


def threads(lines, n=32, **more):
    """What n threads leave in an array of their own number."""
    memory = np.arange(n, dtype=np.uint32)
    run(LANE + lines, memory, threads=n, **more)
    return memory


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shfl.sync.idx.b32 %wr10, %wr30, 7, 31, -1;", [7] * 32),
        ("shfl.sync.idx.b32 %wr10, %wr30, 1, 0x181f, -1;", [i // 8 * 8 + 1 for i in range(32)]),
        ("shfl.sync.bfly.b32 %wr10, %wr30, 5, 31, -1;", [i ^ 5 for i in range(32)]),
        ("shfl.sync.up.b32 %wr10, %wr30, 2, 0, -1;", [max(i - 2, i if i < 2 else 0) for i in range(32)]),
        ("shfl.sync.down.b32 %wr10, %wr30, 2, 31, -1;", [i + 2 if i < 30 else i for i in range(32)]),
        ("redux.sync.add.s32 %wr10, %wr30, -1;", [496] * 32),
        ("redux.sync.max.s32 %wr10, %wr30, -1;", [31] * 32),
        ("redux.sync.min.u32 %wr10, %wr30, -1;", [0] * 32),
        ("mov.u32 %wr10, %laneid;", range(32)),
        ("mov.u32 %wr10, %ntid.x;", [32] * 32),
        ("mov.b64 %dr9, {%wr30, 5}; mov.b64 {_, %wr10}, %dr9;", [5] * 32),
        ("mov.b64 %dr9, {5, %wr30}; mov.b64 {_, %wr10}, %dr9;", range(32)),
        ("mov.b32 {%hr1, %hr2}, 0x50007; mov.b32 %wr10, {%hr2, %hr1};", [0x70005] * 32),
        ("mov.b32 %wr10, 9; setp.gt.s32 %pr1, %wr30, 15; @%pr1 mov.b32 %wr10, 3;", [9] * 16 + [3] * 16),
        ("mov.b32 %wr10, 9; setp.gt.s32 %pr1, %wr30, 15; @!%pr1 bra $a; mov.b32 %wr10, 3; $a:", [9] * 16 + [3] * 16),
        ("ld.global.b32 %wr10, [%dr30+8];", [2] * 32),
        ("ld.global.v2.b32 {%wr9, %wr10}, [%dr30];", [1] * 32),
        ("ld.global.s8 %wr10, [%dr30]; sub.s32 %wr10, %wr10, 1;", [2**32 - 1] * 32),
        ("atom.global.gpu.acq_rel.add.u32 %wr10, [%dr30+124], 3;", [31 + 3 * i for i in range(32)]),
        ("atom.global.gpu.relaxed.add.u32 %wr10, [%dr30+124], 2;", [31 + 2 * i for i in range(32)]),
    ],
)
def test_threads(line, expected):
    lines = "".join(
        f"\t{part.strip()}{'' if part.strip().endswith(':') else ';'}\n" for part in line.split(";") if part.strip()
    )
    assert threads(lines + OUT).tolist() == list(expected)


def test_sums_in_memory_take_every_thread():
    memory = threads("\tred.global.gpu.relaxed.add.u32 [%dr30], %wr30;\n")
    assert memory[0] == 496


def test_shared_memory_of_a_warp():
    back = "\txor.b32 %wr4, %wr2, 4;\n\tadd.s32 %wr5, %wr1, %wr4;\n\tld.shared.b32 %wr10, [%wr5];\n" + OUT
    for barrier in ("bar.warp.sync -1", "bar.sync 0"):
        found = threads(SHARED + f"\tst.shared.b32 [%wr3], %wr30;\n\t{barrier};\n" + back)
        assert found.tolist() == [i ^ 1 for i in range(32)]
    with pytest.raises(PtxError, match=r"a race: this shared byte was written by thread 1 .*") as error:
        threads(SHARED + "\tst.shared.b32 [%wr3], %wr30;\n" + back)
    assert "k, line" in str(error.value)
    assert "block 0, thread 0" in str(error.value)


def test_a_write_after_anothers_read_is_a_race():
    read = "\tst.shared.b32 [%wr3], %wr30;\n\tbar.sync 0;\n\tld.shared.b32 %wr10, [%wr1+4];\n"
    threads(SHARED + read + "\tbar.sync 0;\n\tst.shared.b32 [%wr3], %wr10;\n" + OUT)
    with pytest.raises(PtxError, match="was read by several threads"):
        threads(SHARED + read + "\tst.shared.b32 [%wr3], %wr10;\n" + OUT)


def test_a_warps_barrier_orders_what_all_of_it_have_read():
    """But not what another warp has."""
    read = "\tst.shared.b32 [%wr3], %wr30;\n\tbar.sync 0;\n\tand.b32 %wr4, %wr30, OF;\n\tshl.b32 %wr4, %wr4, 2;\n"
    read += (
        "\tadd.s32 %wr5, %wr1, %wr4;\n\tld.shared.b32 %wr10, [%wr5];\n\tbar.warp.sync -1;\n\tst.shared.b32 [%wr5], 7;\n"
    )
    lines = SHARED + read + OUT
    assert threads(lines.replace("OF", "0x60"), n=64).tolist() == [0] * 32 + [32] * 32
    with pytest.raises(PtxError, match="was read by several threads"):
        threads(lines.replace("OF", "0x40"), n=64)


def test_sums_in_shared_memory_race_with_nothing_but_reads():
    zero = SHARED + "\tst.shared.b32 [%wr1], 0;\n\tbar.sync 0;\n"
    add = "\tatom.relaxed.sys.shared.add.u32 %wr10, [%wr1], 1;\n"
    assert threads(zero + add + OUT).tolist() == list(range(32))
    with pytest.raises(PtxError, match="a race"):
        threads(zero + add + "\tld.shared.b32 %wr10, [%wr1];\n" + OUT)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices(trans):
    """Rows of eight numbers of 16 bits: a thread has two neighbours of a row, or of a column."""
    store = SHARED + "\tshl.b32 %wr4, %wr30, 16;\n\tor.b32 %wr4, %wr4, %wr30;\n\tmul.lo.s32 %wr5, %wr30, 16;\n"
    store += "\tadd.s32 %wr5, %wr5, %wr1;\n"
    store += (
        f"\tstmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%wr5], {{%wr4, %wr4, %wr4, %wr4}};\n\tbar.warp.sync -1;\n"
    )
    plain = threads(store + "\tld.shared.b32 %wr10, [%wr3];\n" + OUT)
    for thread in range(32):  # word `thread` of the first two matrices
        row, pair = divmod(thread % 32, 4)
        if trans:
            low, high = (2 * pair) * 4 + row // 2, (2 * pair + 1) * 4 + row // 2
        else:
            low = high = row * 4 + pair
        assert plain[thread] == low | high << 16
    whole = f"\tldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%wr6, %wr7, %wr8, %wr10}}, [%wr5];\n"
    assert threads(store + whole + OUT).tolist() == [i | i << 16 for i in range(32)]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("ld.global.b32 %wr10, [%dr2+4];", r"thread 31: 4 bytes at 0x\w+ are in no memory"),
        ("st.global.b32 [%dr2+-4], %wr30;", r"thread 0: 4 bytes at 0x\w+ are in no memory"),
        ("ld.global.b64 %dr9, [%dr30+4];", r"thread 0: 0x\w+ is no multiple of 8"),
        ("ld.shared.b32 %wr10, [%wr3];", "thread 0: shared memory is read before it was written"),
        ("st.shared.b32 [%wr3+500], %wr30;", "thread 3: 4 bytes at 512 of 512 that are shared"),
        ("st.shared.b32 [%wr3+2], %wr30;", "thread 0: 2 is no multiple of 4"),
        ("st.shared.b32 [%wr1], %wr30;", "different values"),
        ("shfl.sync.idx.b32 %wr10, %wr30, 7, 31, 1;", "parts of a warp"),
        ("bar.sync 1;", "only the barrier 0"),
        ("$l: bra $l;", "no end"),
    ],
)
def test_what_a_device_would_not_define(line, error, monkeypatch):
    monkeypatch.setattr("tests.ptx.machine.STEPS", 100)
    with pytest.raises(PtxError, match=error):
        threads(SHARED + f"\t{line}\n")


def test_threads_that_do_not_come_are_waited_for_in_vain():
    part = "\tsetp.gt.s32 %pr1, %wr30, 15;\n\t@%pr1 bra $end;\n"
    for line in ("shfl.sync.bfly.b32 %wr10, %wr30, 1, 31, -1", "bar.sync 0", "bar.warp.sync -1"):
        with pytest.raises(PtxError, match="a deadlock"):
            threads(part + f"\t{line};\n$end:\n")
    late = "\tmov.b32 %wr10, 0;\n$a:\n\tadd.s32 %wr10, %wr10, 1;\n\tsetp.lt.s32 %pr1, %wr10, %wr30;\n"
    late += "\t@%pr1 bra $a;\n\tbar.sync 0;\n"
    assert threads(late + OUT).tolist() == [max(1, i) for i in range(32)]
