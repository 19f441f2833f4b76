# SPDX-License-Identifier: Apache-2.0
"""CUDA C++'s module as nvcc compiles it, with a runtime (cudart.cpp) whose launches this machine executes.

So plans, grids and the order of launches are those of csrc/cuda/module.cu itself; tensors and arrays are the host's.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import ldpkernels
from benchmarks.disassembly import find_tool, run_tool
from benchmarks.static_cost import NVCC_FLAGS
from ldpkernels import capabilities
from ldpkernels.arrays import Laws, Spans, Words
from ldpkernels.inputs.spans import INTEGERS
from ldpkernels.launch import device_keys, dispatch
from tests.ptx.machine import Program
from tests.ptx.machine import launch as execute
from tests.ptx.text import PtxError, kernel_named
from tests.ptx.translate import program

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "ptx-cache"
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
        return "nvcc was not found (pip install 'ldpkernels[test]' brings it on Linux)"
    return ""


def _headers() -> list[str]:
    found = next(spec for name in ("pybind11", "torch") if (spec := importlib.util.find_spec(name)))
    return [str(Path(str(found.origin)).parent / "include"), sysconfig.get_path("include")]


def compiled(arch: int) -> tuple[Path, str]:
    """The module and its PTX, made once for these sources."""
    sources = [*sorted((ROOT / "csrc").rglob("*.*")), Path(__file__).with_name("cudart.cpp")]
    flags = [*NVCC_FLAGS, f"-gencode=arch=compute_{arch},code=compute_{arch}", "-cudart=none", "-shared"]
    flags += ["-Xcompiler=-fPIC,-O0", *(f"-I{folder}" for folder in _headers())]
    told = [run_tool("nvcc", "--version"), sys.version, *flags]
    digest = hashlib.sha256("\n".join([*told, *(path.read_text() for path in sources if path.is_file())]).encode())
    folder = CACHE / f"cuda-{digest.hexdigest()[:24]}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}-{os.getpid()}")
        part.mkdir(parents=True)
        inputs = [str(ROOT / "csrc/cuda/module.cu"), str(Path(__file__).with_name("cudart.cpp"))]
        run_tool("nvcc", *flags, "--keep", f"--keep-dir={part}", "-o", str(part / "_cuda.so"), *inputs)
        for path in part.iterdir():
            if path.name not in ("module.ptx", "_cuda.so"):
                path.unlink()
        try:
            part.rename(folder)
        except OSError:  # another process was faster
            for path in part.iterdir():
                path.unlink()
            part.rmdir()
    return folder / "_cuda.so", (folder / "module.ptx").read_text()


class Machine:
    """The module, and what its launches do: they are executed, and may touch what `touching` names."""

    def __init__(self, arch: int) -> None:
        path, self.ptx = compiled(arch)
        loader = importlib.machinery.ExtensionFileLoader("ldpkernels._cuda", str(path))
        self.module: Any = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(self.module)
        self.programs: dict[str, Program] = {}
        self.launches: Counter[str] = Counter()
        self.regions: list[tuple[int, int]] = []
        self.error: Exception | None = None
        self._launched = LAUNCHED(self._execute)
        ctypes.CDLL(str(path)).on_launch(self._launched)

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

    def call(self, name: str, regions: Iterable[tuple[int, int]], *arguments: object) -> Any:
        """A function of the module, on the device that is not there; its launches may touch these regions."""
        self.regions, self.error = list(regions), None
        try:
            return getattr(self.module, name)(*arguments, 0, 0)
        except RuntimeError:
            if self.error is not None:
                raise self.error from None
            raise
        finally:
            self.regions = []

    def launch(self, kernel: str, output: str, spans: Spans, laws: Laws, key: Words) -> None:
        """A mechanism's kernel over spans of the host's memory."""
        regions = [*reached(spans, output), (key.ctypes.data, key.ctypes.data + key.nbytes)]
        self.call("launch", regions, kernel, output, spans, laws, key.ctypes.data, key.size)


def reached(spans: Spans, output: str) -> Iterator[tuple[int, int]]:
    """The memory of a table's tensors and outputs, to the byte."""
    for span in spans:
        n = int(span["numel"])
        yield int(span["data"]), int(span["data"]) + n * ITEM[int(span["dtype"])]
        each = {"bits": -(-n // 8), "cells": n, "thresholds": 8 * n}
        size = each.get(output, 8 * n if span["dtype"] == INTEGERS else 0)
        yield int(span["out"]), int(span["out"]) + size


@cache
def machine(arch: int = 90) -> Machine:
    """The module for an architecture, compiled and loaded once in a process."""
    return Machine(arch)


def _call_cuda(here: Machine, name: str, *arguments: Any) -> None:
    """What the package asks of the module, with the memory that it may touch."""
    if name == "launch":
        kernel, output, spans, laws, key, words = arguments
        here.call(name, [*reached(spans, output), (key, key + 4 * words)], *arguments)
    elif name == "clipped_sums":
        spans, limits, rows, *_, key, words, norms, workspace = arguments
        regions = [(key, key + 4 * words), (norms, norms + 8 * rows * len(limits))]
        regions.append((workspace, workspace + 8 * here.module.clipped_workspace(spans, rows, len(limits))))
        for span in spans:
            item, n = ITEM[int(span["dtype"])], int(span["numel"])
            regions.append((int(span["data"]), int(span["data"]) + rows * n * item))
            regions.append((int(span["out"]), int(span["out"]) + n * (8 if item == 8 else 4)))
        here.call(name, regions, *arguments)
    elif name == "next_key":
        state, out = arguments
        here.call(name, [(state, state + 40), (out, out + 32)], state, out)
    else:
        raise AttributeError(name)


@contextmanager
def taking_tensors_of_the_host(here: Machine) -> Iterator[ModuleType]:
    """The package then counts CUDA C++ among its backends, for tensors of the host."""
    kept = capabilities._found, capabilities._interpreting, capabilities.able, sys.modules.get("ldpkernels._cuda")
    called = dispatch.call_cuda, device_keys.call_cuda
    known = here.module.MECHANISMS | {"clipped_noise", "next_key"}

    def able(kernel: str, device: str, index: int | None = None) -> tuple[str, ...]:
        return (*capabilities._ALWAYS, *(("cuda",) if kernel in known else ()))

    def call(name: str, device: Any, *arguments: object) -> None:
        _call_cuda(here, name, *arguments)

    capabilities._found, capabilities.able = lambda interpreter: ("cuda",), able
    dispatch.call_cuda = device_keys.call_cuda = call
    sys.modules["ldpkernels._cuda"] = ldpkernels._cuda = here.module
    try:
        yield here.module
    finally:
        capabilities._found, capabilities._interpreting, capabilities.able = kept[:3]
        dispatch.call_cuda, device_keys.call_cuda = called
        del ldpkernels._cuda
        if kept[3] is None:
            del sys.modules["ldpkernels._cuda"]
        else:
            sys.modules["ldpkernels._cuda"] = ldpkernels._cuda = kept[3]


def names(ptx: str) -> list[str]:
    """The kernels of a module."""
    return re.findall(r"^\.visible \.entry ([$\w]+)\(", ptx, re.M)
