# SPDX-License-Identifier: Apache-2.0
"""Triton's driver of a device that is this machine: what Triton compiles to PTX is executed on tensors of the host."""

from __future__ import annotations

import bisect
import struct
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

from benchmarks.gpu.first_launch import SHARED, Absent
from benchmarks.gpu.first_launch import Launcher as Refusing
from ldpkernels.common import capabilities
from ldpkernels.triton import launch, ordinal_cldp, piecewise, sign, two_point
from tests.ptx.machine import Program
from tests.ptx.machine import launch as execute
from tests.ptx.translate import translated

SIZES = {"i1": 1, "u1": 1, "i8": 1, "i16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8}


class Record:
    """What was launched since the record began."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.launches: Counter[str] = Counter()


record = Record()
exact: list[tuple[int, int]] = []  # regions of the call at hand, where its table says what they are


class Launcher(Refusing):
    """What Triton calls with the grid, the stream, the function and the arguments."""

    def __init__(self, source: Any, metadata: Any) -> None:
        super().__init__(source, metadata)
        self.shared, self.threads = metadata.shared, 32 * metadata.num_warps

    def __call__(self, *arguments: Any) -> None:
        """Three numbers of programs, stream, function and four of Triton's, then the kernel's own."""
        super().__call__(*arguments)
        grid, program, own = arguments[:3], arguments[4], arguments[-len(self.types) :]
        params, regions, tables = bytearray(), list(exact), []
        for kind, argument in zip(self.types, own, strict=True):
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


class Device(Absent):
    """The driver; its programs are translated when they are loaded."""

    def __init__(self, arch: int) -> None:
        super().__init__(arch)
        self.launcher_cls = Launcher
        self.utils.load_binary = self._load
        self.utils.unload_module = lambda module: None

    def _load(self, name: str, ptx: Any, shared: int, device: int) -> tuple[Any, ...]:
        text = ptx if isinstance(ptx, str) else bytes(ptx).decode()
        program = translated(text)
        if program.kernel.name != name or shared > SHARED[self.arch]:
            raise RuntimeError(f"{program.kernel.name} is no {name} in {shared} bytes")
        return program, program, 0, 0, 1024


def install(arch: int) -> None:
    """From now on, in this process, Triton compiles for an architecture, to PTX and no further, and executes that."""
    stages, begin = CUDABackend.add_stages, CUDABackend.__init__

    def initial(self: Any, target: Any) -> None:
        begin(self, target)
        self.binary_ext = "ptx"

    def until_ptx(self: Any, found: dict[str, Any], *arguments: Any) -> None:
        stages(self, found, *arguments)
        del found["cubin"]

    CUDABackend.__init__, CUDABackend.add_stages = initial, until_ptx
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
