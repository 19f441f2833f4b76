# SPDX-License-Identifier: Apache-2.0
"""The kernels compiled for a GPU that need not be there. TRITON_INTERPRET must be off when triton is imported."""

from __future__ import annotations

from typing import Any, Literal

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ldpkernels._dtypes import DTYPES
from ldpkernels.triton.cells import CELLS, cells_kernel
from ldpkernels.triton.launch import BLOCKS, OPTIONS
from ldpkernels.triton.two_point import BITS, THRESHOLDS, VALUES, two_point_kernel

OUTPUTS = {"values": VALUES, "bits": BITS, "thresholds": THRESHOLDS}


def compile_for(
    arch: int = 90,
    dtype: str = "float32",
    output: Literal["values", "bits", "thresholds"] = "values",
    cipher: Literal["philox", "chacha20"] = "philox",
    aligned: bool = True,
) -> Any:
    """The two-point kernel as Triton's CompiledKernel: `asm["cubin"]`, `asm["ptx"]`, `metadata.shared`."""
    constants = {
        "DTYPE": DTYPES[dtype].code,
        "OUTPUT": int(OUTPUTS[output]),
        "CHACHA": cipher == "chacha20",
        "ALIGNED": aligned,
        "BLOCKS": BLOCKS,
    }
    signature = {"table": "*i64", "key": "*i64", "rows": "i32", "tiles": "i32"} | dict.fromkeys(constants, "constexpr")
    return _compile(two_point_kernel, signature, constants, arch)


def compile_cells_for(
    arch: int = 90,
    dtype: str = "float32",
    output: Literal["values", "cells"] = "values",
    mechanism: Literal["piecewise", "hybrid"] = "piecewise",
    cipher: Literal["philox", "chacha20"] = "philox",
) -> Any:
    """The kernel that reports cells, likewise."""
    constants = {
        "DTYPE": DTYPES[dtype].code,
        "OUTPUT": int(VALUES if output == "values" else CELLS),
        "HYBRID": mechanism == "hybrid",
        "CHACHA": cipher == "chacha20",
        "BLOCKS": BLOCKS,
    }
    signature = {"table": "*i64", "key": "*i64", "rows": "i32", "tiles": "i32"} | dict.fromkeys(constants, "constexpr")
    return _compile(cells_kernel, signature, constants, arch)


def _compile(kernel: Any, signature: Any, constants: Any, arch: int) -> Any:
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=OPTIONS)


def elements_per_thread(cipher: str) -> int:
    """How many elements of a tile are one thread's."""
    return (32 if cipher == "chacha20" else 8) * BLOCKS // 32
