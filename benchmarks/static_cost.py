# SPDX-License-Identifier: Apache-2.0
"""The CUDA C++ kernels compiled for a GPU that need not be there, and what each costs (disassembly.py says how)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.disassembly import Cost, analyse_cubin, run_tool

SOURCES = Path(__file__).resolve().parent.parent / "csrc" / "cuda"
CIPHERS = {"philox": "Philox", "chacha20": "ChaCha20"}
OUTPUTS = {"values": 0, "bits": 1, "cells": 3}  # csrc's Output
DTYPES = ("f32", "f64", "bf16", "f16")
ITEM_BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}
SHAPES = {"OneBit": ("skeleton.cuh", "kFewSpans"), "Cells": ("cells.cuh", "kFewCells")}
NVCC_FLAGS = ("-std=c++20", "-O3", "-fmad=false")


@dataclass(frozen=True)
class Kernel:
    """A kernel of a header: the instance of its template, if it is one, and what its name in a cubin matches.

    `elements` are those that a thread finishes on one pass through the hot path, in which loops take `trips` turns;
    without them its resources alone are looked at.
    """

    header: str
    instance: str
    name: str
    elements: int = 0
    trips: int = 1


def two_point(cipher: str, output: str, dtype: str) -> Kernel:
    """The kernel of two values of one dtype; "all" is the one that serves every dtype."""
    dtypes = DTYPES if dtype == "all" else [dtype]
    return _of_weights("OneBit", "TwoPoint", cipher, output, dtypes, 64 // ITEM_BYTES.get(dtype, 8))


def cells(mechanism: str, cipher: str, output: str, dtype: str) -> Kernel:
    """The kernel of piecewise or hybrid: on the hot path a thread decides a step's groups of eight."""
    return _of_weights("Cells", mechanism.capitalize(), cipher, output, [dtype], 8 if dtype == "f64" else 16)


def clipped_sums(discrete: bool, dtype: str) -> Kernel:
    """The kernel that sums clipped rows: on the hot path a thread adds eight rows of its columns."""
    instance = f"clipped_sums_kernel<{str(discrete).lower()}, Dtype::{dtype}>(const __grid_constant__ ClippedPlan)"
    name = rf"clipped_sums_kernelILb{int(discrete)}EJLNS_5DtypeE{DTYPES.index(dtype)}EEE"
    return Kernel("clipped_noise.cuh", instance, name, 8 * 16 // ITEM_BYTES[dtype])


def clipped(kind: str) -> Kernel:
    """The kernel of rows' norms or squares."""
    return Kernel("clipped_noise.cuh", "", f"clipped_{kind}_kernel")


def ordinal_cldp(cipher: str) -> Kernel:
    """The kernel of ordinal CLDP, whose work depends on draws."""
    instance = f"ordinal_cldp_kernel<{CIPHERS[cipher]}>(const __grid_constant__ CldpPlan)"
    return Kernel("ordinal_cldp.cuh", instance, f"ordinal_cldp_kernel.*{CIPHERS[cipher]}")


def _of_weights(shape: str, mechanism: str, cipher: str, output: str, dtypes: Sequence[str], elements: int) -> Kernel:
    """A kernel that changes each weight on its own."""
    (header, spans), plan = SHAPES[shape], f"{shape}<{mechanism}>"
    served = ", ".join(f"Dtype::{dtype}" for dtype in dtypes)
    instance = f"chunk_kernel<{plan}, {CIPHERS[cipher]}, Output::{output}, {spans}, {served}>"
    codes = "".join(rf"L(?:NS_5DtypeE|S\d+_){DTYPES.index(dtype)}E" for dtype in dtypes)
    of_shape = rf"NS_\d+{shape}INS_\d+{mechanism}EEENS_\d+{CIPHERS[cipher]}E"
    name = rf"chunk_kernelI{of_shape}LNS_6OutputE{OUTPUTS[output]}ELi\d+EJ{codes}EE"
    work = (32, 10) if cipher == "chacha20" else (elements, 1)  # ten double rounds
    return Kernel(header, f"{instance}(const __grid_constant__ PlanOf<{plan}, {spans}>)", name, *work)


def costs(arch: str, folder: Path, kernels: Mapping[str, Kernel]) -> dict[str, Cost]:
    """What kernels cost for an architecture, by their names; each header is compiled once."""
    found = {}
    for header in dict.fromkeys(kernel.header for kernel in kernels.values()):
        chosen = {name: kernel for name, kernel in kernels.items() if kernel.header == header}
        source, cubin = (folder / f"{Path(header).stem}_{arch}{suffix}" for suffix in (".cu", ".cubin"))
        instances = "".join(f"template __global__ void {k.instance};\n" for k in chosen.values() if k.instance)
        source.write_text(f'#include "{SOURCES / header}"\nnamespace ldpk {{\n{instances}}}\n')
        run_tool("nvcc", *NVCC_FLAGS, f"-arch={arch}", "-cubin", "-o", str(cubin), str(source))
        found |= {name: analyse_cubin(cubin, k.name, k.elements, k.trips) for name, k in chosen.items()}
    return {name: found[name] for name in kernels}
