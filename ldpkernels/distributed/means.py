# SPDX-License-Identifier: Apache-2.0
"""The mean of what the ranks report, by one all_reduce of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsFloat

import torch
import torch.distributed as dist

from ldpkernels.arrays import AnyArray
from ldpkernels.inputs.agreement import Statement, agreed
from ldpkernels.inputs.containers import Buffers, Numbers, Weights
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.keys import Generator, Key, numpy_key
from ldpkernels.laws.registry import MechanismName
from ldpkernels.ops.keys import torch_key
from ldpkernels.ops.shards import unpacked
from ldpkernels.perturb import report
from ldpkernels.reports import Report, contained

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ldpkernels.expectation import Mean


def mean(
    model: Weights,
    C: Numbers,
    R: Numbers,
    eps: SupportsFloat,
    *,
    mechanism: MechanismName = "two-point",
    generator: Generator = None,
    buffers: Buffers | None = None,
    group: ProcessGroup | None = None,
) -> Mean:
    """The mean of the updates of all ranks of a group, each randomised on its own rank before anything leaves it.

    Every rank reports its own model as `ldpkernels.report` does, the numbers of the reports are added by `all_reduce`
    as integers, and every rank decodes the sum: the bits are those of `ldpkernels.aggregate` of the reports. **The
    guarantee is that of a report**, and no better for the sum: ranks meet one another's numbers on the way.

    All ranks of the group call together, and first compare what they pass: where one rank differs or cannot go on, all
    raise, and nothing was sent. Not for DistributedDataParallel, whose ranks hold one update: one report of it is
    enough. A model sharded over the ranks is one client's: `report` takes it.

    Args:
        model, C, R, eps, mechanism, buffers: As for `ldpkernels.report`. Names, shapes and ranges are the same on all
            ranks, and dtypes but for fp64; weights are each rank's own.
        generator: None for a key from the operating system on every rank. A key or a seeded generator is folded with
            the rank in the group, `key.fold_in(rank)`: every rank may pass the same and still draws noise of its own.
        group: The process group; None is the default one. On a GPU with NCCL nothing but a message of 4 kB that the
            ranks compare is copied to the host.

    Returns:
        The mean, in the model's container, on the model's device: `ldpkernels.load(model, mean)` writes it.

    It needs a byte a weight for up to 255 ranks and one-bit reports, else four, while it runs.

    >>> import torch, ldpkernels.distributed
    >>> torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    >>> update = {"w": torch.full((100_000,), 0.5)}
    >>> round(float(ldpkernels.distributed.mean(update, C=0.0, R=1.0, eps=4.0)["w"].mean()), 1)
    0.5
    >>> torch.distributed.destroy_process_group()
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("torch.distributed is not initialized: call torch.distributed.init_process_group first")
    members = dist.group.WORLD if group is None else group
    if members is None or dist.get_rank(members) < 0:
        raise ValueError("this rank is not in the group: call mean on the group's ranks alone")
    rank, ranks = dist.get_rank(members), dist.get_world_size(members)

    def prepare() -> tuple[Report, Statement]:
        if is_sharded(model):
            raise TypeError(
                "model holds DTensors, of which every rank has a part: it is one client's, so that report(model, ...) "
                "makes its report; to add up several such models pass the full_tensor() of each"
            )
        own = report(model, C, R, eps, mechanism=mechanism, generator=_own(generator, rank), buffers=buffers)
        device = own.payload.device if isinstance(own.payload, torch.Tensor) else torch.device("cpu")
        if dist.get_backend(members) == "nccl" and device.type != "cuda":
            raise ValueError(f"model is on the {device.type} and the group's backend is nccl: move it, or use gloo")
        layout = own.layout
        said = {
            "the call": "mean",
            "eps": layout.eps,
            "mechanism": mechanism,
            "names": layout.names,
            "shapes": layout.shapes,
            "dtypes": layout.dtypes,
            "C": layout.c,
            "R": layout.r,
            "the device": device.type,
        }
        return own, said

    own, _ = agreed([members], prepare)
    return _decoded(own, _sums(own, ranks, members), ranks)


def _sums(own: Report, ranks: int, group: ProcessGroup) -> torch.Tensor:
    """The sums of all ranks' numbers, for every place of a report."""
    payload = own.payload if isinstance(own.payload, torch.Tensor) else torch.from_numpy(own.payload)
    bits = own.layout.codec.numbers_a_byte == 8
    numbers = unpacked(payload) if bits else payload
    if not bits or ranks > 255:
        numbers = numbers.to(torch.int32 if ranks < 2**23 else torch.int64)
    dist.all_reduce(numbers, group=group)
    return numbers


def _decoded(own: Report, sums: torch.Tensor, ranks: int) -> Mean:
    """The mean, decoded where the sums are, in the operations of `Aggregate.mean`."""
    layout, means = own.layout, []
    places = layout.codec.offsets(layout.sizes)
    for i, (offset, step) in enumerate(layout.decoding):
        first = places[i] * layout.codec.numbers_a_byte
        flat = sums[first : first + layout.sizes[i]].to(torch.float64).mul_(step / ranks).add_(offset)
        means.append(flat.to(getattr(torch, layout.dtypes[i])).reshape(layout.shapes[i]))
    values: list[AnyArray] = [*means]
    if layout.library == "numpy":
        values = [one.numpy() for one in means]
    return contained(layout, values)


def _own(generator: Generator, rank: int) -> Generator:
    """A generator for this rank: what is the same on all ranks must not draw the same."""
    if generator is None or isinstance(generator, str):
        return generator
    if isinstance(generator, Key):
        return generator.fold_in(rank)
    if isinstance(generator, (torch.Tensor, torch.Generator)):
        device = generator.device
        words = torch_key(generator, device).tolist()
        return Key(tuple(word % 2**64 for word in words)).fold_in(rank)
    return numpy_key(generator).fold_in(rank)
