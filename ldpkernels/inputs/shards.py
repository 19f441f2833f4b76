# SPDX-License-Identifier: Apache-2.0
"""Tensors of which every rank holds a part: DTensor, as fully_shard and tensor parallelism make them.

An element of a part goes by its number in the whole tensor, so that it meets the draws it would meet there. A part is
runs of elements whose numbers follow one another.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from ldpkernels.common.arrays import Integers
from ldpkernels.common.optional import is_compiling, is_module
from ldpkernels.inputs.checks import refuse_strange_kind, torch_dtype
from ldpkernels.inputs.modules import Modules
from ldpkernels.inputs.remains import is_fully_sharded, refuse_attributes, refuse_remains

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether `value` is a DTensor."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def is_sharded(model: object) -> bool:
    """Whether some tensor of a module, a mapping, a sequence or a tensor is a DTensor."""
    if "torch.distributed.tensor" not in sys.modules or is_compiling():
        return False
    return any(map(is_dtensor, _held(model)))


def _held(model: object) -> Sequence[object]:
    if is_module(model):
        return list(model.parameters())
    if isinstance(model, Mapping):
        return list(model.values())
    return model if isinstance(model, (list, tuple)) else [model]


def mesh_of(model: object) -> DeviceMesh:
    """The mesh of the first DTensor of a model that has one, if this rank is in it."""
    mesh: DeviceMesh = next(filter(is_dtensor, _held(model))).device_mesh
    if mesh.get_coordinate() is None:
        raise ValueError(f"this rank is not in the tensors' mesh {mesh}: call this on the mesh's ranks alone")
    return mesh


def groups_of(mesh: DeviceMesh) -> list[ProcessGroup]:
    """A mesh's groups of this rank, one for each dimension."""
    return [mesh.get_group(i) for i in range(mesh.ndim)]


def refuse_unvouched_parts(named: Sequence[tuple[str, object]], modules: Modules, whole: bool, keep: bool) -> None:
    """Raise for tensors that are no DTensor, or not of one mesh, and for what would leave with them unperturbed.

    `whole`: the tensors themselves may leave, and not a report of them.
    """
    parts: list[tuple[str, torch.Tensor]] = []
    mesh = None
    for name, tensor in named:
        if not is_dtensor(tensor):
            kinds: set[type] = {type(module) for _, module in modules}
            if any(is_fully_sharded(kind) for kind in kinds):
                raise TypeError(
                    f"tensor {name!r} is a {type(tensor).__name__} among DTensors of fully_shard, which has gathered "
                    "some or was told to leave it: call reshard() on the modules first, or pass the DTensors alone"
                )
            raise TypeError(
                f"tensor {name!r} is a {type(tensor).__name__} among DTensors, which says nothing of its copies on "
                "other ranks: distribute it (distribute_module does, with all that is left), or pass the DTensors alone"
            )
        mesh = mesh or tensor.device_mesh
        if tensor.device_mesh != mesh:
            raise ValueError(
                f"tensor {name!r} is on the mesh {tensor.device_mesh} and the first on {mesh}: make one call for each "
                "mesh"
            )
        part = part_of(name, tensor)
        parts.append((name, part.local))
        if whole:
            refuse_attributes(name, tensor)
            _refuse_rest(name, part.local)
    if whole and modules:
        refuse_remains(modules, parts, keep, sharded=True)


def _refuse_rest(name: str, local: torch.Tensor) -> None:
    """A file holds a whole storage. fully_shard fills those of uneven shards up with zeros, which say nothing."""
    import torch

    storage = local.untyped_storage()
    if storage.nbytes() <= local.nbytes:
        return
    everything = torch.empty(0, dtype=local.dtype, device=local.device).set_(storage)
    start = local.storage_offset()
    rest = [everything[:start], everything[start + local.numel() :]]
    if not local.is_contiguous() or any(bool(part.any()) for part in rest):
        raise ValueError(
            f"the part of tensor {name!r} is a view, and other numbers of its storage are not perturbed, which "
            "torch.save stores with it: make the DTensor from a clone"
        )


