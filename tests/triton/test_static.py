# SPDX-License-Identifier: Apache-2.0
# What the kernels cost on a GPU that need not be there: they are compiled for sm_90 and their machine code is read.
# Compiling needs a triton that does not interpret, hence the processes.
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from static_cost import analyse_cubin
from ldpkernels.triton import static
dtype, output, cipher = sys.argv[2:]
kernel = static.compile_for(90, dtype, output, cipher)
with tempfile.TemporaryDirectory() as folder:
    cubin = Path(folder) / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    cost = analyse_cubin(cubin, "two_point_kernel", static.elements_per_thread(cipher), inner_trips=10)
print(json.dumps({**vars(cost), "spills": cost.spills, "ptx": kernel.asm["ptx"]}))
"""


def cost_of(dtype, output, cipher):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", SCRIPT, str(ROOT / "benchmarks"), dtype, output, cipher]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# Instructions an element are bounds with room for another release's compiler; a warp a program, so 64 registers are
# 32 warps a multiprocessor, half of what it holds. ChaCha20 alone is 30 instructions an element.
@pytest.mark.parametrize(
    ("dtype", "output", "cipher", "instructions", "registers"),
    [
        ("float32", "values", "philox", 25, 64),
        ("bfloat16", "values", "philox", 25, 64),
        ("float64", "values", "philox", 32, 80),
        ("float32", "bits", "philox", 31, 64),
        ("float32", "values", "chacha20", 52, 168),
    ],
)
def test_cost(dtype, output, cipher, instructions, registers):
    cost = cost_of(dtype, output, cipher)
    assert cost["spills"] == 0
    assert cost["stack_bytes"] == 0
    assert cost["registers"] <= registers
    assert cost["instructions_per_element"] <= instructions
    size = {"float32": 4, "bfloat16": 2, "float64": 8}[dtype]
    vectors = (32 if cipher == "chacha20" else 8) * size // 16
    assert cost["vector_loads"] == vectors
    assert cost["vector_stores"] == (vectors if output == "values" else 0)
    # Nothing that rounds differently: no flushed subnormals, no contraction, no approximation.
    assert not [line for line in cost["ptx"].splitlines() if ".ftz" in line or "fma." in line or ".approx" in line]


CELLS_SCRIPT = """
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from static_cost import analyse_cubin
from ldpkernels.triton import static
found = []
for dtype, output, mechanism in json.loads(sys.argv[2]):
    kernel = static.compile_cells_for(90, dtype, output, mechanism)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        cost = analyse_cubin(cubin, "piecewise_kernel", static.elements_per_thread("philox"), inner_trips=10)
    found.append({"registers": cost.registers, "spills": cost.spills, "ptx": kernel.asm["ptx"]})
print(json.dumps(found))
"""


def test_kernels_of_cells_compile_and_round_nothing_otherwise():
    """Compiling finds what the interpreter forgives: types above all."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    dtypes = ["float32", "bfloat16", "float16", "float64"]
    chosen = [(d, "values", m) for d in dtypes for m in ("piecewise", "hybrid")] + [("float32", "cells", "hybrid")]
    command = [sys.executable, "-c", CELLS_SCRIPT, str(ROOT / "benchmarks"), json.dumps(chosen)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    for cost in json.loads(done.stdout.splitlines()[-1]):
        assert cost["spills"] == 0
        assert cost["registers"] <= 96
        assert not [line for line in cost["ptx"].splitlines() if ".ftz" in line or "fma." in line or ".approx" in line]


CLIPPED_SCRIPT = """
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from static_cost import analyse_cubin
from ldpkernels.triton import static
found = []
for choice in json.loads(sys.argv[2]):
    kernel = static.compile_clipped_for(90, *choice)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        cost = analyse_cubin(cubin, "sums_kernel", 1)
    found.append({"registers": cost.registers, "spills": cost.spills, "ptx": kernel.asm["ptx"]})
print(json.dumps(found))
"""


def test_clipped_sums_compile_and_fuse_nothing():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    chosen = [(d, n, "philox") for d in ("float32", "float64") for n in ("gaussian", "discrete")]
    chosen.append(("float32", "discrete", "chacha20"))
    command = [sys.executable, "-c", CLIPPED_SCRIPT, str(ROOT / "benchmarks"), json.dumps(chosen)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    for cost in json.loads(done.stdout.splitlines()[-1]):
        assert cost["spills"] == 0
        assert cost["registers"] <= 64
        assert not [line for line in cost["ptx"].splitlines() if ".ftz" in line or "fma." in line or ".approx" in line]


OTHERS_SCRIPT = """
import triton.language as tl
from ldpkernels.triton import static, quantiles, summary, tally, votes
words = {"count": "i32", "begin": "i32", "size": "i32"}
kernels = [(summary.totals_kernel, {"table": "*i64", "parts": "*i64", "totals": "*i64"}, {}, static.OPTIONS)]
for code in range(4):
    types = {"table": "*i64", "parts": "*i64", "rows": "i32"}
    kernels.append((summary.summary_kernel, types, {"DTYPE": code}, static.OPTIONS))
    types = {"table": "*i64", "state": "*i64", "counts": "*i64", "shift": "i32", "rows": "i32", "tiles": "i32"}
    constants = {"DTYPE": code, "ALIGNED": True, "RANKS": 4, "WIDE": code == 1}
    kernels.append((quantiles.count_kernel, types, constants, quantiles.OPTIONS))
types = {"state": "*i64", "counts": "*i64", "after": "*i64", "ranks": "i32"}
kernels.append((quantiles.choose_kernel, types, {"RANKS": 4}, quantiles.OPTIONS))
for word in (tl.int32, tl.uint8):
    constants = {"WORD": word, "BLOCK": tally.BLOCK}
    kernels.append((tally.add_bits_kernel, {"table": "*i64", "planes": "i32"} | words, constants, tally.OPTIONS))
    for sums in ("*i32", "*i64"):
        kernels.append((tally.add_bytes_kernel, {"table": "*i64", "sums": sums} | words, constants, tally.OPTIONS))
types = {"table": "*i64", "planes": "i32", "byte": "i64", "out": "*fp32", "size": "i32", "offset": "i64", "step": "i64"}
kernels.append((tally.decode_bits_kernel, types, {"BLOCK": tally.BLOCK}, tally.OPTIONS))
types = {"votes": "*u8", "labels": "*u8", "keep": "*i1", "parties": "i32", "columns": "i64", "classes": "i32"}
kernels.append((votes.majority_kernel, types, {"BLOCK": votes.BLOCK}, {}))
for kernel, types, constants, options in kernels:
    print(static.compiled(kernel, types, constants, 90, options).asm["ptx"])
"""


def test_what_ranges_tallies_and_votes_need_compiles_and_fuses_nothing():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", OTHERS_SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(".entry") == 18
    assert not [line for line in done.stdout.splitlines() if ".ftz" in line or "fma." in line or ".local" in line]
