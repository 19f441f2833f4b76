# SPDX-License-Identifier: Apache-2.0
"""What a GPU can run, asked of it once."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def capturing(device: torch.device) -> bool:
    """Whether the current stream records a CUDA graph."""
    import torch

    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def call_cuda(name: str, device: torch.device, *arguments: object) -> None:
    """Call a function of the CUDA C++ module, whose last arguments are a device's number and its current stream.

    The device is the current one meanwhile, by torch's guard: it leaves a device that nobody has used as it is, where
    the runtime's own would make a context, of hundreds of megabytes, when it goes back to it.
    """
    import torch

    from ldpkernels import _cuda

    stream = torch.cuda.current_stream(device).cuda_stream
    with torch.cuda.device(device.index):
        getattr(_cuda, name)(*arguments, device.index, stream)


@cache
def runs_cuda(device: int) -> bool:
    """Whether the CUDA C++ kernels run on a device: it may be older than they are, or its driver than their runtime.

    Nothing waits for the device, so that the question may be asked in a capture.
    """
    import torch

    try:
        _launch_one(device)
    except torch.OutOfMemoryError:
        raise
    except (ImportError, RuntimeError) as error:
        warnings.warn(
            f"the CUDA C++ kernels do not run on 'cuda:{device}', where Triton's are used: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def _launch_one(device: int) -> None:
    """The smallest kernel of the module: a block of a keystream."""
    import torch

    there = torch.device("cuda", device)
    key = torch.zeros(1, dtype=torch.int64, device=there)
    out = torch.empty(4, dtype=torch.int32, device=there)
    call_cuda("keystream", there, key.data_ptr(), 2, 0, 0, 1, out.data_ptr())