@dataclass(frozen=True)
class Part:
    """What this rank has of a tensor."""

    local: torch.Tensor
    starts: Integers  # of each run: the number in the whole tensor of its first element
    lengths: Integers
    first: bool  # of all ranks that have the same part, this one speaks for them

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Take this part's elements of another tensor, of the whole's shape."""
        import torch

        flat, runs = whole.detach().reshape(-1), zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
        taken = [flat[start : start + length] for start, length in runs]
        return (torch.cat(taken) if taken else flat[:0]).reshape(self.local.shape)


def part_of(name: str, tensor: DTensor) -> Part:
    """This rank's part, or an error where it cannot be told which elements it is."""
    import torch.distributed as dist

    local: torch.Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    refuse_strange_kind(name, local)
    torch_dtype(name, local)
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for placement in tensor.placements:
        if not placement.is_replicate() and not hasattr(placement, "_split_tensor"):
            raise ValueError(f"tensor {name!r} is {placement}, of no elements: redistribute it to Shard or Replicate")
    where = tuple(coordinate)
    if any(dist.get_rank(group) != at for group, at in zip(groups_of(mesh), where, strict=True)):
        raise ValueError(
            f"tensor {name!r} is on the mesh {mesh}, whose ranks are in another order than in its process groups, so "
            "that its parts may lie elsewhere: make the mesh with ascending ranks, as init_device_mesh does"
        )
    starts, lengths, shape = _runs(tuple(tensor.shape), tuple(mesh.shape), tuple(tensor.placements), where)
    if tuple(local.shape) != shape:
        raise ValueError(
            f"the part of tensor {name!r} has the shape {tuple(local.shape)} and by its placements {shape}: make the "
            "DTensor with the shape of the whole (DTensor.from_local(..., shape=, stride=))"
        )
    copies = zip(tensor.placements, where, strict=True)
    return Part(local, starts, lengths, all(at == 0 for placement, at in copies if placement.is_replicate()))


@lru_cache(maxsize=1024)
def _runs(
    shape: tuple[int, ...], mesh: tuple[int, ...], placements: tuple[Placement, ...], coordinate: tuple[int, ...]
) -> tuple[Integers, Integers, tuple[int, ...]]:
    """First elements and lengths of the runs, and the shape, of the part at a coordinate of the mesh."""
    kept = [_kept(dim, size, mesh, placements, coordinate) for dim, size in enumerate(shape)]
    local = tuple(len(one) for one in kept)
    cut = [dim for dim, size in enumerate(shape) if local[dim] != size]
    if not math.prod(local):
        return np.empty(0, np.int64), np.empty(0, np.int64), local
    if not cut:
        return np.zeros(1, np.int64), np.array([math.prod(shape)]), local
    last = cut[-1]
    rest = math.prod(shape[last + 1 :])
    begins = np.flatnonzero(np.diff(kept[last], prepend=kept[last][0] - 2) != 1)
    starts = kept[last][begins] * rest
    lengths = np.diff(np.append(begins, local[last])) * rest
    stride = shape[last] * rest
    for dim in reversed(range(last)):
        starts = (kept[dim][:, None] * stride + starts).ravel()
        stride *= shape[dim]
    return starts, np.tile(lengths, len(starts) // len(lengths)), local


def _kept(
    dim: int, size: int, mesh: Sequence[int], placements: Sequence[Placement], coordinate: Sequence[int]
) -> Integers:
    """Which indices of a dimension a part has: the placements split a list of them as they split the tensor."""
    import torch

    indices = torch.arange(size).reshape([1] * dim + [size])
    for count, placement, at in zip(mesh, placements, coordinate, strict=True):
        if placement.is_replicate() or getattr(placement, "dim", None) != dim:
            continue
        indices = placement._split_tensor(indices, count, with_padding=False)[0][at]  # type: ignore[attr-defined]
    found: Integers = indices.numpy().ravel()
    return found
