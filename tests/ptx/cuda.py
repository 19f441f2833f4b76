# SPDX-License-Identifier: Apache-2.0
"""CUDA C++'s module as nvcc compiles it, with a runtime (cudart.cpp) whose launches this machine executes.

So plans, grids and the order of launches are those of csrc/cuda/launches.cu itself; tensors and arrays are the host's.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import ldpkernels
from benchmarks.disassembly import find_tool, run_tool
from benchmarks.static_cost import NVCC_FLAGS
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import Floats, Laws, Spans, Words
from ldpkernels.inputs.spans import INTEGERS
from ldpkernels.launch import dispatch
from tests.ptx.machine import Program
from tests.ptx.machine import launch as execute
from tests.ptx.text import PtxError, kernel_named
from tests.ptx.translate import program

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "ptx-cache"
DECISIONS = Path(__file__).with_name("decisions.cu")
MODULE = ROOT / "csrc" / "cuda" / "launches.cu"
FEW = Path(__file__).with_name("few.cu")  # of the module's kernels, as many as `make test` has time for
ARCH = int(os.environ.get("LDPKERNELS_TEST_PTX", "0")) or 90
ITEM = {0: 4, 1: 8, 2: 2, 3: 2, INTEGERS: 8}  # bytes, by a span's dtype
LAUNCHED = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_void_p),
)


def lacking() -> str:
    """Why CUDA C++ cannot be compiled here; nothing where it can."""
    if find_tool("nvcc") is None:
        return "nvcc was not found (on Linux, pip install nvidia-cuda-nvcc nvidia-cuda-cccl brings it)"
    if _headers() is None:
        return "pybind11's headers were not found, by themselves or in torch (pip install pybind11)"
    return ""


def _headers() -> Path | None:
    """The folder of pybind11's headers."""
    found = next((spec for name in ("pybind11", "torch") if (spec := importlib.util.find_spec(name))), None)
    return found and Path(str(found.origin)).parent / "include"


def compiled(source: Path, arch: int) -> tuple[Path, str]:
    """A library of a file, and its PTX: made once for these sources."""
    runtime = Path(__file__).with_name("cudart.cpp")
    flags = [*NVCC_FLAGS, f"-gencode=arch=compute_{arch},code=compute_{arch}", "-cudart=none", "-shared"]
    flags += ["-Xcompiler=-fPIC,-O0", f"-I{_headers()}", f"-I{sysconfig.get_path('include')}"]
    texts = [path.read_text() for path in [*sorted((ROOT / "csrc").rglob("*.*")), source, runtime] if path.is_file()]
    digest = hashlib.sha256("\n".join([run_tool("nvcc", "--version"), sys.version, *flags, *texts]).encode())
    folder = CACHE / f"{source.stem}-{digest.hexdigest()[:24]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            python = [] if source == DECISIONS else [str(MODULE.with_name("module.cpp"))]
            _compile(folder, [*flags, str(source), str(runtime), *python])
    return folder / "library.so", (folder / "kernels.ptx").read_text()


def _compile(folder: Path, arguments: list[str]) -> None:
    if folder.exists():  # another process was here first
        return
    with tempfile.TemporaryDirectory(dir=CACHE) as kept:
        library, made = Path(kept) / "library.so", Path(kept) / "made"
        run_tool("nvcc", "--keep", f"--keep-dir={kept}", "-o", str(library), *arguments)
        made.mkdir()
        library.rename(made / "library.so")
        (Path(kept) / f"{folder.name.partition('-')[0]}.ptx").rename(made / "kernels.ptx")
        made.rename(folder)


