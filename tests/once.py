# SPDX-License-Identifier: Apache-2.0
"""What is dear to make is made once for a run of tests, however many processes run them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The path of a file that `make` writes; who asks meanwhile waits."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    path, part = folder / name, folder / f"part-{name}"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(part)
            part.rename(path)
    return path
