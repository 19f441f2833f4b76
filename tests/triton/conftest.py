# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.conftest import INTERPRETED


@pytest.fixture(autouse=True)
def _interpret(monkeypatch):
    """The package then counts Triton among its backends."""
    if INTERPRETED:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def device():
    """Where the kernels run: the GPU, or the CPU by the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"
