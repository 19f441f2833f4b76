# SPDX-License-Identifier: Apache-2.0
"""Packages that are used where they are installed. Importing ldpkernels imports none of them.

A tensor exists only where torch was imported, so asking whether something is one never imports torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    import torch

# What pyproject.toml asks for: the lowest that is tested, with the Triton that comes with it. 2.6 and older lack what
# operations are registered by; 2.8 passes the tests on a CPU.
LOWEST_TORCH = (2, 11)
# Extras that an older Python leaves out without a word, as no version of theirs is for it.
LOWEST_PYTHON = {"flower": (3, 11)}


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a package at its first use; the error names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        lowest, here = LOWEST_PYTHON.get(extra, (3,)), sys.version_info[:2]
        if here < lowest:
            needed, found = (".".join(map(str, version)) for version in (lowest, here))
            raise ImportError(f"{purpose} needs {package}, which needs Python {needed}: this is {found}") from error
        raise ImportError(f"{purpose} needs {package}: pip install 'ldpkernels[{extra}]'") from error


def refuse_old_torch(version: str) -> None:
    """Refuse a torch that is too old, before anything is registered or written."""
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < LOWEST_TORCH:
        lowest = ".".join(map(str, LOWEST_TORCH))
        raise ImportError(f"ldpkernels needs torch {lowest} or newer, and this is {version}: upgrade torch")


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether `value` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_module(value: object) -> TypeGuard[torch.nn.Module]:
    """Whether `value` is a torch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_compiling() -> bool:
    """Whether torch.compile is tracing this call: checks are then the operation's, when it runs."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())
