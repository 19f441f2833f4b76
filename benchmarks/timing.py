# SPDX-License-Identifier: Apache-2.0
"""What the duration of a call tells about a weight: instructions of whole processes, counted by callgrind.

    python -m benchmarks.timing [--out FILE]

All weights of a tensor are one number, and the key is the same for all numbers, so that two counts differ by what the
number does. Only the library's object is counted, which alone looks at weights: Python and its memory differ from run
to run by more than a kernel takes for a weight. Needs valgrind; takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.cost.count import totals

SIZE = 1 << 16
WEIGHTS = ("-1.0", "-0.5", "0.0", "0.5", "1.0", "5.0", "nan")
CALLS = {
    "two-point, report": "ldpkernels.report(w, 0.0, 1.0, 1.0, generator=k)",
    "two-point, perturb_": "ldpkernels.perturb_(w, 0.0, 1.0, 1.0, generator=k)",
    "piecewise": "ldpkernels.perturb_(w, 0.0, 1.0, 1.0, mechanism='piecewise', generator=k)",
    "hybrid": "ldpkernels.perturb_(w, 0.0, 1.0, 1.0, mechanism='hybrid', generator=k)",
    "CLDP, exponential": "ldpkernels.cldp_(w, 1e-3, 1.0, 4, generator=k)",
    "CLDP, laplace": "ldpkernels.cldp_(w, 1e-3, 1.0, 4, mechanism='laplace', generator=k)",
}
PROGRAM = """
import numpy as np, ldpkernels
w, k = np.full({size}, {weight}, np.float32), ldpkernels.Key((1, 2, 3, 4))
{call}
"""


def instructions(call: str, weight: str, size: int = SIZE) -> int:
    """Instructions of a process that makes one call, inside the library's object."""
    program = PROGRAM.format(size=size, weight=f"float('{weight}')", call=call)
    fixed = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "LDPKERNELS_BACKEND": "avx2"}
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={dump}", sys.executable, "-c", program]
        subprocess.run(["setarch", "-R", *command], env=fixed, capture_output=True, check=True)
        return totals(dump, "_native")["Ir"]


def main() -> None:
    """Print a table: instructions a weight, and how much the weight moves them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timing", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the table there, as Markdown")
    args = parser.parse_args()
    lines = ["| call | " + " | ".join(f"w = {w}" for w in WEIGHTS) + " | most that a weight moves |"]
    lines.append("|---|" + "---:|" * (len(WEIGHTS) + 1))
    tasks = [(call, w, size) for call in CALLS.values() for w, size in (("0.0", 0), *((w, SIZE) for w in WEIGHTS))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # counts, not times: they may run beside each other
        found = iter(list(pool.map(lambda task: instructions(*task), tasks)))
    for name in CALLS:
        nothing = next(found)
        counts = [(next(found) - nothing) / SIZE for _ in WEIGHTS]
        moved = (max(counts) - min(counts)) / min(counts)
        lines.append(f"| {name} | " + " | ".join(f"{c:.3f}" for c in counts) + f" | {moved:.2%} |")
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
