# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's assembler makes of the CUDA C++ kernels: registers, spills and accesses. `make ptx` runs these, and
`make cost` counts two-point's instructions with each format and cipher."""

import pytest

from benchmarks import disassembly, static_cost
from tests.ptx.cuda import ARCH

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(disassembly.lacks_nvcc(), reason="nvcc or cuobjdump was not found"),
]
SM = f"sm_{ARCH}"


def not_known_to_be_global(cost):
    return [op for op in cost.opcodes if op.startswith(("LD.", "ST."))]


@pytest.mark.parametrize("cipher", ["philox", "chacha20"])
def test_two_point(cipher, tmp_path):
    """What is shipped serves every dtype: three blocks a multiprocessor with Philox, two with ChaCha20."""
    dtypes = ("f32", "bf16", "all") if cipher == "philox" else ("all",)
    cubin = static_cost.compile_kernels(SM, tmp_path, [cipher], dtypes)
    for result in static_cost.RESULTS:
        for dtype in dtypes:
            cost = static_cost.kernel_cost(cubin, cipher, result, dtype)
            assert cost.spills == cost.stack_bytes == 0, cost
            assert cost.registers <= (80 if cipher == "philox" else 128), cost
            if dtype == "all":
                continue
            assert not not_known_to_be_global(cost)
            wide = cost.elements_per_iteration * static_cost.ITEM_BYTES[dtype] / 16
            assert (cost.vector_loads, cost.vector_stores) == (wide, wide if result == "values" else 0), cost
            assert cost.instructions_per_element <= 36, cost


def test_cells(tmp_path):
    """Instructions a weight with Philox: 32 and 40 for 16 and 32 bits at sm_90."""
    cubin = static_cost.compile_cells(SM, tmp_path, ["philox"], ("f32", "bf16"))
    for mechanism, bound in (("piecewise", 34), ("hybrid", 42)):
        for output in static_cost.CELL_OUTPUTS:
            for dtype in ("f32", "bf16"):
                cost = static_cost.cells_cost(cubin, mechanism, "philox", output, dtype)
                assert cost.spills == cost.stack_bytes == cost.inner_loops == 0, cost
                assert cost.registers <= 80, cost  # three blocks a multiprocessor
                assert not not_known_to_be_global(cost)
                wide = 16 * static_cost.ITEM_BYTES[dtype] / 16
                assert (cost.vector_loads, cost.vector_stores) == (wide, wide if output == "values" else 0), cost
                assert cost.instructions_per_element <= bound, cost


def test_ordinal_cldp(tmp_path):
    """Half of what a multiprocessor has threads for, and a third."""
    cubin = static_cost.compile_cldp(SM, tmp_path)
    for name, most in (("Philox", 64), ("ChaCha20", 96)):
        cost = disassembly.analyse_cubin(cubin, f"ordinal_cldp.*{name}")
        assert cost.spills == cost.stack_bytes == 0, cost
        assert cost.registers <= most, cost


@pytest.mark.parametrize("discrete", [False, True])
def test_clipped_sums(discrete, tmp_path):
    """Four blocks a multiprocessor; eight rows are under way before the first is added, and nothing is fused."""
    cubin = static_cost.compile_clipped_sums(SM, tmp_path, discrete=discrete, dtypes=("f32", "bf16"))
    for kind in ("f32", "bf16"):
        cost = static_cost.clipped_sums_cost(cubin, discrete, kind)
        assert (cost.vector_loads, cost.spills) == (8, 0), cost
        assert cost.registers <= 64, cost
        assert not [op for op in cost.opcodes if op.startswith(("FFMA", "DFMA"))], cost
        if not discrete:
            assert cost.loads_at_once == 8, cost
            assert cost.instructions_per_element <= 7, cost
