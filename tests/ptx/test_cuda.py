# SPDX-License-Identifier: Apache-2.0
"""CUDA C++'s module, whose kernels this machine executes: known questions, and that wrong kernels are refused."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ldpkernels import _native  # noqa: E402
from ldpkernels.inputs.spans import integer_span  # noqa: E402
from ldpkernels.launch.proved import ask, subjects  # noqa: E402
from ldpkernels.laws.ordinal_cldp_thresholds import integer_laws  # noqa: E402
from tests.conftest import KEY  # noqa: E402
from tests.ptx.cuda import taking_tensors_of_the_host  # noqa: E402
from tests.ptx.text import PtxError, kernel_named, kernels  # noqa: E402

CHOSEN = (  # `make ptx` asks everything (coverage.py), of the whole module
    "two_point values float32 philox",
    "two_point values bfloat16 chacha20",
    "hybrid cells float16 philox",
    "ordinal_cldp values int64 philox",
    "clipped_noise gaussian float32 philox",
    "clipped_noise discrete of numbers float64 chacha20",
    "next_key keys int64 chacha20",
)


def subject_named(text):
    """The one whose words these are."""
    return next(subject for subject in subjects() if str(subject) == text)


@pytest.fixture
def asked(few_cuda):
    """What comes of a question, asked of CUDA C++."""

    def answer(text):
        with taking_tensors_of_the_host(few_cuda):
            return ask("cuda", subject_named(text), torch.device("cpu")).error

    return answer


@pytest.mark.parametrize("subject", CHOSEN)
def test_known_questions(asked, subject):
    assert asked(subject) is None


def test_long_chunks_of_ordinal_cldp(few_cuda):
    """As where multiprocessors are few: threads go on to more elements; half of the integers are at an end, where
    samples are rejected."""
    v = np.random.default_rng(1).integers(-40, 41, 9001).clip(-9, 9)
    laws, found, expected = integer_laws(0.3, 9, "exponential"), np.zeros_like(v), np.zeros_like(v)
    spans = integer_span(v.ctypes.data, expected.ctypes.data, v.size)
    _native.launch("ordinal_cldp", "values", spans, laws, KEY.uint32(), "", 1)
    spans["out"] = found.ctypes.data
    few_cuda.on_multiprocessors(1)
    try:
        few_cuda.launch("ordinal_cldp", "values", spans, laws, KEY.uint32())
    finally:
        few_cuda.on_multiprocessors(132)
    assert np.array_equal(found, expected)


WRONG = [  # a kernel of the question, an instruction of it, and what stands there instead
    ("two_point values float32 philox", "chunk_kernel", "setp.lt.s32", "setp.le.s32"),
    ("clipped_noise gaussian float32 philox", "clipped_sums_kernel", "setp.lt.s32", "setp.le.s32"),
    ("next_key keys int64 chacha20", "next_key_kernel", "shf.l.wrap.b32", "shf.r.wrap.b32"),
]


@pytest.mark.parametrize(("subject", "kernel", "opcode", "instead"), WRONG)
def test_a_kernel_that_was_made_wrong_is_caught(few_cuda, asked, monkeypatch, subject, kernel, opcode, instead):
    """All instructions of one kind, in the kernels that a question runs."""
    whole = few_cuda.ptx
    monkeypatch.setattr(few_cuda, "programs", {})
    start = [whole.index(line) for line in whole.splitlines() if ".entry" in line and kernel in line]
    for begin in reversed(start):
        end = whole.index("\n}", begin)
        body = whole[begin:end].replace(opcode, instead)
        whole = whole[:begin] + body + whole[end:]
    monkeypatch.setattr(few_cuda, "ptx", whole)
    assert asked(subject) is not None


def test_what_a_launch_may_not_touch_is_refused(few_cuda):
    """One weight more than the memory has that was named."""
    x = np.zeros(32, np.float32)
    spans = np.array([(x.ctypes.data, 0, x.size, 0, 0)], _native.SPAN)
    laws = np.zeros(1, _native.LAWS["two_point"])
    words = KEY.uint32()
    regions = [(x.ctypes.data, x.ctypes.data + 4 * 31), (words.ctypes.data, words.ctypes.data + 8)]
    arguments = "two_point", "values", spans, laws, words.ctypes.data, words.size, 0, 0
    with pytest.raises(PtxError, match="are in no memory of this launch"):
        few_cuda.call(few_cuda.module.launch, regions, *arguments)


SOURCE = """.version 9.0
.target sm_90
.address_size 64
.func add(
	.param .b64 add_param_0
)
{
	.reg .pred %p<2>;
	.reg .b32 %r<3>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [add_param_0];
	cvta.to.local.u64 %rd2, %rd1;
	ld.local.u32 %r1, [%rd2];
	setp.eq.s32 %p1, %r1, 7;
	@%p1 bra $L__1;
	add.s32 %r1, %r1, 1;
$L__1:
	st.local.u32 [%rd2], %r1;
	ret;
}
.visible .entry k(
	.param .align 8 .b8 k_param_0[16]
)
.maxntid 64, 1, 1
{
	.local .align 8 .b8 depot[16];
	.reg .pred %p<3>;
	.reg .b32 %r<5>;
	.reg .b64 %SP;
	.reg .b64 %rd<9>;
	mov.u64 %SP, depot;
	cvta.local.u64 %rd1, %SP;
	mov.b64 %rd2, k_param_0;
	ld.param.u32 %r2, [%rd2+8];
	st.local.u32 [%SP+8], %r2;
	add.u64 %rd3, %rd1, 8;
CALL CALL	ld.u32 %r3, [%rd3];
	ld.param.u64 %rd4, [k_param_0];
	cvta.to.global.u64 %rd5, %rd4;
	mov.u32 %r4, %tid.x;
	mul.wide.u32 %rd6, %r4, 4;
	add.s64 %rd7, %rd5, %rd6;
	st.global.u32 [%rd7], %r3;
	ret;
}
"""
CALL = """{ // callseq 0, 0
	.reg .b32 temp_param_reg;
	.param .b64 param0;
	st.param.b64 	[param0+0], %rd3;
	call.uni
	add,
	(
	param0
	);
	}
"""


@pytest.mark.parametrize(
    "call", [CALL, CALL.replace("\t.reg .b32 temp_param_reg;\n", "").replace("param0+0", "param0")]
)
def test_functions_and_a_threads_own_memory(call):
    """Called twice: 4 and 1 and 1, but 7 stays. For sm_100 a call is written in fewer words."""
    from tests.ptx.machine import launch
    from tests.ptx.translate import program

    kernel = kernel_named(SOURCE.replace("CALL", call), "k")
    assert (kernel.most_threads, kernel.local_bytes) == (64, 16)
    kernel.threads = 32
    made, memory = program(kernel), np.zeros(32, np.uint32)
    for number, expected in ((4, 6), (6, 7), (7, 7)):
        params = memory.ctypes.data.to_bytes(8, "little") + number.to_bytes(8, "little")
        launch(made, (1, 1, 1), params, [(memory.ctypes.data, memory.ctypes.data + memory.nbytes)])
        assert memory.tolist() == [expected] * 32
    with pytest.raises(PtxError, match="directive is unknown"):
        kernels(SOURCE.replace("CALL", CALL))
