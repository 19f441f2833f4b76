# SPDX-License-Identifier: Apache-2.0
"""What Triton compiles for known questions, for a GPU that need not be there, and what its machine code costs, as JSON.

    python -m benchmarks.triton_code FILE

A process of its own, because compiling needs a Triton that does not interpret. Each group has kernels by the question
that compiled them; of kernels that read tensors by vectors, the one that does. Elements are those of a thread's tile,
and none where work depends on draws or where only resources are looked at, as reading machine code takes longer than
all else.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # it is read when triton is imported

import torch

from benchmarks.disassembly import analyse_cubin
from benchmarks.gpu.operations import KEYS
from ldpkernels import launch
from ldpkernels.launch.proved import Subject, ask
from ldpkernels.triton import rotation
from tests.ptx.device import Compiled, compiling

ARCH = 90
NARROW = ("float32", "bfloat16", "float16", "float64")


def of(kernel: str, *choices: str) -> list[Subject]:
    """Subjects of a kernel: output, dtype and cipher of each in words."""
    return [Subject(kernel, *choice.rsplit(" ", 2)) for choice in choices]


GROUPS = {
    "two_point": of(
        "two_point",
        *("values float32 philox", "values bfloat16 philox", "values float64 philox", "bits float32 philox"),
        *("bits bfloat16 philox", "values float32 chacha20"),
    ),
    "cells": [
        *(one for m in ("piecewise", "hybrid") for d in NARROW for one in of(m, f"values {d} philox")),
        *of("hybrid", "cells float32 philox"),
    ],
    "clipped_noise": of(
        "clipped_noise",
        *(f"{noise} {dtype} philox" for noise in ("gaussian", "discrete") for dtype in ("float32", "float64")),
        "discrete float32 chacha20",
    ),
    "ordinal_cldp": of("ordinal_cldp", "values float32 philox", "values int64 philox", "values float16 chacha20"),
    "vectors": [
        *of("vectors", *(f"norm {dtype} none" for dtype in NARROW)),
        *of("vectors", "integers float32 none", "integers float32 philox", "integers bfloat16 chacha20"),
        *of("vectors", "noise 16 float32 philox", "noise 0 uint32 chacha20", "rotation float32 philox"),
        *of("normals", *(f"{o} {d}" for o in ("product", "moved") for d in ("float32 philox", "float64 chacha20"))),
    ],
    "others": [
        *of("summary", *(f"finite {dtype} none" for dtype in NARROW)),
        *of("quantiles", "32 bits float32 none", "32 bits bfloat16 none", "64 bits float64 none"),
        *(*of("tally", "bits uint8 none", "bytes uint8 none"), *of("votes", "labels uint8 none")),
        *of("clipped_noise", "gaussian of numbers float32 philox", "discrete of numbers float64 philox"),
        *of("next_key", "keys int64 chacha20"),
    ],
}


def elements(one: Compiled) -> int:
    """Elements of a thread that the hot path finishes; 0 where it is not looked for."""
    has = one.constants
    chacha = has.get("CHACHA", False)
    found = {
        "two_point_kernel": (32 if chacha else 8) * has.get("BLOCKS", 0) // 32,
        "piecewise_kernel": (32 if chacha else 8) * has.get("BLOCKS", 0) // 32,
        "sums_kernel": 1,
        "numbers_kernel": 64,
        "noise_kernel": 8,
        "moved_kernel": 8,
        "quantise_kernel": 16 if chacha else 4,
        "rotate_kernel": (has.get("COLUMNS", 0) << has.get("LEVELS", 0)) // 128,
    }
    return found.get(one.name, 0)


def is_looked_at(one: Compiled) -> bool:
    """Whether a kernel is the one by vectors, of whole passes, of two or more that a question has."""
    if one.name == "rotate_kernel":
        return one.constants["LEVELS"] == (rotation.FIRST if one.constants["COLUMNS"] == 1 else rotation.LATER)
    return bool(one.constants.get("ALIGNED", True))


def costs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Group, name and cost of every kernel, which is named once."""
    seen = set()
    with compiling(ARCH) as compiled, tempfile.TemporaryDirectory() as folder:
        for group, subjects in GROUPS.items():
            for subject in subjects:
                first = len(compiled)
                ask("triton", subject, torch.device("cpu"))
                if subject.output == "rotation":  # of so many levels that both passes are whole
                    launch.rotate(torch.zeros(1 << rotation.FIRST + rotation.LATER), KEYS[subject.cipher])
                for one in compiled[first:]:
                    if not is_looked_at(one) or (known := (one.name, str(one.constants), one.kernel.hash)) in seen:
                        continue
                    seen.add(known)
                    cubin = Path(folder) / "kernel.cubin"
                    cubin.write_bytes(one.kernel.asm["cubin"])
                    cost = analyse_cubin(cubin, one.name, elements(one), inner_trips=10)
                    split = "split " if one.constants.get("SPLIT") else ""
                    later = " later" if one.constants.get("COLUMNS", 1) > 1 else ""
                    yield group, f"{split}{one.name}{later} {subject}", vars(cost) | {"ptx": one.kernel.asm["ptx"]}


def main(path: str) -> None:
    found: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for group, name, cost in costs():
        found[group][name] = cost
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
