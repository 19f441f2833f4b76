# SPDX-License-Identifier: Apache-2.0
"""The kernels compiled for a GPU that need not be there, and what their machine code costs, as JSON.

    python -m tests.triton.machine_code {two_point,cells,clipped_noise,ordinal_cldp} FILE

A process of its own, because compiling needs a Triton that does not interpret.
"""

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.static_cost import analyse_cubin
from ldpkernels.triton import static

ARCH = 90


def two_point():
    for choice in (
        ("float32", "values", "philox"),
        ("bfloat16", "values", "philox"),
        ("float64", "values", "philox"),
        ("float32", "bits", "philox"),
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
        yield (dtype or "integers", cipher, width), kernel, "ordinal_cldp_kernel", 1


def main(mechanism, path):
    found = {}
    for choice, kernel, name, elements in globals()[mechanism]():
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder) / "kernel.cubin"
            cubin.write_bytes(kernel.asm["cubin"])
            cost = analyse_cubin(cubin, name, elements, inner_trips=10)
        found["-".join(map(str, choice))] = vars(cost) | {"spills": cost.spills, "ptx": kernel.asm["ptx"]}
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
