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

    from ldpkernels import _cuda

    key = torch.zeros(1, dtype=torch.int64, device=f"cuda:{device}")
    out = torch.empty(4, dtype=torch.int32, device=key.device)
    stream = torch.cuda.current_stream(key.device).cuda_stream
    _cuda.keystream(key.data_ptr(), 2, 0, 0, 1, out.data_ptr(), device, stream)
