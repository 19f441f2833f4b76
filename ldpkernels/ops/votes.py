# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels.majority_vote`: schema, implementation and fake kernel."""

from __future__ import annotations

import torch

from ldpkernels import capabilities
from ldpkernels import votes as _votes
from ldpkernels.ops.two_point import _library

_library.define("majority_vote(Tensor votes, int classes) -> (Tensor labels, Tensor keep)")


def _majority_vote(votes: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    classes = _votes._checked(votes, classes)
    backend = capabilities.chosen(votes.device.type)
    votes = votes.contiguous()
    if backend == "triton" or votes.device.type == "cuda":  # there is no CUDA C++ twin
        from ldpkernels.triton import votes as triton_votes

        return triton_votes.majority_vote(votes, classes)
    labels, keep = _votes.run(votes.numpy(), classes, backend)
    return torch.from_numpy(labels), torch.from_numpy(keep)


def _fake(votes: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    samples = votes.shape[1]
    return votes.new_empty(samples), votes.new_empty(samples, dtype=torch.bool)


_library.impl("majority_vote", _majority_vote, "CPU")
_library.impl("majority_vote", _majority_vote, "CUDA")
torch.library.register_fake("ldpkernels::majority_vote", _fake, lib=_library)

majority_vote = torch.ops.ldpkernels.majority_vote

__all__ = ["majority_vote"]
