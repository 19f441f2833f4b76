# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels compiled for a GPU that need not be there, and what their machine code costs, as JSON.

    python -m benchmarks.triton_code FILE

A process of its own, because compiling needs a Triton that does not interpret. Each group yields kernels by their
choices, and the elements of a thread's tile; none where work depends on draws or where only resources are looked at,
as reading machine code takes longer than all else.
"""

import json
import sys
import tempfile
from pathlib import Path

import triton.language as tl

from benchmarks import triton_static as static
from benchmarks.disassembly import analyse_cubin
from ldpkernels.triton import clipped_noise as rows
from ldpkernels.triton import (
    lattice,
    next_key,
    norms,
    order,
    privunitg,
    quantiles,
    rotation,
    single_numbers,
    summary,
    tally,
    votes,
)

ARCH = 90


def two_point():
    for choice in (
        ("float32", "values", "philox"),
        ("bfloat16", "values", "philox"),
        ("float64", "values", "philox"),
        ("float32", "bits", "philox"),
        ("bfloat16", "bits", "philox"),
        ("float32", "values", "chacha20"),
    ):
        yield choice, static.compile_for(ARCH, *choice), "two_point_kernel", static.elements_per_thread(choice[-1])


def cells():
    dtypes = ["float32", "bfloat16", "float16", "float64"]
    chosen = [(d, "values", m) for d in dtypes for m in ("piecewise", "hybrid")]
    for choice in (*chosen, ("float32", "cells", "hybrid")):
        kernel = static.compile_cells_for(ARCH, *choice)
        yield choice, kernel, "piecewise_kernel", static.elements_per_thread("philox")


def clipped_noise():
    chosen = [(d, n, "philox") for d in ("float32", "float64") for n in ("gaussian", "discrete")]
    for choice in (*chosen, ("float32", "discrete", "chacha20")):
        yield choice, static.compile_clipped_for(ARCH, *choice), "sums_kernel", 1


def ordinal_cldp():
    for dtype, cipher, width in (
        ("float32", "philox", "narrow"),
        (None, "philox", "wide"),
        ("float16", "chacha20", "wide"),
    ):
        kernel = static.compile_cldp_for(ARCH, dtype, cipher, width == "wide")
        yield (dtype or "integers", cipher, width), kernel, "ordinal_cldp_kernel", 0


def vectors():
    """Norms, integers, noise and rotations; a thread's elements of a tile, and none where work depends on draws."""
    numbers = {"unit": "i64", "modulus": "i64", "rows": "i32", "tiles": "i32"}
    tables = {"table": "*i64", "key": "*i64", "high": "*i32"}
    for cipher, shift in (("philox", 16), ("chacha20", 0)):
        chacha = cipher == "chacha20"
        blocks = lattice.BLOCKS[64][chacha]
        law = {"WIDE": False, "MODULAR": shift == 0, "SHIFT": shift, "CHACHA": chacha, "BLOCKS": blocks}
        types = tables | {"guide": "*i32", "pending": "*i32"} | numbers
        kernel = compiled(lattice.noise_kernel, types, law | {"ALIGNED": True})
        yield ("noise", cipher, shift), kernel, "noise_kernel", 8
        types = tables | {"low": "*i64", "guide": "*i32", "pending": "*i32"} | numbers
        kernel = compiled(lattice.rest_kernel, types, law | {"LANES": lattice.LANES})
        yield ("rest", cipher, shift), kernel, "rest_kernel", 0
    for code, key, cipher in ((0, "constexpr", "none"), (0, "*i64", "philox"), (2, "*i64", "chacha20")):
        chacha = cipher == "chacha20"
        types = {"table": "*i64", "key": key, "squares": "*i64", "scale": "i64", "stream": "i32"}
        constants = {"DTYPE": code, "ALIGNED": True, "RANDOM": cipher != "none", "CHACHA": chacha}
        types, constants = types | {"rows": "i32", "tiles": "i32"}, constants | {"BLOCKS": lattice.BLOCKS[32][chacha]}
        kernel = compiled(lattice.quantise_kernel, types, constants)
        yield ("quantise", cipher, code), kernel, "quantise_kernel", 16 if chacha else 4
    for code in range(4):
        types = {"table": "*i64", "parts": "*fp64", "rows": "i32"}
        kernel = compiled(norms.squares_kernel, types, {"DTYPE": code}, order)
        yield ("squares", code), kernel, "squares_kernel", 0
    types = {"counts": "*i64", "parts": "*fp64", "out": "*fp64", "spans": "i32"}
    yield ("total",), compiled(norms.total_kernel, types, {"ROOT": True}), "total_kernel", 0
    for code, cipher in ((0, "philox"), (1, "chacha20")):
        chacha = cipher == "chacha20"
        types = {"table": "*i64", "key": "*i64", "parts": "*fp64", "stream": "i32", "rows": "i32"}
        constants = {"DTYPE": code, "CHACHA": chacha}
        kernel = compiled(privunitg.product_kernel, types, constants, order)
        yield ("product", cipher), kernel, "product_kernel", 0
        types = {"table": "*i64", "key": "*i64", "along": "i64", "factor": "i64", "stream": "i32"}
        constants = {"DTYPE": code, "WIDE": code == 1, "ALIGNED": True, "CHACHA": chacha}
        constants["BLOCKS"] = lattice.BLOCKS[64][chacha]
        kernel = compiled(privunitg.moved_kernel, types | {"rows": "i32", "tiles": "i32"}, constants)
        yield ("moved", cipher), kernel, "moved_kernel", 8
    types = {"x": "*fp32", "signs": "*i32", "low": "i32", "factor": "fp32"}
    for name, levels, columns in (("first", rotation.FIRST, 1), ("later", rotation.LATER, rotation.STRIP.value)):
        constants = {
            "LEVELS": levels,
            "COLUMNS": columns,
            "BEFORE": columns == 1,
            "AFTER": columns > 1,
            "LAST": columns > 1,
        }
        kernel = static.compiled(rotation.rotate_kernel, types, constants, ARCH, rotation.OPTIONS, ("x", "signs"))
        yield ("rotate", name), kernel, "rotate_kernel", (columns << levels) // 128


