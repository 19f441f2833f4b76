# SPDX-License-Identifier: Apache-2.0
"""The kernels compiled for a GPU that need not be there. TRITON_INTERPRET must be off when triton is imported."""

from __future__ import annotations

from typing import Any, Literal

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ldpkernels.dtypes import DTYPES
from ldpkernels.triton import clipped_noise, order, ordinal_cldp, piecewise, two_point
from ldpkernels.triton.launch import OPTIONS
from ldpkernels.triton.table import BLOCKS

Cipher = Literal["philox", "chacha20"]
TABLES = {"table": "*i64", "key": "*i64"}


def compile_for(
    arch: int = 90,
    dtype: str = "float32",
    output: Literal["values", "bits", "thresholds"] = "values",
    cipher: Cipher = "philox",
    aligned: bool = True,
) -> Any:
    """The two-point kernel as Triton's CompiledKernel: `asm["cubin"]`, `asm["ptx"]`, `metadata.shared`."""
    constants = {
        "DTYPE": DTYPES[dtype].code,
        "ALIGNED": aligned,
        "OUTPUT": two_point.OUTPUTS[output],
        "CHACHA": cipher == "chacha20",
        "BLOCKS": BLOCKS,
    }
    types = TABLES | out_type(None if output == "values" else "*u8" if output == "bits" else "*i64")
    return compiled(two_point.two_point_kernel, types | {"rows": "i32", "tiles": "i32"}, constants, arch)


def compile_cells_for(
    arch: int = 90,
    dtype: str = "float32",
    output: Literal["values", "cells"] = "values",
    mechanism: Literal["piecewise", "hybrid"] = "piecewise",
    cipher: Cipher = "philox",
    aligned: bool = True,
) -> Any:
    """The kernel of piecewise and hybrid, likewise."""
    constants = {
        "DTYPE": DTYPES[dtype].code,
        "ALIGNED": aligned,
        "OUTPUT": piecewise.OUTPUTS[output],
        "HYBRID": mechanism == "hybrid",
        "CHACHA": cipher == "chacha20",
        "BLOCKS": BLOCKS,
    }
    types = TABLES | out_type(None if output == "values" else "*u8")
    return compiled(piecewise.piecewise_kernel, types | {"rows": "i32", "tiles": "i32"}, constants, arch)


def compile_cldp_for(
    arch: int = 90, dtype: str | None = "float32", cipher: Cipher = "philox", wide: bool = False
) -> Any:
    """The kernel of ordinal CLDP, likewise; without a dtype, that of integers."""
    constants = {
        "DTYPE": DTYPES[dtype].code if dtype else int(ordinal_cldp.INTEGERS),
        "WIDE": wide,
        "CHACHA": cipher == "chacha20",
        "SIZE": ordinal_cldp.TILES[8 if cipher == "chacha20" else 2],
    }
    return compiled(ordinal_cldp.ordinal_cldp_kernel, TABLES | out_type(None if dtype else "*i64"), constants, arch)


def compile_clipped_for(
    arch: int = 90,
    dtype: Literal["float32", "float64"] = "float32",
    noise: Literal["gaussian", "discrete"] = "gaussian",
    cipher: Cipher = "philox",
    split: bool = False,
) -> Any:
    """The kernel of clipped sums, likewise; where `split`, of the sums of groups."""
    wide, pointer = (tl.float32, "*fp32") if dtype == "float32" else (tl.float64, "*fp64")
    grid, chacha = noise == "discrete", cipher == "chacha20"
    blocks = clipped_noise.SAMPLERS // (8 if chacha else 2) if grid else clipped_noise.BLOCKS
    constants = {"WIDE": wide, "GRID": grid, "NOISY": True, "CHACHA": chacha, "BLOCKS": blocks, "SPLIT": split}
    types = {"x": "*fp64" if split else pointer, "scales": "*fp64", "stride": "i32", "out": pointer, "key": "*i64"}
    types |= dict.fromkeys(("size", "divisor", "unit", "inverse_unit"), "i64")
    types |= {"rows": "i32", "columns": "i32", "first": "i64"}
    return compiled(clipped_noise.sums_kernel, types, constants, arch, order.OPTIONS)


def out_type(pointer: str | None) -> dict[str, str]:
    """A kernel's argument `out`, which is None where it writes in place."""
    return {"out": pointer or "constexpr"}


def compiled(
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    arch: int,
    options: dict[str, Any] = OPTIONS,
    aligned: tuple[str, ...] = (),
) -> Any:
    """A kernel with arguments of these types, for an architecture. `aligned`: those that are multiples of 16."""
    constants |= {name: None for name, kind in types.items() if kind == "constexpr"}
    signature = types | dict.fromkeys(constants, "constexpr")
    attributes = {(list(signature).index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def elements_per_thread(cipher: str) -> int:
    """How many elements of a tile are one thread's."""
    return (32 if cipher == "chacha20" else 8) * BLOCKS // 32
