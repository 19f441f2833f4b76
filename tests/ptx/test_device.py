# SPDX-License-Identifier: Apache-2.0
"""What a device would refuse of a launch is refused."""

from collections import namedtuple
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.ptx.device import Launcher  # noqa: E402


@pytest.fixture
def launcher():
    """Of a kernel of a pointer, a number of 32 bits and a constant."""

    def made(scratch=0):
        metadata = namedtuple("Metadata", ["global_scratch_size", "shared", "num_warps"])(scratch, 0, 1)
        signature = {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}
        fn = SimpleNamespace(__name__="kernel")
        return Launcher(SimpleNamespace(fn=fn, signature=signature), metadata)

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
