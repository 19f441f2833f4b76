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

    By `C`, `R` and `eps` every rank reports its own model as `ldpkernels.report` does, the numbers of the reports are
    added by `all_reduce` as integers, and every rank decodes the sum: the bits are those of `ldpkernels.aggregate` of
    the reports. **The guarantee is that of a report**, any two inputs for whoever sees it, and no better for the sum:
    ranks meet one another's numbers on the way.

    By `law` every rank adds its share of the law's noise (`ldpkernels.updates.encode`), and masks it against each other
    rank with keys of this call alone. The masks cancel in the sum, which is all that anyone sees. **The guarantee is
    `law.event`** for every call, towards whoever reads the mean or the wire, is in league with as many ranks as
    `colluders`, and follows the protocol. Charge it to a rank's ledger before the call. A call that is lost stays
    charged. Without masks, `secure=False`, it holds towards readers of the mean alone: who sees the reduction, as a
    rank does in a ring, sees one rank's share, which is worth `law.with_clients(1)`.

    All ranks of the group call together, and first compare what they pass: where one rank differs or cannot go on, all
    raise, and nothing was sent. A rank that is lost loses the call: the others raise when the connection ends, or at
    the end of the group's time-out. Not for DistributedDataParallel, whose ranks hold one update: one report of it is
    enough. A model sharded over the ranks is one client's: `report` takes it.

    Args:
        model, C, R, eps, mechanism, buffers: As for `ldpkernels.report`. Names, shapes and ranges are the same on all
            ranks, and dtypes but for fp64; weights are each rank's own.
        law: `DistributedGaussian` or `DistributedSkellam`, in place of C, R and eps. Each rank reads the sum and knows
            its own noise, so that `law.clients` is at most the number of ranks - 1 - `colluders`.
        secure: Whether shares are masked; with a law None is True. It needs `pip install 'ldpkernels[secure]'`.
        colluders: How many more ranks may tell the reader of a mean what noise they added.
        round: The number of the round, which ranks compare, and from which the public rotation follows.
        generator: None for a key from the operating system on every rank. A key or a seeded generator is folded with
            the rank in the group, `key.fold_in(rank)`: every rank may pass the same and still draws noise of its own.
            With a law it is folded with `round` before: the same noise in two rounds would leave their difference bare.
            Masks are always of the operating system's keys.
        group: The process group; None is the default one. On a GPU with NCCL nothing but a message of 4 kB that the
            ranks compare is copied to the host by a report; shares of noise go through the host.

    Returns:
        The mean, in the model's container: `ldpkernels.load(model, mean)` writes it. Of reports it is on the model's
        device, of a law in fp32 in host memory.

    It needs a byte a weight for up to 255 ranks and one-bit reports, else four, while it runs.

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
