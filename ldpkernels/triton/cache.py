# SPDX-License-Identifier: Apache-2.0
"""Where Triton keeps compiled kernels: in the user's home, or where that cannot be written, in a temporary folder."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

import triton


@lru_cache(maxsize=1)
def make_writable() -> None:
    """Give this process a cache that it can write."""
    folder = Path(triton.knobs.cache.dir)
    if _can_write(folder):
        return
    temporary = tempfile.mkdtemp(prefix="ldpkernels-triton-")
    atexit.register(_remove, temporary, os.getpid())
    triton.knobs.cache.dir = temporary
    warnings.warn(
        f"Triton's cache {folder} cannot be written: this process compiles its kernels anew, into {temporary}. Set "
        "TRITON_CACHE_DIR to a folder that can be",
        RuntimeWarning,
        stacklevel=2,
    )


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and no forked child
        shutil.rmtree(folder, ignore_errors=True)


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
