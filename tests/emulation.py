# SPDX-License-Identifier: Apache-2.0
"""The kernels of csrc/cuda, compiled to run lane by lane on the host."""

import ctypes
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ldpkernels.arrays import Laws, Spans, Words
from tests.once import made_once

FOLDER = Path(__file__).resolve().parent / "cuda"
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared"]


def compiled(source: str, factory: pytest.TempPathFactory) -> Any:
    """The function `emulate` of a file of tests/cuda."""
    return library(source, factory).emulate


def library(source: str, factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A file of tests/cuda, or of a folder beside it, as a library."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def build(path: Path) -> None:
        flags = [*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", ""))]  # tests/sanitize/run
        subprocess.run([compiler, *flags, "-o", str(path), str(FOLDER / source)], check=True, capture_output=True)

    return ctypes.CDLL(str(made_once(factory, f"{Path(source).stem}.so", build)))


def one_bit(mechanism: str, factory: pytest.TempPathFactory) -> Any:
    """run(output, spans, laws, key): a one-bit mechanism's CUDA kernels."""
    function = compiled("emulate.cpp", factory)
    address, size = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, address, address, size, address, ctypes.c_int, size]

    def run(output: str, spans: Spans, laws: Laws, key: Words, blocks: int = 1) -> None:
        tables = (spans.ctypes.data, laws.ctypes.data, len(spans), key.ctypes.data, len(key), blocks)
        function(mechanism.encode(), output.encode(), *tables)

    return run
