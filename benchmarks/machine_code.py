# SPDX-License-Identifier: Apache-2.0
"""The tables of what the GPU kernels cost by their machine code: `python -m benchmarks.machine_code PAGE.md`.

It fills the marked tables of a page such as benchmarks/results/2026-11-22-machine-code-sm90.md, whose words are its
own. It needs nvcc, cuobjdump and Triton, and no GPU. disassembly.py says how the hot path of a kernel is found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from itertools import product
from pathlib import Path

from benchmarks import disassembly, results, static_cost
from benchmarks.cost import count
from benchmarks.disassembly import Cost

ROOT = Path(__file__).resolve().parent.parent
ARCH = "sm_90"
# An H100 (SXM) has 132 multiprocessors, each with four schedulers of 32 lanes; 1.755 GHz is its boost clock.
ISSUE = 132 * 128 * 1.755e9
COPY = {"H100": 3.0e12, "H200": 4.3e12}  # measured device-to-device copies, bytes read and written a second
ITEM = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
WRITTEN = {"bits": 1 / 8, "cells": 1}  # bytes a weight; values are as wide as weights
HEADER = ["", "registers", "spills", "instructions", "integer", "16-byte loads", "stores", "ceiling"]
VECTORS = {  # of Triton's kernels of whole vectors: words, and bytes that an element moves
    "quantise_kernel vectors integers float32 none": ("integers of fp32", 8),
    "quantise_kernel vectors integers float32 philox": ("integers of fp32, rounded by Philox", 8),
    "noise_kernel vectors noise 16 float32 philox": ("noise of deviation 2^22, Philox", 8),
    "noise_kernel vectors noise 0 uint32 chacha20": ("noise modulo 2^bits, ChaCha20", 8),
    "moved_kernel normals moved float32 philox": ("PrivUnitG's report of fp32, Philox", 8),
    "moved_kernel normals moved float64 chacha20": ("PrivUnitG's report of fp64, ChaCha20", 16),
    "rotate_kernel vectors rotation float32 philox": ("rotation, 12 levels of 2^12 numbers", 8),
    "rotate_kernel later vectors rotation float32 philox": ("rotation, 7 levels of 32 columns", 8),
}


def counts(cost: Cost) -> list[str]:
    """Resources, and instructions an element."""
    each = [f"{cost.instructions_per_element:.1f}", f"{cost.integer_instructions:.1f}"]
    return [str(cost.registers), str(cost.spills), *each]


def line(name: str, cost: Cost, moved: float) -> list[str]:
    """A kernel that moves so many bytes an element, with the ceiling that its instructions set."""
    rate = ISSUE / max(cost.instructions_per_element, 2 * cost.integer_instructions) * moved
    shares = " / ".join(f"{min(9.99, rate / copy):.2f}" for copy in COPY.values())
    accesses = [str(cost.vector_loads), str(cost.vector_stores)]
    return [name, *counts(cost), *accesses, results.pretty(rate, "B/s"), shares]


def moved(dtype: str, output: str) -> float:
    """The bytes of a weight that are read and written."""
    return ITEM[dtype] + WRITTEN.get(output, ITEM[dtype])


def cuda_lines(folder: Path) -> list[list[str]]:
    """The kernels of weights, of one format each."""
    of, kernels = static_cost, {}
    for cipher, output, dtype in product(of.CIPHERS, ("values", "bits"), of.DTYPES):
        kernels[f"two-point, {output} {dtype}, {cipher}"] = of.two_point(cipher, output, dtype)
    for cipher, output, dtype, m in product(of.CIPHERS, ("values", "cells"), of.DTYPES, ("piecewise", "hybrid")):
        kernels[f"{m}, {output} {dtype}, {cipher}"] = of.cells(m, cipher, output, dtype)
    costs = of.costs(ARCH, folder, kernels)
    return [line(name, cost, moved(*name.split(", ")[1].split()[::-1])) for name, cost in costs.items()]


def resource_lines(folder: Path) -> list[list[str]]:
    """Registers and stacks of kernels whose work depends on draws or shapes, and of those that serve all formats."""
    of = static_cost
    kernels = {f"clipped {kind}": of.clipped(kind) for kind in ("norms", "squares")}
    kernels |= {f"ordinal cldp, {cipher}": of.ordinal_cldp(cipher) for cipher in of.CIPHERS}
    for cipher, output in product(of.CIPHERS, ("values", "bits")):
        kernels[f"two-point of all formats, {output}, {cipher}"] = of.two_point(cipher, output, "all")
    costs = of.costs(ARCH, folder, kernels)
    return [[name, str(cost.registers), str(cost.stack_bytes)] for name, cost in costs.items()]


def clipped_lines(folder: Path) -> list[list[str]]:
    """Sums of clipped rows: two passes read an element once each, of which this is the second."""
    choices = product(((False, "normal"), (True, "discrete")), static_cost.DTYPES)
    kernels = {f"{dtype}, {noise} noise": static_cost.clipped_sums(of, dtype) for (of, noise), dtype in choices}
    costs = static_cost.costs(ARCH, folder, kernels)
    return [[name, *counts(cost), str(cost.loads_at_once)] for name, cost in costs.items()]


def triton_costs(folder: Path) -> dict[str, dict[str, Cost]]:
    """Triton's kernels, by a process in which Triton does not interpret."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    out = folder / "triton.json"
    subprocess.run([sys.executable, "-m", "benchmarks.triton_code", str(out)], env=environment, cwd=ROOT, check=True)
    fields = Cost.__dataclass_fields__
    found = json.loads(out.read_text())
    return {
        group: {name: Cost(**{k: v for k, v in one.items() if k in fields}) for name, one in kernels.items()}
        for group, kernels in found.items()
    }


def executed_lines() -> list[list[str]]:
    """Instructions that Triton's compiled kernels execute an element, counted without a device."""
    return [[name, f"{one['instructions']:.1f}"] for name, one in count.executed()["kernels"].items()]


def tables() -> dict[str, str]:
    """Every table of the page, by its mark."""
    import triton

    release = re.search(r"V([\d.]+)", disassembly.run_tool("nvcc", "--version"))
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "compilers": f"nvcc {release[1] if release else '?'}, Triton {triton.__version__}",
        "command": "python -m benchmarks.machine_code",
    }
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        costs = triton_costs(where)
        cuda, resources, clipped = cuda_lines(where), resource_lines(where), clipped_lines(where)
    of_weights = []
    for choice, cost in (costs["two_point"] | costs["cells"]).items():
        _, kernel, output, dtype, cipher = choice.split()
        name = f"{kernel.replace('_', '-')}, {output} {dtype}, {cipher}"
        of_weights.append(line(name, cost, moved(dtype, output)))
    vectors = [line(name, costs["vectors"][key], nbytes) for key, (name, nbytes) in VECTORS.items()]
    header = [*HEADER, f"of a copy on {', '.join(COPY)}"]
    loads = ["", "registers", "spills", "instructions", "integer", "16-byte loads at once"]
    return {
        "where-and-when": results.facts_table(facts),
        "cuda": results.table(header, cuda),
        "triton": results.table(header, of_weights),
        "vectors": results.table(header, vectors),
        "resources": results.table(["", "registers", "bytes of stack"], resources),
        "clipped": results.table(loads, clipped),
        "executed": results.table(["", "instructions executed"], executed_lines()),
    }


def main() -> None:
    """Fill a page's tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    parser.add_argument("page", type=Path, help="the page whose tables are made anew")
    page: Path = parser.parse_args().page
    page.write_text(results.filled(page.read_text(), tables()))


if __name__ == "__main__":
    main()
