# SPDX-License-Identifier: Apache-2.0
"""Instructions and cache misses of every kernel and call, counted by callgrind, held to a table: `make cost`.

    python -m benchmarks.cost [--update] [--table FILE]

Beside them the machine code of the CUDA kernels for sm_90, instructions an element on the hot path, where nvcc is found
(benchmarks/static_cost.py), and what Triton's compiled kernels execute an element (tests/ptx/counts.py). Counts have no
noise: a kernel that costs 2% more than table.json, beside this file, ends with status 1, on a busy machine as on a
quiet one. A kernel's leave out what Python's interpreter spends: that is of a call, and moves by thousands of
instructions with where its dictionaries lie. They are of AVX2, which is what valgrind knows, in one thread, with a
cache of 32 KiB that every machine simulates alike. Kernels' counts are of the compiler, calls' also of Python and
NumPy, machine code's of nvcc, executed ones of Triton: what others made is shown and not judged. `--update` writes the
table; the change of figures is then part of the commit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.cost.count import DEPENDS, TABLE, counted, dearer
from benchmarks.cost.sections import run_sections


def main() -> None:
    """Count, show, compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the table")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--sections", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sections:
        return run_sections()
    found = counted()
    table = json.loads(args.table.read_text()) if args.table.exists() else found
    print(f"{found['facts']['compiler']}; Python {found['facts']['python']}; NumPy {found['facts']['numpy']}")
    for group, what in (
        ("kernels", "an element"),
        ("calls", "a call"),
        ("sm_90", "an element"),
        ("executed", "an element"),
    ):
        for name, counts in found[group].items():
            said = table[group].get(name, {}).get("instructions", float("nan"))
            misses = f", {counts['misses']:.3f} misses" if "misses" in counts else ""
            print(f"{name:42}{counts['instructions']:>12,.10g} instructions {what} (table: {said:,.10g}){misses}")
    if args.update:
        args.table.write_text(json.dumps(found, indent=1) + "\n")
        return None
    for fact, here in found["facts"].items():
        if here != table["facts"][fact]:
            groups = ", ".join(group for group, needed in DEPENDS.items() if fact in needed)
            print(f"{fact} is {here} here and {table['facts'][fact]} in the table: not judged are {groups}")
    if words := dearer(found, table):
        sys.exit("dearer than the table:\n" + "\n".join(words))
    return None


if __name__ == "__main__":
    main()
