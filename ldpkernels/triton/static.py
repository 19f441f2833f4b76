# SPDX-License-Identifier: Apache-2.0
"""The kernels compiled for a GPU that need not be there. TRITON_INTERPRET must be off when triton is imported."""

from __future__ import annotations

from typing import Any, Literal

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ldpkernels.dtypes import DTYPES
from ldpkernels.triton.cells import CELLS, cells_kernel
from ldpkernels.triton.clipped_noise import sums_kernel
from ldpkernels.triton.launch import BLOCKS, OPTIONS
from ldpkernels.triton.launch_clipped import BLOCKS as CLIPPED_BLOCKS
from ldpkernels.triton.launch_clipped import OPTIONS as CLIPPED_OPTIONS
from ldpkernels.triton.launch_clipped import SAMPLERS
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


def compile_clipped_for(
    arch: int = 90,
    dtype: Literal["float32", "float64"] = "float32",
    noise: Literal["gaussian", "discrete"] = "gaussian",
    cipher: Literal["philox", "chacha20"] = "philox",
) -> Any:
    """The kernel of clipped sums, likewise."""
    wide, pointer = (tl.float32, "*fp32") if dtype == "float32" else (tl.float64, "*fp64")
    grid = noise == "discrete"
    constants: dict[str, Any] = {"WIDE": wide, "GRID": grid, "NOISY": True, "CHACHA": cipher == "chacha20"}
    constants["BLOCKS"] = SAMPLERS // (8 if cipher == "chacha20" else 2) if grid else CLIPPED_BLOCKS
    signature = {"x": pointer, "scales": "*fp64", "stride": "i32", "out": pointer, "key": "*i64", "numbers": "*fp64"}
    signature |= {"rows": "i32", "columns": "i32", "first": "i64"} | dict.fromkeys(constants, "constexpr")
    return _compile(sums_kernel, signature, constants, arch, CLIPPED_OPTIONS)


def _compile(kernel: Any, signature: Any, constants: Any, arch: int, options: Any = OPTIONS) -> Any:
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def elements_per_thread(cipher: str) -> int:
    """How many elements of a tile are one thread's."""
    return (32 if cipher == "chacha20" else 8) * BLOCKS // 32
