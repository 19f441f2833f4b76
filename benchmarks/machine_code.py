# SPDX-License-Identifier: Apache-2.0
"""What the GPU kernels cost by their machine code, as a page: `python -m benchmarks.machine_code --out FILE.md`.

It needs nvcc, cuobjdump and Triton, and no GPU. disassembly.py says how the hot path of a kernel is found.
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
from pathlib import Path

from benchmarks import disassembly, results, static_cost

ROOT = Path(__file__).resolve().parent.parent
ARCH = "sm_90"
# An H100 (SXM) has 132 multiprocessors, each with four schedulers of 32 lanes; 1.755 GHz is its boost clock.
ISSUE = 132 * 128 * 1.755e9
COPY = {"H100": 3.0e12, "H200": 4.3e12}  # measured device-to-device copies, bytes read and written a second
ITEM = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
WRITTEN = {"values": None, "bits": 1 / 8, "cells": 1}  # bytes a weight; None: as much as is read
HEADER = ["", "registers", "spills", "instructions", "integer", "16-byte loads", "stores", "ceiling", "of a copy on"]
TEXT = """\
Instructions a weight on the hot path at {arch}, and those of them on the integer pipe, which issues at half the rate.
The ceiling is what {rate:.1f} T instructions/s (132 multiprocessors, 1.755 GHz) would then move, reading and writing
weights; beside it its share of a device-to-device copy, 3.0 TB/s on an H100 and 4.3 on an H200: from 1 on, memory is
the limit. fp64 has a pipe of its own, which is not counted. Kernels here are of one format; the module's serve four.
**Nothing here was timed: no kernel has run on a device yet.**
"""
OF_VECTORS = """\
Reading and writing 4 bytes an element, 8 where it is of fp64. Noise gathers four entries of its table besides, which
are in the first-level cache; six draws of a thousand leave something open, which another kernel decides, a lane for 32
elements.
"""
CLIPPED = """\
Instructions an element, and how many of a thread's loads are under way before the first is added. A multiprocessor has
32 warps of these kernels, and all of them have rows, however few those are (docs/mechanisms/clipped_noise.md).
"""


def line(name: str, cost: disassembly.Cost, dtype: str, output: str) -> list[str]:
    """A kernel of weights."""
    moved = ITEM[dtype] + (WRITTEN[output] or ITEM[dtype])
    weights = ISSUE / max(cost.instructions_per_element, 2 * cost.integer_instructions)
    shares = " / ".join(f"{min(9.99, weights * moved / copy):.2f}" for copy in COPY.values())
    counts = [f"{cost.instructions_per_element:.1f}", f"{cost.integer_instructions:.1f}"]
    vectors = [str(cost.vector_loads), str(cost.vector_stores)]
    ceiling = results.pretty(weights * moved, "B/s")
    return [name, str(cost.registers), str(cost.spills), *counts, *vectors, ceiling, shares]


def cuda_lines(folder: Path) -> list[list[str]]:
    cubin = static_cost.compile_kernels(ARCH, folder, dtypes=static_cost.DTYPES)
    lines = []
    for cipher in static_cost.CIPHERS:
        for output in static_cost.RESULTS:
            for dtype in static_cost.DTYPES:
                cost = static_cost.kernel_cost(cubin, cipher, output, dtype)
                lines.append(line(f"two-point, {output} {dtype}, {cipher}", cost, dtype, output))
    cubin = static_cost.compile_cells(ARCH, folder)
    for cipher in static_cost.CIPHERS:
        for output in static_cost.CELL_OUTPUTS:
            for dtype in static_cost.DTYPES:
                for mechanism in static_cost.CELLS:
                    cost = static_cost.cells_cost(cubin, mechanism, cipher, output, dtype)
                    lines.append(line(f"{mechanism}, {output} {dtype}, {cipher}", cost, dtype, output))
    return lines


def cuda_resources(folder: Path) -> list[list[str]]:
    """Registers and spills of the module's other kernels, as ptxas prints them."""
    calls = [f"ordinal_cldp_kernel<{c}><<<1, 1>>>(cldp);" for c in static_cost.CIPHERS.values()]
    calls += [f"clipped_{k}_kernel<<<1, 1>>>(clipped);" for k in ("squares", "norms")]
    calls = [re.sub(r"(<\w+>)_kernel", r"_kernel\1", call) for call in calls]
    headers = [f'#include "{ROOT / "csrc" / "cuda" / name}"\n' for name in ("clipped_noise.cuh", "ordinal_cldp.cuh")]
    source = folder / "others.cu"
    uses = "namespace ldpk { void use(const CldpPlan& cldp, const ClippedPlan& clipped) {" + "".join(calls) + "} }\n"
    source.write_text("".join(headers) + uses)
    command = [
        disassembly.find_tool("nvcc") or "nvcc",
        *static_cost.NVCC_FLAGS,
        f"-arch={ARCH}",
        "-Xptxas=-v",
        "-cubin",
    ]
    done = subprocess.run([*command, "-o", str(folder / "others.cubin"), str(source)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    pattern = r"entry function '_ZN4ldpk\d+(\w+?)_kernel(\w*)'.*?(\d+) bytes spill stores.*?Used (\d+) registers"
    found = re.findall(pattern, done.stdout + done.stderr, re.DOTALL)
    return [[_readable(name, rest), registers, spills] for name, rest, spills, registers in sorted(found)]


def module_lines(folder: Path) -> list[list[str]]:
    """The two-point kernels as the module has them, each for all formats: their registers are those of the dearest."""
    cubin = static_cost.compile_kernels(ARCH, folder, dtypes=["all"])
    lines = []
    for cipher in static_cost.CIPHERS:
        for output in static_cost.RESULTS:
            cost = static_cost.kernel_cost(cubin, cipher, output, "all")
            lines.append([f"two-point of all formats, {output}, {cipher}", str(cost.registers), str(cost.stack_bytes)])
    return lines


def clipped_lines(folder: Path) -> list[list[str]]:
    """Sums of clipped rows: two passes read an element once each, of which this is the second."""
    lines = []
    for discrete, noise in ((False, "normal"), (True, "discrete")):
        cubin = static_cost.compile_clipped_sums(ARCH, folder, discrete)
        for dtype in static_cost.DTYPES:
            cost = static_cost.clipped_sums_cost(cubin, discrete, dtype)
            counts = [f"{cost.instructions_per_element:.1f}", f"{cost.integer_instructions:.1f}"]
            name = f"{dtype}, {noise} noise"
            lines.append([name, str(cost.registers), str(cost.spills), *counts, str(cost.loads_at_once)])
    return lines


def _readable(name: str, rest: str) -> str:
    words = {"Philox": "philox", "ChaCha20": "chacha20", "Lb0": "normal noise", "Lb1": "discrete noise"}
    return ", ".join([name.replace("_", " "), *(text for mark, text in words.items() if mark in rest)])


def triton_lines(folder: Path) -> list[list[str]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    lines = []
    for kernels, name in (("two_point", "two-point"), ("cells", "")):
        out = folder / f"{kernels}.json"
        command = [sys.executable, "-m", "benchmarks.triton_code", kernels, str(out)]
        subprocess.run(command, env=environment, cwd=ROOT, check=True)
        for choice, found in json.loads(out.read_text()).items():
            dtype, output, rest = choice.split("-")
            known = {k: v for k, v in found.items() if k in disassembly.Cost.__dataclass_fields__}
            cost = disassembly.Cost(**known)
            full = f"{name}, {output} {dtype}, {rest}" if name else f"{rest}, {output} {dtype}, philox"
            lines.append(line(full, cost, dtype, output))
    return lines


VECTORS = {
    "quantise-none-0": ("integers of fp32", 8),
    "quantise-philox-0": ("integers of fp32, rounded by Philox", 8),
    "noise-philox-16": ("noise of deviation 2^22, Philox", 8),
    "noise-chacha20-0": ("noise modulo 2^bits, ChaCha20", 8),
    "moved-philox": ("PrivUnitG's report of fp32, Philox", 8),
    "moved-chacha20": ("PrivUnitG's report of fp64, ChaCha20", 16),
    "rotate-first": ("rotation, 12 levels of 2^12 numbers", 8),
    "rotate-later": ("rotation, 7 levels of 32 columns", 8),
}


def vector_lines(folder: Path) -> list[list[str]]:
    """Kernels of whole vectors, by the bytes that each moves for an element."""
    out = folder / "vectors.json"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.triton_code", "vectors", str(out)]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    kernels = json.loads(out.read_text())
    lines = []
    for key, (name, moved) in VECTORS.items():
        known = {k: v for k, v in kernels[key].items() if k in disassembly.Cost.__dataclass_fields__}
        cost = disassembly.Cost(**known)
        rate = ISSUE / max(cost.instructions_per_element, 2 * cost.integer_instructions) * moved
        shares = " / ".join(f"{min(9.99, rate / copy):.2f}" for copy in COPY.values())
        counts = [f"{cost.instructions_per_element:.1f}", f"{cost.integer_instructions:.1f}"]
        vectors = [str(cost.vector_loads), str(cost.vector_stores)]
        lines.append(
            [name, str(cost.registers), str(cost.spills), *counts, *vectors, results.pretty(rate, "B/s"), shares]
        )
    return lines


def page() -> str:
    import triton

    release = re.search(r"V([\d.]+)", disassembly.run_tool("nvcc", "--version"))
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "compilers": f"nvcc {release[1] if release else '?'}, Triton {triton.__version__}",
        "command": "python -m benchmarks.machine_code",
    }
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        cuda, others, by_triton = cuda_lines(where), cuda_resources(where), triton_lines(where)
        others += module_lines(where)
        clipped, vectors = clipped_lines(where), vector_lines(where)
    header = [*HEADER[:-1], f"{HEADER[-1]} {', '.join(COPY)}"]
    parts = ["# The GPU kernels by their machine code", results.facts_table(facts)]
    parts += [TEXT.format(arch=ARCH, rate=ISSUE / 1e12).rstrip(), "## CUDA C++", results.table(header, cuda)]
    parts += ["## Triton", results.table(header, by_triton), "## Triton, whole vectors", OF_VECTORS.rstrip()]
    parts += [results.table(header, vectors), "## CUDA C++, where work depends on draws or on shapes"]
    parts += [results.table(["", "registers", "bytes spilled"], others), "## CUDA C++, sums of clipped rows"]
    titles = ["", "registers", "spills", "instructions", "integer", "16-byte loads at once"]
    return "\n\n".join([*parts, CLIPPED.rstrip(), results.table(titles, clipped)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, help="write the page here, too")
    options = parser.parse_args()
    text = page()
    print(text, end="")
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
