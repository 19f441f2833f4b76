# SPDX-License-Identifier: Apache-2.0
"""A device's own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ldpkernels.common import capabilities
from ldpkernels.common.gpu import call_cuda
from ldpkernels.launch import proved

if TYPE_CHECKING:
    import torch


def next_key(state: torch.Tensor, device: str) -> torch.Tensor:
    """The key that a state of `ldpkernels.ops.keys` gives next, on its device; the state moves on by one."""
    name = capabilities.chosen("next_key", device, state.device.index)
    if proved.proved(name, "next_key", "keys", ["int64"], "chacha20", state.device) == "cuda":
        import torch

        key = torch.empty(4, dtype=torch.int64, device=state.device)
        call_cuda("next_key", state.device, state.data_ptr(), key.data_ptr())
        return key
    from ldpkernels.triton.next_key import next_key as on_triton

    return on_triton(state)
