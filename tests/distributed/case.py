# SPDX-License-Identifier: Apache-2.0
"""How a case is registered, and what cases share."""

import itertools

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard

MECHANISMS = ("two-point", "piecewise", "hybrid", "sign")
C, R = 0.1, 0.4
CASES = {}  # by name: the function, and for how many ranks


def case(*ranks):
    """For so many ranks."""

    def add(function):
        CASES[function.__name__] = (function, ranks)
        return function

    return add


def common(value):
    """The first rank's."""
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def everyones(value):
    """That of every rank."""
    box = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def tensor_of(shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 0.5


def network(seed=0):
    """With sizes that divide evenly by nothing."""
    torch.manual_seed(seed)
    layers = torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3, bias=False), torch.nn.Linear(3, 9)
    return torch.nn.Sequential(*layers)


def placements(dimensions, mesh):
    return list(itertools.product([Replicate(), *map(Shard, range(dimensions))], repeat=mesh.ndim))