class Machine:
    """A library of CUDA C++, and what its launches do: they are executed, and may touch the regions of a call."""

    def __init__(self, source: Path, arch: int) -> None:
        path, self.ptx = compiled(source, arch)
        self.library = ctypes.CDLL(str(path))
        self.module: Any = None if source == DECISIONS else _module(path)
        self.programs: dict[str, Program] = {}
        self.launches: Counter[str] = Counter()
        self.regions: list[tuple[int, int]] = []
        self.error: Exception | None = None
        self._launched = LAUNCHED(self._execute)
        self.library.on_launch(self._launched)

    def _execute(self, name: bytes, grid: Any, block: Any, shared: int, arguments: Any) -> int:
        try:
            made = self._program(name.decode(), block[0])
            params = bytearray()
            for i, (offset, _, size) in enumerate(made.kernel.params.values()):
                params += b"\0" * (offset - len(params)) + ctypes.string_at(arguments[i], size)
            self.launches[made.kernel.name] += 1
            execute(made, tuple(grid[:3]), bytes(params), self.regions, shared)
        except Exception as error:  # C++ cannot carry it
            self.error = error
            return 1
        return 0

    def _program(self, name: str, threads: int) -> Program:
        if name not in self.programs:
            kernel = kernel_named(self.ptx, name)
            if not threads <= kernel.most_threads:
                raise PtxError(f"{name} has {kernel.most_threads} threads at most, not {threads}")
            kernel.threads = threads
            self.programs[name] = program(kernel)
        if self.programs[name].kernel.threads != threads:
            raise PtxError(f"{name} was launched with {self.programs[name].kernel.threads} threads, and with {threads}")
        return self.programs[name]

    def call(self, function: Any, regions: Iterable[tuple[int, int]], *arguments: object) -> Any:
        """Call a function of the library; its launches may touch these regions."""
        self.regions, self.error = list(regions), None
        with suppress(RuntimeError):
            answer = function(*arguments)
            if self.error is None:
                return answer
        raise self.error or RuntimeError("nothing was launched")

    def on_multiprocessors(self, count: int) -> None:
        """How many the device is said to have, which decides how work is cut."""
        ctypes.c_int.in_dll(self.library, "multiprocessors").value = count

    def launch(self, kernel: str, output: str, spans: Spans, laws: Laws, key: Words) -> None:
        """A mechanism's kernel over spans of the host's memory."""
        arguments = kernel, output, spans, laws, key.ctypes.data, key.size, 0, 0
        self.call(self.module.launch, [*reached(spans, output), of(key)], *arguments)

    def clipped_sums(
        self, spans: Spans, limits: Floats, rows: int, law: tuple[float, ...], key: tuple[int, int], norms: int
    ) -> None:
        """Sums of clipped rows, by a key's address and words, and the rows' norms to an address."""
        workspace = np.full(self.module.clipped_workspace(spans, rows, len(limits)), 1e300)
        regions = [(key[0], key[0] + 4 * key[1]), (norms, norms + 8 * rows * len(limits)), of(workspace)]
        for span in spans:
            item, n = ITEM[int(span["dtype"])], int(span["numel"])
            regions.append((int(span["data"]), int(span["data"]) + rows * n * item))
            regions.append((int(span["out"]), int(span["out"]) + n * (8 if item == 8 else 4)))
        self.call(
            self.module.clipped_sums, regions, spans, limits, rows, *law, *key, norms, workspace.ctypes.data, 0, 0
        )

    def keystream(self, key: Words, stream: int, first_block: int, blocks: int) -> Words:
        """Blocks of a keystream."""
        out = np.zeros(blocks * (4 if key.size == 2 else 16), np.uint32)
        arguments = key.ctypes.data, key.size, stream, first_block, blocks, out.ctypes.data, 0, 0
        self.call(self.module.keystream, [of(key), of(out)], *arguments)
        return out

    def next_key(self, state: int, out: int) -> None:
        """The next key of the state at an address, to another."""
        self.call(self.module.next_key, [(state, state + 40), (out, out + 32)], state, out, 0, 0)


def _module(path: Path) -> ModuleType:
    """csrc/cuda/module.cpp for Python."""
    loader = importlib.machinery.ExtensionFileLoader("ldpkernels._cuda", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def of(array: np.ndarray) -> tuple[int, int]:
    """An array's memory."""
    return array.ctypes.data, array.ctypes.data + array.nbytes


def reached(spans: Spans, output: str) -> Iterator[tuple[int, int]]:
    """The memory of a table's tensors and outputs, to the byte."""
    for span in spans:
        n = int(span["numel"])
        yield int(span["data"]), int(span["data"]) + n * ITEM[int(span["dtype"])]
        each = {"bits": -(-n // 8), "cells": n, "thresholds": 8 * n}
        size = each.get(output, 8 * n if span["dtype"] == INTEGERS else 0)
        yield int(span["out"]), int(span["out"]) + size


@cache
def machine(source: Path, arch: int = ARCH) -> Machine:
    """A library for an architecture, compiled and loaded once in a process."""
    return Machine(source, arch)


@contextmanager
def taking_tensors_of_the_host(here: Machine) -> Iterator[ModuleType]:
    """The package then counts CUDA C++ among its backends, for tensors of the host."""
    kept = capabilities._found, capabilities.able, sys.modules.get("ldpkernels._cuda")
    called = dispatch.call_cuda
    known = here.module.MECHANISMS | {"clipped_noise", "next_key"}

    def able(kernel: str, device: str, index: int | None = None) -> tuple[str, ...]:
        return (*capabilities._ALWAYS, *(("cuda",) if kernel in known else ()))

    def call(name: str, device: Any, *arguments: Any) -> None:
        if name == "launch":
            _, output, spans, _, key, words = arguments
            regions = [*reached(spans, output), (key, key + 4 * words)]
            here.call(here.module.launch, regions, *arguments, 0, 0)
        elif name == "clipped_sums":
            spans, limits, rows, stddev, divisor, unit, grid_std, key, words, norms, _ = arguments
            here.clipped_sums(spans, limits, rows, (stddev, divisor, unit, grid_std), (key, words), norms)
        else:
            here.next_key(*arguments)

    capabilities._found, capabilities.able = lambda interpreter: ("cuda",), able
    dispatch.call_cuda = call
    sys.modules["ldpkernels._cuda"] = ldpkernels._cuda = here.module
    try:
        yield here.module
    finally:
        capabilities._found, capabilities.able = kept[:2]
        dispatch.call_cuda = called
        del ldpkernels._cuda
        if kept[2] is None:
            del sys.modules["ldpkernels._cuda"]
        else:
            sys.modules["ldpkernels._cuda"] = ldpkernels._cuda = kept[2]


def names(ptx: str) -> list[str]:
    """The kernels of a module."""
    return re.findall(r"^\.visible \.entry ([$\w]+)\(", ptx, re.M)
