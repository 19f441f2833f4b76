# SPDX-License-Identifier: Apache-2.0
"""The mean of the ranks' updates, by one all_reduce of integers: of reports, or under shares of noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsFloat, overload

import torch
import torch.distributed as dist

from ldpkernels.calls.perturb import report
from ldpkernels.calls.reports import Report, contained
from ldpkernels.common.arrays import AnyArray
from ldpkernels.common.keys import Generator
from ldpkernels.distributed.group import Place, own_generator, place_in, refuse_sharded
from ldpkernels.distributed.shares import mean_of_shares
from ldpkernels.inputs.agreement import Statement, agreed, exchange
from ldpkernels.inputs.containers import Buffers, Numbers, Weights
from ldpkernels.laws.distributed import Shares
from ldpkernels.laws.registry import MechanismName
from ldpkernels.ops.shards import unpacked

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ldpkernels.calls.expectation import Mean


@overload
def mean(
    model: Weights,
    C: Numbers,
    R: Numbers,
    eps: SupportsFloat,
    *,
    mechanism: MechanismName = ...,
    generator: Generator = ...,
    buffers: Buffers | None = ...,
    group: ProcessGroup | None = ...,
) -> Mean: ...


@overload
def mean(
    model: Weights,
    *,
    law: Shares,
    secure: bool | None = ...,
    colluders: int = ...,
    round: int = ...,
    generator: Generator = ...,
    buffers: Buffers | None = ...,
    group: ProcessGroup | None = ...,
) -> Mean: ...


def mean(
    model: Weights,
    C: Numbers | None = None,
    R: Numbers | None = None,
    eps: SupportsFloat | None = None,
    *,
    mechanism: MechanismName = "two-point",
    law: Shares | None = None,
    secure: bool | None = None,
    colluders: int = 0,
    round: int = 0,
    generator: Generator = None,
    buffers: Buffers | None = None,
    group: ProcessGroup | None = None,
) -> Mean:
    """The mean of the updates of all ranks of a group, each randomised on its own rank before anything leaves it.

    With `C`, `R` and `eps`, every rank reports its own model as `ldpkernels.report` does, `all_reduce` adds the numbers
    of the reports as integers, and every rank decodes the sum. The bits are those of `ldpkernels.aggregate` of the
    reports. **The guarantee is that of a report**, between any two inputs for whoever sees it. It is no better for the
    sum, because ranks see one another's numbers on the way.

    With `law`, every rank adds its share of the law's noise (`ldpkernels.updates.encode`), and a mask for each other
    rank with keys of this call alone. The masks cancel in the sum, which is all that anyone sees. **The guarantee is
    `law.event`** for every call. It holds against whoever reads the mean or the wire, colludes with up to `colluders`
    ranks, and follows the protocol. Charge it to a rank's ledger before the call; a call that fails stays charged.
    Without masks (`secure=False`) it holds against readers of the mean only. Whoever sees the reduction, as a rank in a
    ring does, sees one rank's share, whose guarantee is that of `law.with_clients(1)`.

    All ranks of the group call together, and first compare what they pass. If one rank differs or cannot go on, all
    raise, and nothing was sent. If a rank is lost, the call fails: the others raise when the connection ends, or at the
    group's time-out. This is not for DistributedDataParallel, whose ranks all hold the same update: one report of it is
    enough. A model that is sharded over the ranks belongs to one client: use `report`.

    Args:
        model, C, R, eps, mechanism, buffers: As for `ldpkernels.report`. Names, shapes and ranges are the same on all
            ranks. Dtypes may differ, but what is fp64 on one rank is fp64 on all. Weights are each rank's own.
        law: `DistributedGaussian` or `DistributedSkellam`, in place of C, R and eps. Each rank reads the sum and knows
            its own noise, so `law.clients` is at most the number of ranks - 1 - `colluders`.
        secure: Whether shares are masked; with a law the default is True. It needs `pip install 'ldpkernels[secure]'`.
        colluders: How many more ranks may tell the reader of a mean what noise they added.
        round: The number of the round. Ranks compare it, and the public rotation follows from it.
        generator: None for a key from the operating system on every rank. A key or a seeded generator is folded with
            the rank in the group, `key.fold_in(rank)`, so every rank may pass the same one and still draws its own
            noise. With a law it is first folded with `round`, because the same noise in two rounds would expose their
            difference. Keys of masks always come from the operating system.
        group: The process group; None is the default one. On a GPU with NCCL, a report copies only a message of 4 kB to
            the host, which the ranks compare. Shares of noise go through the host.

    Returns:
        The mean, in the model's container: `ldpkernels.load(model, mean)` writes it. Of reports it is on the model's
        device; of a law it is fp32 in host memory.

    While it runs it needs a byte for each weight with one-bit reports and up to 255 ranks, else four.

    >>> import torch, ldpkernels.distributed
    >>> torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    >>> update = {"w": torch.full((100_000,), 0.5)}
    >>> round(float(ldpkernels.distributed.mean(update, C=0.0, R=1.0, eps=4.0)["w"].mean()), 1)
    0.5
    >>> law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=100_000, clients=6, invited=8)
    >>> ldpkernels.distributed.mean(update, law=law)  # of 8 ranks each may have another rank's noise
    Traceback (most recent call last):
    ValueError: law.clients=6 needs the noise of that many ranks. ...
    >>> torch.distributed.destroy_process_group()
    """
    place = place_in(group)
    if law is None:
        if secure or secure is False or colluders or round:
            raise ValueError(
                f"secure={secure}, colluders={colluders}, round={round} are for shares of a law's noise: pass law, or "
                "leave them out"
            )
        if C is None or R is None or eps is None:
            raise TypeError("mean() is missing C, R and eps, or law in their place")
        return _mean_of_reports(model, C, R, eps, mechanism, generator, buffers, place)
    if C is not None or R is not None or eps is not None or mechanism != "two-point":
        raise ValueError("law has its own norm and eps: leave out C, R, eps and mechanism")
    return mean_of_shares(
        model, law, place, secure=secure is not False, colluders=colluders, round_=round, generator=generator,
        buffers=buffers,
    )  # fmt: skip


def _mean_of_reports(
    model: Weights,
    C: Numbers,
    R: Numbers,
    eps: SupportsFloat,
    mechanism: MechanismName,
    generator: Generator,
    buffers: Buffers | None,
    place: Place,
) -> Mean:
    def prepare() -> tuple[Report, Statement]:
        refuse_sharded(model)
        own = report(
            model, C, R, eps, mechanism=mechanism, generator=own_generator(generator, place.rank), buffers=buffers
        )
        device = own.payload.device if isinstance(own.payload, torch.Tensor) else torch.device("cpu")
        if dist.get_backend(place.group) == "nccl" and device.type != "cuda":
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

    own, _ = agreed([place.group], prepare)
    return _decoded(own, _sums(own, place), place.ranks)


def _sums(own: Report, place: Place) -> torch.Tensor:
    """The sums of all ranks' numbers, for every place of a report."""
    payload = own.payload if isinstance(own.payload, torch.Tensor) else torch.from_numpy(own.payload)
    bits = own.layout.codec.numbers_a_byte == 8
    numbers = unpacked(payload) if bits else payload
    if not bits or place.ranks > 255:
        numbers = numbers.to(torch.int32 if place.ranks < 2**23 else torch.int64)
    with exchange(place.group, "added their reports: charge for them, as they may have left"):
        dist.all_reduce(numbers, group=place.group)
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
