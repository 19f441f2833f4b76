# SPDX-License-Identifier: Apache-2.0
# Whether the CUDA C++ kernels run on a device, with what a driver may answer. tests/gpu asks a device.
import contextlib
import sys
import types

import pytest
import torch

from ldpkernels.common import gpu


@contextlib.contextmanager
def guard(current, index):
    """torch's: the device is the current one within."""
    current.append(index)
    try:
        yield
    finally:
        current.pop()


@pytest.fixture
def module(monkeypatch):
    """A CUDA module whose launches `answer` decides, with tensors on the CPU for a device's."""
    calls, current = [], [0]

    def keystream(*arguments):
        calls.append((*arguments, current[-1]))
        if fake.error:
            raise fake.error

    fake = types.SimpleNamespace(keystream=keystream, error=None, calls=calls)
    monkeypatch.setitem(sys.modules, "ldpkernels._cuda", fake)
    monkeypatch.setattr("ldpkernels._cuda", fake, raising=False)
    zeros, empty = torch.zeros, torch.empty
    monkeypatch.setattr(torch, "zeros", lambda *size, dtype, device: zeros(*size, dtype=dtype))
    monkeypatch.setattr(torch, "empty", lambda *size, dtype, device: empty(*size, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: types.SimpleNamespace(cuda_stream=5))
    monkeypatch.setattr(torch.cuda, "device", lambda index: guard(current, index))
    gpu.runs_cuda.cache_clear()
    yield fake
    assert current == [0]
    gpu.runs_cuda.cache_clear()


def test_a_device_is_asked_once(module):
    assert gpu.runs_cuda(0)
    assert gpu.runs_cuda(0)
    assert gpu.runs_cuda(1)
    assert [call[-3:] for call in module.calls] == [(0, 5, 0), (1, 5, 1)]  # each where it is the current device


@pytest.mark.parametrize("reason", ["no kernel image is available", "CUDA driver version is insufficient"])
def test_where_a_launch_fails_it_is_said_once(module, reason):
    module.error = RuntimeError(f"CUDA: cannot launch the keystream kernel: {reason}")
    with pytest.warns(RuntimeWarning, match=f"'cuda:3', where Triton's are used: .*{reason}"):
        assert not gpu.runs_cuda(3)
    assert not gpu.runs_cuda(3)


def test_a_device_without_memory_is_asked_again(module):
    module.error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError):
        gpu.runs_cuda(0)
    module.error = None
    assert gpu.runs_cuda(0)
