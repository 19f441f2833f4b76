# SPDX-License-Identifier: Apache-2.0
# Triton decides at import whether it interprets, so this comes before any test imports it. Where it was imported
# already without the interpreter and there is no GPU, the tests that run kernels are skipped. Other tests and their
# subprocesses do not see the variable.
import importlib.util
import os
import sys

import pytest

INTERPRET = False
HAVE_TRITON = importlib.util.find_spec("triton") is not None and importlib.util.find_spec("torch") is not None
if HAVE_TRITON:
    import torch

    if not torch.cuda.is_available() and "triton" not in sys.modules:
        INTERPRET = "TRITON_INTERPRET" not in os.environ
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_finish():
    if INTERPRET:
        os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture(autouse=True)
def _interpret(monkeypatch):
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def device():
    """Where the kernels run: the GPU, or the CPU by the interpreter."""
    if not HAVE_TRITON:
        pytest.skip("triton is not installed")
    if torch.cuda.is_available():
        return "cuda"
    from triton import language as tl

    if os.environ.get("TRITON_INTERPRET") != "1" or hasattr(tl.zeros_like, "cache_key"):
        pytest.skip("triton was imported without TRITON_INTERPRET=1")
    return "cpu"
