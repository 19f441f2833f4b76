# SPDX-License-Identifier: Apache-2.0
"""The kernels of csrc/cuda, compiled to run lane by lane on the host."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.once import made_once

FOLDER = Path(__file__).resolve().parent / "cuda"
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared"]


def compiled(source: str, factory: pytest.TempPathFactory) -> Any:
    """The function `emulate` of a file of tests/cuda."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def build(path: Path) -> None:
        subprocess.run([compiler, *FLAGS, "-o", str(path), str(FOLDER / source)], check=True, capture_output=True)

    library = made_once(factory, f"{Path(source).stem}.so", build)
    return ctypes.CDLL(str(library)).emulate
