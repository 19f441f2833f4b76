# SPDX-License-Identifier: Apache-2.0
"""What a rank is in its group, and the randomness that is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from ldpkernels.common.keys import Generator, is_secure, numpy_key
from ldpkernels.inputs.containers import Weights
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.ops.keys import torch_key_on_host

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

WORD = 32  # bits of an integer that all_reduce adds: gloo and NCCL add none of 16


class Place(NamedTuple):
    """A group, and this rank's place in it."""

    group: ProcessGroup
    rank: int
    ranks: int


def place_in(group: ProcessGroup | None) -> Place:
    """This rank's place in a group; None is the default one."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("torch.distributed is not initialized: call torch.distributed.init_process_group first")
    members = dist.group.WORLD if group is None else group
    if members is None or dist.get_rank(members) < 0:
        raise ValueError("this rank is not in the group: call mean on the group's ranks alone")
    return Place(members, dist.get_rank(members), dist.get_world_size(members))


def own_generator(generator: Generator, *numbers: int) -> Generator:
    """A generator folded with these numbers: what all ranks or rounds share must not draw the same."""
    if is_secure(generator):
        return generator
    if isinstance(generator, (torch.Tensor, torch.Generator)):
        key = torch_key_on_host(generator, generator.device)
    else:
        key = numpy_key(generator)
    for number in numbers:
        key = key.fold_in(number)
    return key


def refuse_sharded(model: Weights) -> None:
    """Refuse a model of which every rank has a part: the ranks have one update and not one each."""
    if is_sharded(model):
        raise TypeError(
            "model holds DTensors, of which every rank has a part of one client's model: call report(model, ...) for "
            "its report, or pass the full_tensor() of each model to add up several"
        )
