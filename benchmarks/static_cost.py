# SPDX-License-Identifier: Apache-2.0
"""The CUDA C++ kernels compiled for a GPU that need not be there, and what each costs (disassembly.py says how)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.disassembly import Cost, analyse_cubin, run_tool

SOURCES = Path(__file__).resolve().parent.parent / "csrc" / "cuda"
CIPHERS = {"philox": "Philox", "chacha20": "ChaCha20"}
RESULTS = ("values", "bits")
DTYPES = ("f32", "f64", "bf16", "f16")
KERNELS = (*DTYPES, "all")
CELLS = {"piecewise": "Piecewise", "hybrid": "Hybrid"}
CELL_OUTPUTS = {"values": 0, "cells": 3}  # csrc's Output
ITEM_BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}
NVCC_FLAGS = ("-std=c++20", "-O3", "-fmad=false")


def compile_kernels(arch: str, folder: Path, ciphers: Iterable[str] = CIPHERS, dtypes: Iterable[str] = KERNELS) -> Path:
    """A cubin with a two-point kernel for each cipher, result and dtype; "all" is the one that serves every dtype."""
    kernels = [
        _of_weights("OneBit<TwoPoint>", "kFewSpans", c, r, DTYPES if d == "all" else [d])
        for c in ciphers for r in RESULTS for d in dtypes
    ]  # fmt: skip
    return _compiled(arch, folder / "kernels", "skeleton.cuh", kernels)


def kernel_cost(cubin: Path, cipher: str, result: str, dtype: str) -> Cost:
    """The cost of one of `compile_kernels`' kernels; dtype "all" gives that of the kernel which serves every dtype."""
    name = _name_of_weights("OneBit", "TwoPoint", cipher, RESULTS.index(result), DTYPES if dtype == "all" else [dtype])
    if cipher == "chacha20":
        return analyse_cubin(cubin, name, 32, inner_trips=10)  # double rounds
    return analyse_cubin(cubin, name, 64 // ITEM_BYTES.get(dtype, 8))


def compile_cells(arch: str, folder: Path, ciphers: Iterable[str] = CIPHERS, dtypes: Iterable[str] = DTYPES) -> Path:
    """A cubin with the kernels of piecewise and hybrid for each cipher, output and dtype."""
    kernels = [
        _of_weights(f"Cells<{m}>", "kFewCells", c, r, [d])
        for m in CELLS.values() for c in ciphers for r in CELL_OUTPUTS for d in dtypes
    ]  # fmt: skip
    return _compiled(arch, folder / "cells", "cells.cuh", kernels)


def cells_cost(cubin: Path, mechanism: str, cipher: str, output: str, dtype: str) -> Cost:
    """The cost of one of `compile_cells`' kernels: on the hot path a thread decides a step's groups of eight."""
    name = _name_of_weights("Cells", CELLS[mechanism], cipher, CELL_OUTPUTS[output], [dtype])
    if cipher == "chacha20":
        return analyse_cubin(cubin, name, 32, inner_trips=10)  # double rounds
    return analyse_cubin(cubin, name, 8 if dtype == "f64" else 16)


def _of_weights(shape: str, spans: str, cipher: str, result: str, dtypes: Iterable[str]) -> str:
    """A kernel that changes each weight on its own."""
    served = ", ".join(f"Dtype::{dtype}" for dtype in dtypes)
    kernel = f"chunk_kernel<{shape}, {CIPHERS[cipher]}, Output::{result}, {spans}, {served}>"
    return f"{kernel}(const __grid_constant__ PlanOf<{shape}, {spans}>)"


def _name_of_weights(shape: str, mechanism: str, cipher: str, output: int, dtypes: Iterable[str]) -> str:
    """Its name in a cubin, as a regular expression."""
    served = "".join(rf"L(?:NS_5DtypeE|S\d+_){DTYPES.index(dtype)}E" for dtype in dtypes)
    of_shape = rf"NS_\d+{shape}INS_\d+{mechanism}EEE"
    return rf"chunk_kernelI{of_shape}NS_\d+{CIPHERS[cipher]}ELNS_6OutputE{output}ELi\d+EJ{served}EE"


def compile_clipped_sums(arch: str, folder: Path, discrete: bool, dtypes: Iterable[str] = DTYPES) -> Path:
    """A cubin with the kernel that sums clipped rows, of normal or discrete noise, for each dtype alone."""
    grid = str(discrete).lower()
    kernels = [f"clipped_sums_kernel<{grid}, Dtype::{d}>(const __grid_constant__ ClippedPlan)" for d in dtypes]
    return _compiled(arch, folder / f"clipped_{grid}", "clipped_noise.cuh", kernels)


def clipped_sums_cost(cubin: Path, discrete: bool, dtype: str) -> Cost:
    """The cost of one of `compile_clipped_sums`' kernels: on the hot path a thread adds eight rows of its columns."""
    name = rf"clipped_sums_kernelILb{int(discrete)}EJLNS_5DtypeE{DTYPES.index(dtype)}EEE"
    return analyse_cubin(cubin, name, 8 * 16 // ITEM_BYTES[dtype])


def compile_cldp(arch: str, folder: Path) -> Path:
    """A cubin with the kernel of ordinal CLDP for each cipher, whose work depends on draws."""
    kernels = [f"ordinal_cldp_kernel<{name}>(const __grid_constant__ CldpPlan)" for name in CIPHERS.values()]
    return _compiled(arch, folder / "cldp", "ordinal_cldp.cuh", kernels)


def _compiled(arch: str, name: Path, header: str, kernels: list[str]) -> Path:
    """A cubin with these instances of a header's kernels."""
    source, cubin = name.with_suffix(".cu"), name.with_name(f"{name.name}_{arch}.cubin")
    instances = "".join(f"template __global__ void {kernel};\n" for kernel in kernels)
    source.write_text(f'#include "{SOURCES / header}"\nnamespace ldpk {{\n{instances}}}\n')
    run_tool("nvcc", *NVCC_FLAGS, f"-arch={arch}", "-cubin", "-o", str(cubin), str(source))
    return cubin
