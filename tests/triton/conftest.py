# SPDX-License-Identifier: Apache-2.0
# Triton decides at import whether it interprets, so this comes before any test imports it. Where it was imported
# already without the interpreter and there is no GPU, the tests that run kernels are skipped.
import importlib.util
import os
import sys

import pytest

HAVE_TRITON = importlib.util.find_spec("triton") is not None and importlib.util.find_spec("torch") is not None
if HAVE_TRITON:
    import torch

    if not torch.cuda.is_available() and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"


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
