# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.conftest import EXECUTED, INTERPRETED

if EXECUTED:
    from tests.ptx.device import install, taking_tensors_of_the_host

    install(EXECUTED)


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    """The package then counts Triton among its backends."""
    if INTERPRETED:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    if not EXECUTED:
        yield
        return
    with taking_tensors_of_the_host():
        yield


@pytest.fixture
def device():
    """Where the kernels run: the GPU, or the CPU by the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"
