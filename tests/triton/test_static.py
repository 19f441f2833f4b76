# SPDX-License-Identifier: Apache-2.0
# What the kernels cost on a GPU that need not be there: they are compiled for sm_90 and their machine code is read.
# Compiling also finds what the interpreter forgives: types above all.
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.once import made_once

pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.exhaustive  # every kernel is compiled, which takes two minutes: make ptx

ROOT = Path(__file__).resolve().parents[2]


def compile_all(path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.triton_code", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """By group: what benchmarks.triton_code finds, by kernel and question."""
    return json.loads(made_once(tmp_path_factory, "triton.json", compile_all).read_text())


def inexact(cost):
    """What rounds differently: flushed subnormals, contraction, approximation."""
    return [line for line in cost["ptx"].splitlines() if ".ftz" in line or "fma." in line or ".approx" in line]


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
def test_cost(costs, dtype, output, cipher, instructions, registers):
    cost = costs["two_point"][f"two_point_kernel two_point {output} {dtype} {cipher}"]
    assert cost["spills"] == 0
    assert cost["stack_bytes"] == 0
    assert cost["registers"] <= registers
    assert cost["instructions_per_element"] <= instructions
    size = {"float32": 4, "bfloat16": 2, "float64": 8}[dtype]
    vectors = (32 if cipher == "chacha20" else 8) * size // 16
    assert cost["vector_loads"] == vectors
    assert cost["vector_stores"] == (vectors if output == "values" else 0)
    assert not inexact(cost)


@pytest.mark.parametrize(("dtype", "vectors"), [("float32", 2), ("bfloat16", 1), ("float16", 1), ("float64", 4)])
@pytest.mark.parametrize(("mechanism", "instructions"), [("piecewise", 50), ("hybrid", 60)])
def test_cost_of_cells(costs, mechanism, dtype, instructions, vectors):
    """The law's words are read before the loop, and weights by vectors."""
    cost = costs["cells"][f"piecewise_kernel {mechanism} values {dtype} philox"]
    assert cost["instructions_per_element"] <= instructions + (8 if dtype == "float64" else 0)
    assert (cost["vector_loads"], cost["vector_stores"]) == (vectors, vectors)
    assert cost["stack_bytes"] == 0


def spills(name):
    """Triton 3.6's compiler spills around the calls of an fp64 division behind the loops of clipped sums."""
    return 10 if "sums_kernel" in name else 0


@pytest.mark.parametrize(("mechanism", "kernels", "registers"), [("cells", 9, 96), ("clipped_noise", 5, 128)])
def test_kernels_compile_without_spills_and_fuse_nothing(costs, mechanism, kernels, registers):
    found = costs[mechanism]
    assert len(found) >= kernels
    for name, cost in found.items():
        assert cost["spills"] <= spills(name)
        assert cost["registers"] <= (64 if name.startswith("sums_kernel") else registers)
        assert not inexact(cost)


def test_sums_of_many_columns_load_rows_before_they_add_the_first(costs):
    """One load and its row's scale at a time is a wait for memory for every row."""
    found = {name: cost for name, cost in costs["clipped_noise"].items() if name.startswith("sums_kernel")}
    assert len(found) == 5
    for name, cost in found.items():
        assert cost["loads_of_any_width"] >= (6 if "float64" in name else 10), name


def test_ordinal_cldp_compiles_without_inexact_arithmetic(costs):
    found = costs["ordinal_cldp"]
    assert len(found) == 3
    for choice, cost in found.items():
        assert not inexact(cost)
        assert ".local" not in cost["ptx"]
        assert "int64" in choice or "div.rn.f64" in cost["ptx"]


def test_whole_vectors_compile_without_spills_and_read_by_vectors(costs):
    found = costs["vectors"]
    assert len(found) >= 18
    for cost in found.values():
        assert not inexact(cost)
        assert cost["spills"] == 0
        assert cost["stack_bytes"] == 0
    for name, vectors, instructions in (
        ("noise_kernel vectors noise 16 float32 philox", 2, 110),
        ("moved_kernel normals moved float32 philox", 2, 120),
        ("quantise_kernel vectors integers float32 none", 1, 60),
        ("rotate_kernel vectors rotation float32 philox", 8, 45),
        ("rotate_kernel later vectors rotation float32 philox", 8, 35),
    ):
        assert (found[name]["vector_loads"], found[name]["vector_stores"]) == (vectors, vectors)
        assert found[name]["instructions_per_element"] <= instructions


def test_what_ranges_tallies_and_votes_need_compiles_and_fuses_nothing(costs):
    found = costs["others"]
    kernels = {name.split()[0] for name in found} - {"split"}
    assert kernels >= {"summary_kernel", "totals_kernel", "count_kernel", "choose_kernel", "add_bits_kernel"}
    assert kernels >= {"add_bytes_kernel", "majority_kernel", "numbers_kernel", "next_key_kernel"}
    for name, cost in found.items():
        assert not inexact(cost)
        assert cost["spills"] <= spills(name)
        assert cost["registers"] <= (168 if name.startswith("numbers") else 128)  # two warps a program
    narrow = found["numbers_kernel clipped_noise gaussian of numbers float32 philox"]
    assert narrow["loads_at_once"] >= 15  # of the 16 vectors of single numbers that a thread adds
