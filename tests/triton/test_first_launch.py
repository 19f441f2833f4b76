# SPDX-License-Identifier: Apache-2.0
# What a first call compiles and launches on a GPU, without one. For all: python -m benchmarks.gpu.first_launch
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]


SCRIPT = """
import sys, torch
from ldpkernels.triton import launch
try:
    launch.check_reach(torch.device("cpu"))
except RuntimeError as error:
    print(error)
from benchmarks.gpu import first_launch
sys.exit(first_launch.main())
"""


def test_where_kernels_run_on_a_device_the_host_is_refused_and_keys_compile_without_one(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", SCRIPT, "--kernel", "next_key"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    refused, row = done.stdout.splitlines()
    assert "TRITON_INTERPRET=1 was set before triton was first imported" in refused
    assert (row.split()[4:6], row.split()[-2:]) == (["1", "kernels"], ["3", "launches"])


@pytest.fixture
def launcher(monkeypatch):
    """Of a kernel of a pointer, a number of 32 bits and a constant."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    from benchmarks.gpu import first_launch

    def made(scratch=0):
        metadata = namedtuple("Metadata", ["global_scratch_size", "shared"])(scratch, 0)
        signature = {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}
        fn = SimpleNamespace(__name__="kernel")
        return first_launch.Launcher(SimpleNamespace(fn=fn, signature=signature), metadata)

    return made


@pytest.mark.parametrize(
    ("grid", "x", "n", "error"),
    [
        ((2**31 - 1, 1, 1), torch.zeros(1), 2**31 - 1, None),
        ((2**31, 1, 1), torch.zeros(1), 1, "grid"),
        ((1, 65_536, 1), torch.zeros(1), 1, "grid"),
        ((0, 1, 1), torch.zeros(1), 1, "grid"),
        ((1, 1, 1), torch.zeros(1), 2**31, "takes i32"),
        ((1, 1, 1), 12_345, 1, r"takes \*fp32"),
    ],
)
def test_what_a_device_refuses_is_refused(launcher, grid, x, n, error):
    arguments = (*grid, 0, 1, (), None, None, None, x, n, 256)
    if error is None:
        launcher()(*arguments)
        return
    with pytest.raises((ValueError, TypeError), match=error):
        launcher()(*arguments)


def test_memory_that_a_launch_would_allocate_is_refused(launcher):
    with pytest.raises(RuntimeError, match="needs memory that nobody allocates"):
        launcher(scratch=1024)
