# SPDX-License-Identifier: Apache-2.0
"""Triton's driver of a device that is this machine: what Triton compiles to PTX is executed on tensors of the host.

Or of a device that is not there (`compiling`): what Triton compiles is collected, and nothing is executed. Both ways
refuse what a device would: grids, shared memory and arguments beyond its own, memory that a launch would have to
allocate.
"""

from __future__ import annotations

import bisect
import struct
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

import ldpkernels
from ldpkernels.common import capabilities
from ldpkernels.triton import launch, ordinal_cldp, piecewise, sign, two_point
from tests.ptx.machine import Program
from tests.ptx.machine import launch as execute
from tests.ptx.translate import translated

GRID = (2**31 - 1, 65_535, 65_535)  # CUDA's largest
SHARED = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}  # bytes that a program may have at most
SIZES = {"i1": 1, "u1": 1, "i8": 1, "i16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8}
INTEGERS = {
    "i1": (0, 1),
    "u1": (0, 1),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
}


class Record:
    """What was launched since the record began."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.launches: Counter[str] = Counter()


record = Record()
exact: list[tuple[int, int]] = []  # regions of the call at hand, where its table says what they are


class Launcher:
    """What Triton makes of a compiled kernel, and calls with the grid, the stream, the function and the arguments."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.name, self.types = source.fn.__name__, list(source.signature.values())
        self.shared, self.threads = metadata.shared, 32 * metadata.num_warps
        allocated = {k: v for k, v in metadata._asdict().items() if k.endswith("scratch_size") and v}
        if allocated:
            raise RuntimeError(f"{self.name} needs memory that nobody allocates: {allocated}")

    def __call__(self, *arguments: Any) -> None:
        """Three numbers of programs, stream, function and four of Triton's, then the kernel's own."""
        grid, program, own = arguments[:3], arguments[4], arguments[-len(self.types) :]
        if not all(0 < n <= most for n, most in zip(grid, GRID, strict=True)):
            raise ValueError(f"{self.name} has a grid of {grid}")
        params, regions, tables = bytearray(), list(exact), []
        for kind, argument in zip(self.types, own, strict=True):
            lowest, highest = INTEGERS.get(kind, (0, 0))
            fits = lowest <= argument <= highest if kind in INTEGERS else not kind.startswith("*")
            if not (fits or hasattr(argument, "data_ptr")):
                raise TypeError(f"{self.name} takes {kind} and was given {argument!r}")
            if kind == "constexpr":
                continue
            if hasattr(argument, "data_ptr"):
                regions.append(_region(argument))
                if argument.dtype == torch.int64:
                    tables.append(argument)
                number, size = argument.data_ptr(), 8
            elif kind == "fp32":
                number, size = int.from_bytes(struct.pack("<f", argument), "little"), 4
            else:
                number, size = int(argument), SIZES[kind]
            params += b"\0" * (-len(params) % size) + (number % 2 ** (8 * size)).to_bytes(size, "little")
        if isinstance(program, Program):
            self._execute(program, grid, params, regions, tables)

    def _execute(self, program: Program, grid: Any, params: bytearray, regions: Any, tables: Any) -> None:
        params += b"\0" * (-len(params) % 8 + 16)  # two pointers to memory that nobody allocates
        kernel = program.kernel
        ends = max(o + n for o, _, n in kernel.params.values())
        if ends != len(params) or kernel.threads != self.threads:
            raise RuntimeError(f"{self.name} takes {ends} bytes of {kernel.threads} threads, not {len(params)}")
        if not exact:
            regions += [r for t in tables for r in _reached(t)]
        record.programs[kernel.name + str(id(program))] = program
        record.launches[self.name] += 1
        execute(program, grid, bytes(params), regions, self.shared)


def _region(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


_asked: dict[int, Any] = {}  # tensors, weakly, by where their storage begins


def _reached(table: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The memory that a table's numbers point into."""
    alive = {}
    for start, reference in list(_asked.items()):
        tensor = reference()
        if tensor is None or tensor.untyped_storage().data_ptr() != start:
            del _asked[start]
        else:
            alive[start] = _region(tensor)[1]
    starts = sorted(alive)
    for number in set(table.flatten().tolist()):
        i = bisect.bisect_right(starts, number) - 1
        if i >= 0 and number < alive[starts[i]]:
            yield starts[i], alive[starts[i]]


class Device:
    """The driver; its programs are translated when they are loaded, if it executes them."""

    def __init__(self, arch: int, executes: bool = True) -> None:
        self.arch, self.launcher_cls = arch, Launcher
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": SHARED[arch], "multiprocessor_count": 132},
            load_binary=self._load if executes else lambda *_: (1, 1, 0, 0, 1024),
            unload_module=lambda module: None,
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

    def _load(self, name: str, ptx: Any, shared: int, device: int) -> tuple[Any, ...]:
        text = ptx if isinstance(ptx, str) else bytes(ptx).decode()
        program = translated(text)
        if program.kernel.name != name or shared > SHARED[self.arch]:
            raise RuntimeError(f"{program.kernel.name} is no {name} in {shared} bytes")
        return program, program, 0, 0, 1024


@dataclass(frozen=True)
class Compiled:
    """A kernel that Triton has compiled: its function's name, its constants, and itself."""

    name: str
    constants: dict[str, Any]
    kernel: Any


@contextmanager
def compiling(arch: int) -> Iterator[list[Compiled]]:
    """Triton compiles for an architecture and launches nothing; what it compiles is collected. Once in a process: a
    kernel keeps the compiler that it was first called with."""
    driver.set_active(Device(arch, executes=False))
    compile_, compiled, check = triton.compiler.compile, list[Compiled](), launch.check_reach

    def noted(source: Any, *arguments: Any, **options: Any) -> Any:
        kernel, names = compile_(source, *arguments, **options), list(source.signature)
        constants = {names[place[0]]: value for place, value in source.constants.items()}
        compiled.append(Compiled(source.fn.__name__, constants, kernel))
        return kernel

    triton.compiler.compile = triton.compiler.compiler.compile = noted
    launch.check_reach = lambda device: None
    try:
        with taking_tensors_of_the_host(), ldpkernels.backend("triton"):
            yield compiled
    finally:
        triton.compiler.compile = triton.compiler.compiler.compile = compile_
        launch.check_reach = check


def install(arch: int) -> None:
    """From now on, in this process, Triton compiles for an architecture, to PTX and no further, and executes that."""
    stages, begin, hash_ = CUDABackend.add_stages, CUDABackend.__init__, CUDABackend.hash

    def initial(self: Any, target: Any) -> None:
        begin(self, target)
        self.binary_ext = "ptx"

    def until_ptx(self: Any, found: dict[str, Any], *arguments: Any) -> None:
        stages(self, found, *arguments)
        del found["cubin"]

    CUDABackend.__init__, CUDABackend.add_stages = initial, until_ptx
    CUDABackend.hash = lambda self: f"{hash_(self)}, PTX"  # in the cache, what is compiled to the end is another kernel
    driver.set_active(Device(arch))
    launch.check_reach = lambda device: None
    _follow_addresses()


def _follow_addresses() -> None:
    asked, over = torch.Tensor.data_ptr, launch.over

    def data_ptr(self: torch.Tensor) -> int:
        with suppress(RuntimeError, NotImplementedError):  # it has no memory, and says so below
            _asked[self.untyped_storage().data_ptr()] = weakref.ref(self)
        return asked(self)

    def of_spans(kernel: Any, name: Any, plan: Any, spans: Any, laws: Any, key: Any, out: Any, constants: Any) -> None:
        sizes = [(4, 8, 2, 2, 8)[code] for code in spans["dtype"]]
        exact.extend((int(s["data"]), int(s["data"]) + int(s["numel"]) * n) for s, n in zip(spans, sizes, strict=True))
        try:
            over(kernel, name, plan, spans, laws, key, out, constants)
        finally:
            exact.clear()

    torch.Tensor.data_ptr = data_ptr
    for module in (launch, ordinal_cldp, piecewise, sign, two_point):
        module.over = of_spans


@contextmanager
def taking_tensors_of_the_host() -> Iterator[None]:
    """The package then counts Triton among its backends, for tensors of the host."""
    kept = capabilities._found, capabilities._interpreting
    capabilities._found, capabilities._interpreting = lambda interpreter: ("triton",), lambda: True
    try:
        yield
    finally:
        capabilities._found, capabilities._interpreting = kept
