# SPDX-License-Identifier: Apache-2.0
"""What the known questions of Triton's kernels compile and launch, on a GPU that need not be there.

    python -m benchmarks.gpu.first_launch [--arch 90] [--kernel NAME ...]

They are asked as on a device (ldpkernels/launch/proved.py), on tensors of the host. Triton chooses what to compile from
their arguments (a number that is 1, an address that is a multiple of 16), and compiles it for the device; but nothing
is launched. What would fail there fails here: types that compile for no argument or only for others, grids and shared
memory beyond the device's, arguments beyond their type, memory that a launch would have to allocate. Answers are
whatever was in memory. A row of the output says how many kernels the first use of a kernel compiles, and for how long:
what a user waits for where Triton's cache is empty.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # it is read when triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import ldpkernels
from ldpkernels.common import capabilities
from ldpkernels.launch.proved import ask, subjects
from ldpkernels.triton import launch

GRID = (2**31 - 1, 65_535, 65_535)  # CUDA's largest
SHARED = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}  # bytes that a program may have at most
INTEGERS = {
    "i1": (0, 1),
    "u1": (0, 1),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
}


class Launcher:
    """What Triton makes of a compiled kernel, and calls with the grid, the stream and the arguments."""

    launches = 0

    def __init__(self, source: Any, metadata: Any) -> None:
        self.name, self.types = source.fn.__name__, list(source.signature.values())
        allocated = {k: v for k, v in metadata._asdict().items() if k.endswith("scratch_size") and v}
        if allocated:
            raise RuntimeError(f"{self.name} needs memory that nobody allocates: {allocated}")

    def __call__(self, *arguments: Any) -> None:
        """Check a launch: three numbers of programs, stream, function and four of Triton's, then the kernel's own."""
        Launcher.launches += 1
        grid, own = arguments[:3], arguments[-len(self.types) :]
        if not all(0 < n <= most for n, most in zip(grid, GRID, strict=True)):
            raise ValueError(f"{self.name} has a grid of {grid}")
        for kind, argument in zip(self.types, own, strict=True):
            lowest, highest = INTEGERS.get(kind, (0, 0))
            fits = lowest <= argument <= highest if kind in INTEGERS else not kind.startswith("*")
            if not (fits or hasattr(argument, "data_ptr")):
                raise TypeError(f"{self.name} takes {kind} and was given {argument!r}")


class Absent:
    """Triton's driver of a device that is not there."""

    def __init__(self, arch: int) -> None:
        self.arch, self.launcher_cls = arch, Launcher
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": SHARED[arch], "multiprocessor_count": 132},
            load_binary=lambda *_: (1, 1, 0, 0, 1024),
        )

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The default."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return GPUTarget("cuda", self.arch, 32)

    def get_active_torch_device(self) -> torch.device:
        """Where tensors are."""
        return torch.device("cpu")


@dataclass(frozen=True)
class Compiled:
    """A kernel that Triton has compiled: its function's name, its constants, itself, and the seconds that it took."""

    name: str
    constants: dict[str, Any]
    kernel: Any
    seconds: float


@contextmanager
def absent(arch: int) -> Iterator[list[Compiled]]:
    """Triton compiles for an architecture and launches nothing; what it compiles is collected. Once in a process: a
    kernel keeps the compiler that it was first called with."""
    driver.set_active(Absent(arch))
    compile_, compiled = triton.compiler.compile, list[Compiled]()

    def noted(source: Any, *arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        kernel = compile_(source, *arguments, **options)
        names = list(source.signature)
        constants = {names[place[0]]: value for place, value in source.constants.items()}
        compiled.append(Compiled(source.fn.__name__, constants, kernel, time.perf_counter() - began))
        return kernel

    kept = launch.check_reach, capabilities._found, capabilities._interpreting
    triton.compiler.compile = triton.compiler.compiler.compile = noted
    launch.check_reach, capabilities._found = lambda device: None, lambda interpreter: ("triton",)
    capabilities._interpreting = lambda: True  # so that the backend takes tensors of the host
    try:
        with ldpkernels.backend("triton"):
            yield compiled
    finally:
        triton.compiler.compile = triton.compiler.compiler.compile = compile_
        launch.check_reach, capabilities._found, capabilities._interpreting = kept


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--arch", type=int, choices=tuple(SHARED), default=90, help="compute capability (90)")
    parser.add_argument("--kernel", action="append", help="of these kernels alone")
    options, failed = parser.parse_args(), False
    with absent(options.arch) as compiled:
        for subject in subjects():
            if options.kernel and subject.kernel not in options.kernel:
                continue
            kernels, launches, error = (
                len(compiled),
                Launcher.launches,
                ask("triton", subject, torch.device("cpu")).error,
            )
            fails = error is not None and error.startswith("fails")
            failed |= fails
            took = f"{len(compiled) - kernels:4d} kernels {sum(c.seconds for c in compiled[kernels:]):6.1f} s"
            end = f"  {error}"[:2000] if fails else ""
            print(f"{subject!s:42s} {took} {Launcher.launches - launches:5d} launches{end}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
