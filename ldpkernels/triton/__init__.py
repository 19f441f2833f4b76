# SPDX-License-Identifier: Apache-2.0
"""The kernels in Triton: for GPUs where the package was built without CUDA C++. The bits are those of every backend.

`values`, `bits` and `thresholds` take the tables of `ldpkernels._native` (SPAN, LAWS) and a key tensor on the
device of the weights, and `run_cells` those of piecewise and hybrid; `keystream` gives a key's words.

Without a GPU, Triton's interpreter runs them on CPU tensors: slow, and for tests. It is on if TRITON_INTERPRET=1 was
set before triton was first imported; triton decides at import, so this package imports it only when a kernel is called.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

__all__ = ["available", "bits", "keystream", "run_cells", "thresholds", "values"]


def available() -> bool:
    """Whether the kernels can run here: on a CUDA device, or in the interpreter."""
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
        return False
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True
    import torch

    return torch.cuda.is_available()


def __getattr__(name: str) -> Any:
    if name in ("bits", "keystream", "thresholds", "values"):
        return getattr(importlib.import_module("ldpkernels.triton.launch"), name)
    if name == "run_cells":
        return importlib.import_module("ldpkernels.triton.launch_cells").run_cells
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
