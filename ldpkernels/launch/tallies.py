# SPDX-License-Identifier: Apache-2.0
"""Sums of reports on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ldpkernels.launch import proved

if TYPE_CHECKING:
    import torch

    from ldpkernels.triton.tally import BitTally, ByteTally


def tally(kind: Literal["bits", "bytes"], size: int, device: torch.device) -> BitTally | ByteTally:
    """A sum of no reports yet, of so many bytes each, by Triton's kernels."""
    proved.proved("triton", "tally", kind, ["uint8"], "none", device)
    from ldpkernels.triton import tally as kernels

    return (kernels.BitTally if kind == "bits" else kernels.ByteTally)(size, device)
