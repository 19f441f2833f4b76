# SPDX-License-Identifier: Apache-2.0
"""A device's own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ldpkernels import capabilities
from ldpkernels.gpu import call_cuda

if TYPE_CHECKING:
    import torch


def next_key(state: torch.Tensor, device: str) -> torch.Tensor:
    """The key that a state of `ldpkernels.ops.keys` gives next, on its device; the state moves on by one."""
    if capabilities.chosen("next_key", device, state.device.index) == "cuda":
        import torch

        key = torch.empty(4, dtype=torch.int64, device=state.device)
        call_cuda("next_key", state.device, state.data_ptr(), key.data_ptr())
        return key
    from ldpkernels.triton.next_key import next_key as on_triton

    return on_triton(state)
