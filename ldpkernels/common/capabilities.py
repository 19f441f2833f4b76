# SPDX-License-Identifier: Apache-2.0
"""Which kernels run. They all give the same bits, so this is a matter of speed and of checking.

One rule: what a caller forces is what runs, or an error says what could. Without force it is the first that is able.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from functools import lru_cache

from ldpkernels import _native
from ldpkernels.common.gpu import runs_cuda

_forced: ContextVar[str | None] = ContextVar("ldpkernels_backend", default=None)
_ISAS = _native.isas()
_ALWAYS = (*_ISAS, "reference")  # they have every kernel


def backends() -> tuple[str, ...]:
    """The backends of this machine, those that run by default first.

    Those of the CPU are named after instruction sets ("avx512", "avx2", "neon", "scalar"). "reference" is slow and easy
    to read. "cuda" and "triton" need a GPU; "triton" also runs on the CPU if TRITON_INTERPRET=1.

    >>> "reference" in backends()
    True
    """
    return (*_gpu_backends(), *_ALWAYS)


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Run every call in the block on one backend. LDPKERNELS_BACKEND does so for a whole process.

    >>> import numpy as np, ldpkernels
    >>> with ldpkernels.backend("reference"):
    ...     slow = ldpkernels.perturb_(np.zeros(3), 0.0, 1.0, eps=1.0, generator=ldpkernels.key(0))
    >>> fast = ldpkernels.perturb_(np.zeros(3), 0.0, 1.0, eps=1.0, generator=ldpkernels.key(0))
    >>> bool((slow == fast).all())
    True
    """
    token = _forced.set(_known(name))
    try:
        yield
    finally:
        _forced.reset(token)


def able(kernel: str, device: str, index: int | None = None) -> tuple[str, ...]:
    """The capability table: the backends that run a kernel on a type of device, the fastest first.

    The instruction sets, the reference and Triton have every kernel; CUDA C++ has those of its module, on devices
    (`index` says which) and drivers that are not older than it is.
    """
    if device == "cuda":
        found = _gpu_backends()
        if "cuda" in found and (kernel not in _cuda_kernels() or not (index is None or runs_cuda(index))):
            return tuple(name for name in found if name != "cuda")
        return found
    if device == "cpu":
        return (*_ALWAYS, "triton") if _interpreting() and "triton" in _gpu_backends() else _ALWAYS
    raise ValueError(f"tensors on {device!r} are not supported: move them to 'cpu' or 'cuda'")


@contextlib.contextmanager
def on_the_host() -> Iterator[None]:
    """Run the work in the block on the host, which alone can do it: a forced backend of a GPU stands aside."""
    name = forced()
    with backend(name if name in _ALWAYS else _ALWAYS[0]):
        yield


def offers(name: str, kernel: str) -> bool:
    """Whether a backend runs a kernel on some device of this machine."""
    return any(name in able(kernel, device) for device in ("cpu", "cuda"))


def chosen(kernel: str, device: str, index: int | None = None) -> str:
    """The backend for a kernel on a type of device: the forced one if it is able, else the fastest."""
    name = forced()
    if name is None and device == "cpu":
        return _ALWAYS[0]
    candidates = able(kernel, device, index)
    if not candidates:
        raise RuntimeError("tensors on 'cuda' need the CUDA backend (build with nvcc) or Triton (pip install triton)")
    if name is None:
        return candidates[0]
    if name not in candidates:
        raise ValueError(
            f"backend {name!r} runs no {kernel!r} kernel on {device!r} here: use one of {', '.join(candidates)}"
        )
    return name


def forced() -> str | None:
    """The backend that the caller or the environment asks for."""
    name = _forced.get() or _native.environment("LDPKERNELS_BACKEND")
    return _known(name) if name else None


def counts_reports(device: str) -> bool:
    """Whether Triton counts the reports that lie on a type of device; a forced backend that cannot stands aside."""
    return "triton" in able("tally", device) and (device != "cpu" or forced() == "triton")


def host_isa() -> str:
    """The instruction set for work that only the CPU does: the forced one, else the best."""
    name = forced()
    return name if name in _ISAS else _ISAS[0]


def chosen_isa(kernel: str) -> str | None:
    """The instruction set that runs a kernel on the host; None where another backend is forced."""
    name = chosen(kernel, "cpu")
    return name if name in _ISAS else None


def threads() -> int:
    """How many CPU threads a large call may use: torch's setting where torch is in use."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _known(name: str) -> str:
    if name not in _ALWAYS and name not in backends():  # the second question may import torch
        raise ValueError(f"backend {name!r} is not available here: use one of {', '.join(backends())}")
    return name


def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _gpu_backends() -> tuple[str, ...]:
    return _found(_interpreting())


@lru_cache(maxsize=2)
def _found(interpreter: bool) -> tuple[str, ...]:
    if not importlib.util.find_spec("torch"):
        return ()
    import torch

    gpu = torch.cuda.is_available()
    found = ["cuda"] if gpu and _loads_cuda() else []
    if (gpu or interpreter) and importlib.util.find_spec("triton"):
        found.append("triton")
    return tuple(found)


def _loads_cuda() -> bool:
    if not importlib.util.find_spec("ldpkernels._cuda"):
        return False
    try:
        importlib.import_module("ldpkernels._cuda")
    except ImportError as error:  # a library that it needs is not here
        warnings.warn(f"the CUDA C++ kernels cannot be loaded: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


@lru_cache(maxsize=1)
def _cuda_kernels() -> frozenset[str]:
    from ldpkernels import _cuda

    return _cuda.MECHANISMS | {"clipped_noise", "next_key"}
