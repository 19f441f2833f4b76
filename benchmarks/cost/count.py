# SPDX-License-Identifier: Apache-2.0
"""Counts by callgrind, between marks in one process, and what they are held to."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import disassembly, static_cost
from benchmarks.cost.sections import LARGE, SMALL

TABLE = Path(__file__).parent / "table.json"
WITHIN = 0.02
# Of calls that allocate, the last thousand instructions are the allocator's; of kernels, a hundredth an element;
# rotations are of the size of the cache, and miss a thirtieth an element more or less by where they lie.
SLACK = {"kernels": 0.05, "calls": 400.0, "sm_90": 0.05, "executed": 0.05, "misses": 0.04}
# On which facts. "sm_90" is nvcc's machine code, "executed" are instructions of Triton's PTX, which tests/ptx executes.
DEPENDS = {
    "kernels": ("compiler",),
    "calls": ("compiler", "python", "numpy"),
    "sm_90": ("nvcc",),
    "executed": ("triton",),
}
# Where stack and heap lie decides which lines of a cache of eight ways meet: 64 ways leave little of that.
CACHE = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,64,64", "--LL=8388608,16,64"]
NOT_PYTHON = r"(?!(lib)?python)"  # all objects but the interpreter
MARK = "getppid"  # of libc, which nothing else calls: callgrind writes its counts whenever it is entered


def facts() -> dict[str, str]:
    """What counts depend on: the compiler, as it signed the module, and Python and NumPy."""
    import numpy as np

    from ldpkernels import _native

    signed = re.search(rb"(GCC: \([^)]*\) [\d.]+|clang version [\d.]+)", Path(_native.__file__).read_bytes())
    python = f"{platform.python_version()}, {platform.python_compiler()}"
    return {"compiler": signed[1].decode() if signed else "?", "python": python, "numpy": np.__version__}


def lacking() -> str:
    """Why nothing can be counted here; nothing if it can."""
    if missing := [tool for tool in ("valgrind", "setarch") if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found (on Debian: apt install valgrind util-linux)"
    if subprocess.run(["setarch", "-R", "true"], capture_output=True, check=False).returncode:
        return "setarch -R is not permitted here, and counts would depend on where things lie in memory"
    return ""


def run() -> dict[str, dict[str, int]]:
    """The events of every section, in a process of their own."""
    set_up = {
        "PYTHONHASHSEED": "0",
        "OPENBLAS_NUM_THREADS": "1",
        "LDPKERNELS_BACKEND": "avx2",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "32768",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--dump-before={MARK}", *CACHE]
        program = [sys.executable, "-m", "benchmarks.cost", "--sections"]
        command = ["setarch", "-R", *valgrind, *program]
        done = subprocess.run(command, env={**os.environ, **set_up}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"callgrind failed:\n{(done.stdout + done.stderr)[-3000:]}")
        names = json.loads(done.stdout.splitlines()[-1])
        # The dump at a section's second mark holds what lies between its two. What the interpreter adds to a kernel is
        # of a call, not of an element, and differs by thousands from one call to the next.
        dumps = [
            totals(out.with_name(f"counts.{2 * i + 2}"), "" if name.startswith(("call", "nothing")) else NOT_PYTHON)
            for i, name in enumerate(names)
        ]
    return dict(zip(names, dumps, strict=True))


def counted() -> dict[str, Any]:
    """Counts of all sections: instructions, and misses of the first-level data cache."""
    if reason := lacking():
        sys.exit(reason)
    found = run()
    nothing = found["nothing"]
    kernels_, calls_ = {}, {}
    for name, one in found.items():
        kind, _, rest = name.partition(" ")
        if kind == "call":
            calls_[rest] = {"instructions": one["Ir"] - nothing["Ir"]}
        elif kind == "large":
            before = found[f"small {rest}"]
            each = {event: (one[event] - before[event]) / (LARGE - SMALL) for event in one}
            misses = round(each["D1mr"] + each["D1mw"], 4)
            kernels_[rest] = {"instructions": round(each["Ir"], 3), "misses": misses}
    code, ptx = machine_code(), executed()
    facts_ = {**facts(), "nvcc": code["nvcc"], "triton": ptx["triton"]}
    return {
        "facts": facts_, "kernels": kernels_, "calls": calls_, "sm_90": code["kernels"], "executed": ptx["kernels"],
    }  # fmt: skip


def executed() -> dict[str, Any]:
    """Triton's version, and how many instructions of its PTX each kernel executes an element; none without it."""
    if importlib.util.find_spec("triton") is None:
        return {"triton": "none", "kernels": {}}
    command = [sys.executable, "-m", "tests.ptx.counts"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[2])
    if done.returncode:
        raise SystemExit(f"the machine for PTX failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def machine_code() -> dict[str, Any]:
    """nvcc's version, and instructions an element on the hot path of each CUDA kernel of two-point; none without it."""
    if disassembly.lacks_nvcc():
        return {"nvcc": "none", "kernels": {}}
    version = re.search(r"release [\d.]+, V([\d.]+)", disassembly.run_tool("nvcc", "--version"))
    with tempfile.TemporaryDirectory() as folder:
        kernels = {
            f"two-point, {output} {dtype}, {cipher}": static_cost.two_point(cipher, output, dtype)
            for cipher, output, dtype in product(static_cost.CIPHERS, ("values", "bits"), static_cost.DTYPES)
        }
        costs = static_cost.costs("sm_90", Path(folder), kernels)
    counts = {name: {"instructions": cost.instructions_per_element} for name, cost in costs.items()}
    return {"nvcc": version[1] if version else "?", "kernels": counts}


def totals(path: Path, objects: str = "") -> dict[str, int]:
    """The events of one dump, in objects whose names this expression matches.

    An object holds functions, a function lines of costs; the line after a `calls=` is what that call cost, which is
    counted where it was spent.
    """
    names: list[str] = []
    sums: list[int] = []
    known: dict[str, str] = {}
    counting = after_call = False
    for line in path.read_text().splitlines():
        if line.startswith("events: "):
            names = line.split()[1:]
            sums = [0] * len(names)
        elif found := re.match(r"(c?)ob=(\(\d+\))(?: (.*))?$", line):
            name = known.setdefault(found[2], found[3] or "")
            if not found[1]:  # of who calls, not of who is called
                counting = re.match(objects, Path(name).name) is not None
        elif line.startswith("calls="):
            after_call = True
        elif re.match(r"[+\-*\d]", line):
            if counting and not after_call:
                for i, n in enumerate(line.split()[1:]):
                    sums[i] += int(n)
            after_call = False
    if not any(sums):
        raise ValueError(f"{path} is no dump of callgrind")
    return dict(zip(names, sums, strict=True))


def dearer(found: dict[str, Any], table: dict[str, Any]) -> list[str]:
    """What costs more than the table says, or is not in it, of what the same compiler (and Python, NumPy) made."""
    words = []
    for group, needed in DEPENDS.items():
        if any(found["facts"][fact] != table["facts"][fact] for fact in needed):
            continue
        if lost := table[group].keys() - found[group].keys():
            words.append(f"{', '.join(sorted(lost))}: in the table, and not counted")
        for name, counts in found[group].items():
            for event, count in counts.items():
                said = table[group].get(name, {}).get(event)
                slack = SLACK["misses" if event == "misses" else group]
                if said is None:
                    words.append(f"{name}: not in the table; --update adds it")
                elif count > said * (1 + WITHIN) + slack:
                    words.append(f"{name}: {count:,.10g} {event}, where the table has {said:,.10g}")
    return words
