# SPDX-License-Identifier: Apache-2.0
# What CMake makes of an nvcc, by one that only answers questions: it is as far as a machine without CUDA can look.
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[1]
KNOWN = (75, 80, 86, 89, 90, 100, 120, 121)


@pytest.mark.parametrize(
    ("release", "known", "said"),
    [
        ("12.0", KNOWN[:5], "nvcc is 12.0, and 12.1"),
        ("12.4", KNOWN[:5], "nvcc 12.4, 80-real;90-real;90-virtual"),
        ("13.0", KNOWN, "nvcc 13.0, 80-real;90-real;100-real;120-real;120-virtual"),
    ],
)
def test_an_old_nvcc_is_refused_and_newer_ones_compile_what_they_know(tmp_path, release, known, said):
    if shutil.which("cmake") is None:
        pytest.skip("cmake not found")
    nvcc = tmp_path / "nvcc"
    architectures = "\n".join(f"compute_{number}" for number in known)
    nvcc.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"--version) echo 'Cuda compilation tools, release {release}, V{release}.1';;\n"
        f"--list-gpu-arch) echo '{architectures}';;\n"
        "*) exit 1;;\nesac\n"
    )
    nvcc.chmod(0o755)
    headers = Path(torch.__file__).parent / "include"
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), f"-DPython_EXECUTABLE={sys.executable}"]
    command += [f"-DPYBIND11_INCLUDE_DIR={headers}", "-DLDPKERNELS_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0  # this one compiles nothing
    assert said in " ".join((done.stdout + done.stderr).split()), done.stdout + done.stderr
