# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels.majority_vote`."""

from __future__ import annotations

import torch

from ldpkernels import launch
from ldpkernels.inputs.ballots import checked_classes, refuse_strangers
from ldpkernels.ops.define import define


def _majority_vote(votes: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    classes, votes = checked_classes(votes, classes), votes.contiguous()
    found = launch.majority_vote(votes, classes, votes.device.type)
    if found is None:
        refuse_strangers(votes.numpy(), classes)
    labels, keep = (torch.as_tensor(one) for one in found or ())
    return labels, keep


def _fake(votes: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    samples = votes.shape[1]
    return votes.new_empty(samples), votes.new_empty(samples, dtype=torch.bool)


majority_vote = define(
    "majority_vote(Tensor votes, int classes) -> (Tensor labels, Tensor keep)", _majority_vote, _fake, keyed=False
)
