# SPDX-License-Identifier: Apache-2.0
"""What first calls of Triton's operations compile and launch, on a GPU that need not be there.

    python -m benchmarks.gpu.first_launch [--arch 90] [--operation NAME ...]

Operations are called as on a device, on tensors of the host. Triton chooses what to compile from their arguments (a
number that is 1, an address that is a multiple of 16), and compiles it for the device; but nothing is launched. What
would fail there fails here: types that compile for no argument or only for others, grids and shared memory beyond the
device's, arguments beyond their type, memory that a launch would have to allocate. Results are whatever was in memory.
A row of the output says how many kernels an operation's first calls compile, and for how long: what a user waits for
where Triton's cache is empty.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # it is read when triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import ldpkernels
from benchmarks.gpu.operations import KEYS, OPERATIONS, Operation, on
from ldpkernels import capabilities
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


@contextmanager
def absent(arch: int, compiled: list[float]) -> Iterator[None]:
    """Triton compiles for an architecture and launches nothing; `compiled` gets the seconds of each kernel. Once in a
    process: a kernel keeps the compiler that it was first called with."""
    driver.set_active(Absent(arch))
    compile_ = triton.compiler.compile

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return compile_(*arguments, **options)
        finally:
            compiled.append(time.perf_counter() - began)

    kept = launch.check_reach, capabilities._found, capabilities._interpreting
    triton.compiler.compile = triton.compiler.compiler.compile = timed
    launch.check_reach, capabilities._found = lambda device: None, lambda interpreter: ("triton",)
    capabilities._interpreting = lambda: True  # so that the backend takes tensors of the host
    try:
        with ldpkernels.backend("triton"):
            yield
    finally:
        triton.compiler.compile = triton.compiler.compiler.compile = compile_
        launch.check_reach, capabilities._found, capabilities._interpreting = kept


def call_all(operation: Operation) -> None:
    """Call an operation as tests/gpu do, with every dtype and cipher."""
    for dtype in operation.dtypes:
        for key in KEYS.values():
            operation.call(on("cpu", operation.make(dtype)), key)


def vectors() -> None:
    """Whole vectors, whose calls want the numbers that kernels would find: the kernels by themselves."""
    from benchmarks.gpu.sanitize import ranges_and_tallies
    from ldpkernels import launch as launches
    from ldpkernels.inputs.spans import span_table
    from ldpkernels.laws.noise_table import gaussian_table, wide_gaussian_table

    ranges_and_tallies(torch.device("cpu"))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        kind = ldpkernels.dtypes.DTYPES[str(dtype).removeprefix("torch.")]
        for n in (33, 70_001):
            x, out = torch.zeros(n, dtype=dtype), torch.empty(n, dtype=torch.float64)
            spans = span_table([x.data_ptr()], [out.data_ptr()], [n], [kind])
            launches.norm(spans)
            for key in KEYS.values():
                launches.quantise(spans, 1.0, key)
                launches.normal_product(spans, key, 1)
                launches.moved_normals(spans, key, 1, 0.5, 2.0)
                for table in (gaussian_table(3.0), wide_gaussian_table(10)):
                    launches.add_noise(spans, table, key)
                    launches.add_noise(spans, table, key, bits=20)
            launches.quantise(spans, 1.0, None)
    for levels in (0, 5, 12, 13, 20):
        for key in KEYS.values():
            for inverse in (False, True):
                launches.rotate(torch.zeros(1 << levels), key, inverse=inverse)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--arch", type=int, choices=tuple(SHARED), default=90, help="compute capability (90)")
    parser.add_argument("--operation", action="append", choices=(*OPERATIONS, "vectors"), help="these alone")
    options = parser.parse_args()
    failed, compiled = False, list[float]()
    with absent(options.arch, compiled):
        for name in options.operation or (*OPERATIONS, "vectors"):
            kernels, launches, end = len(compiled), Launcher.launches, ""
            try:
                vectors() if name == "vectors" else call_all(OPERATIONS[name])
            except Exception as error:  # the others are worth knowing
                failed, end = True, f"  {type(error).__name__}: {error}"[:2000]
            took = f"{len(compiled) - kernels:4d} kernels {sum(compiled[kernels:]):6.1f} s"
            print(f"{name:24s} {took} {Launcher.launches - launches:5d} launches{end}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