def others():
    """What ranges, sums of reports and votes need."""
    weights = {"table": "*i64", "state": "*i64", "counts": "*i64", "shift": "i32", "rows": "i32", "tiles": "i32"}
    for code in range(4):
        types = {"table": "*i64", "parts": "*i64", "rows": "i32"}
        yield ("summary", code), compiled(summary.summary_kernel, types, {"DTYPE": code}), "summary_kernel", 0
        constants = {"DTYPE": code, "ALIGNED": True, "RANKS": 4, "WIDE": code == 1}
        yield ("count", code), compiled(quantiles.count_kernel, weights, constants, quantiles), "count_kernel", 0
    types = {"table": "*i64", "parts": "*i64", "totals": "*i64"}
    yield (), compiled(summary.totals_kernel, types, {}), "totals_kernel", 0
    types = {"state": "*i64", "counts": "*i64", "after": "*i64", "ranks": "i32"}
    yield (), compiled(quantiles.choose_kernel, types, {"RANKS": 4}, quantiles), "choose_kernel", 0
    words = {"count": "i32", "begin": "i32", "size": "i32"}
    for word in (tl.int32, tl.uint8):
        constants = {"WORD": word, "BLOCK": tally.BLOCK}
        types = {"table": "*i64", "planes": "i32"} | words
        yield ("bits", word), compiled(tally.add_bits_kernel, types, constants, tally), "add_bits_kernel", 0
        types = {"table": "*i64", "sums": "*i32"} | words
        yield ("bytes", word), compiled(tally.add_bytes_kernel, types, constants, tally), "add_bytes_kernel", 0
    types = {"votes": "*u8", "labels": "*u8", "keep": "*i1", "parties": "i32", "columns": "i64", "classes": "i32"}
    yield (), compiled(votes.majority_kernel, types, {"BLOCK": votes.BLOCK}, votes), "majority_kernel", 0
    numbers = {"columns": "i32", "size": "i32"}
    for pointer, wide, grid in (("*fp32", tl.float32, False), ("*fp64", tl.float64, True)):
        types = {"x": pointer, "scales": "*fp64", "stride": "i32", "out": "*fp64", "inverse_unit": "i64", "rows": "i32"}
        constants = {"WIDE": wide, "GRID": grid, "LANES": rows.LANES}
        yield ("blocks", grid), compiled(rows.blocks_kernel, types | numbers, constants, order), "blocks_kernel", 0
        types = {"x": pointer, "norms": "*fp64", "sums": "*fp64", "bound": "i64", "inverse_unit": "i64", "rows": "i32"}
        options, vectors = single_numbers.NUMBER_OPTIONS, ("x", "norms")
        constants = {"WIDE": wide, "GRID": grid}
        kernel = static.compiled(single_numbers.numbers_kernel, types, constants, ARCH, options, vectors)
        yield ("numbers", grid), kernel, "numbers_kernel", 64
        kernel = static.compile_clipped_for(ARCH, "float64" if grid else "float32", split=True)
        yield ("split", grid), kernel, "sums_kernel", 1
    types = {"parts": "*fp64", "out": "*fp64", "blocks": "i32"} | numbers
    yield (), compiled(rows.groups_kernel, types, {"LANES": rows.LANES}, order), "groups_kernel", 0
    yield (), compiled(next_key.next_key_kernel, {"state": "*i64", "out": "*i32"}, {}), "next_key_kernel", 0


def compiled(kernel, types, constants, module=static):
    return static.compiled(kernel, types, constants, ARCH, module.OPTIONS)


def main(path):
    found = {}
    for group in (two_point, cells, clipped_noise, ordinal_cldp, vectors, others):
        kernels = found[group.__name__] = {}
        for choice, kernel, name, elements in group():
            with tempfile.TemporaryDirectory() as folder:
                cubin = Path(folder) / "kernel.cubin"
                cubin.write_bytes(kernel.asm["cubin"])
                cost = analyse_cubin(cubin, name, elements, inner_trips=10)
            kernels["-".join(map(str, choice or (name,)))] = vars(cost) | {"ptx": kernel.asm["ptx"]}
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
