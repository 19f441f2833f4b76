# SPDX-License-Identifier: Apache-2.0
"""How many calls between files of the package one public call makes: `python benchmarks/hops.py`.

A reader who follows a call opens as many files. Counted on the second call, when what is made once is made; a call
counts where the nearest frame of the package around it is another file's.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import ldpkernels

PACKAGE = str(Path(ldpkernels.__file__).parent)


def hops(call: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Calls from file to file within the package."""
    call()
    found: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            found[caller.f_code.co_filename, frame.f_code.co_filename] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def calls() -> dict[str, Callable[[], object]]:
    """The calls that are counted, on a model of two layers, one layer and four reports."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    reports = [ldpkernels.report(model, 0.0, 1.0, 1.0).to_bytes() for _ in range(4)]
    rows = torch.randn(16, 10)
    return {
        "perturb_": lambda: ldpkernels.perturb_(model, 0.0, 1.0, 1.0),
        "report": lambda: ldpkernels.report(model, 0.0, 1.0, 1.0),
        "aggregate": lambda: ldpkernels.aggregate(reports),
        "cldp_": lambda: ldpkernels.cldp_(model, 0.1, 1.0, 3),
        "clipped_noised_sum": lambda: ldpkernels.clipped_noised_sum(rows, 1.0, 1.0),
    }


def main() -> None:
    """Print a table; with -v every pair of files."""
    for name, call in calls().items():
        found = hops(call)
        print(f"{name:20}{sum(found.values()):5}")
        if "-v" in sys.argv[1:]:
            for (caller, callee), n in found.most_common():
                print(f"    {Path(caller).relative_to(PACKAGE)} -> {Path(callee).relative_to(PACKAGE)}: {n}")


if __name__ == "__main__":
    main()
