# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's assembler makes of the CUDA C++ kernels: registers, spills and accesses. `make ptx` runs these, and
`make cost` counts two-point's instructions with each format and cipher."""

from itertools import product

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
    kernels = {
        (out, dtype): static_cost.two_point(cipher, out, dtype) for out in ("values", "bits") for dtype in dtypes
    }
    for (output, dtype), cost in static_cost.costs(SM, tmp_path, kernels).items():
        assert cost.spills == cost.stack_bytes == 0, cost
        assert cost.registers <= (80 if cipher == "philox" else 128), cost
        if dtype != "all":
            assert not not_known_to_be_global(cost)
            wide = cost.elements_per_iteration * static_cost.ITEM_BYTES[dtype] / 16
            assert (cost.vector_loads, cost.vector_stores) == (wide, wide if output == "values" else 0), cost
            assert cost.instructions_per_element <= 36, cost


def test_cells(tmp_path):
    """Instructions a weight with Philox: 32 and 40 for 16 and 32 bits at sm_90."""
    choices = list(product(("piecewise", "hybrid"), ("values", "cells"), ("f32", "bf16")))
    kernels = {(m, output, dtype): static_cost.cells(m, "philox", output, dtype) for m, output, dtype in choices}
    for (mechanism, output, dtype), cost in static_cost.costs(SM, tmp_path, kernels).items():
        assert cost.spills == cost.stack_bytes == cost.inner_loops == 0, cost
        assert cost.registers <= 80, cost  # three blocks a multiprocessor
        assert not not_known_to_be_global(cost)
        wide = 16 * static_cost.ITEM_BYTES[dtype] / 16
        assert (cost.vector_loads, cost.vector_stores) == (wide, wide if output == "values" else 0), cost
        assert cost.instructions_per_element <= {"piecewise": 34, "hybrid": 42}[mechanism], cost


def test_ordinal_cldp(tmp_path):
    """Half of what a multiprocessor has threads for. A few registers are spilled for that: an H200 is 13 to 16% slower
    with five blocks that spill none."""
    kernels = {cipher: static_cost.ordinal_cldp(cipher) for cipher in static_cost.CIPHERS}
    for cipher, cost in static_cost.costs(SM, tmp_path, kernels).items():
        assert cost.registers <= 64, cost
        assert cost.stack_bytes <= (16 if cipher == "philox" else 48), cost


def test_clipped_sums(tmp_path):
    """Four blocks a multiprocessor; eight rows are under way before the first is added, and nothing is fused."""
    kernels = {(of, dtype): static_cost.clipped_sums(of, dtype) for of in (False, True) for dtype in ("f32", "bf16")}
    for (discrete, _), cost in static_cost.costs(SM, tmp_path, kernels).items():
        assert (cost.vector_loads, cost.spills) == (8, 0), cost
        assert cost.registers <= 64, cost
        assert not [op for op in cost.opcodes if op.startswith(("FFMA", "DFMA"))], cost
        if not discrete:
            assert cost.loads_at_once == 8, cost
            assert cost.instructions_per_element <= 7, cost
