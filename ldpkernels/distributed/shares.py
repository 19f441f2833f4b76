# SPDX-License-Identifier: Apache-2.0
"""The mean of the ranks' updates under shares of noise, whose sum alone is seen where the shares are masked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.distributed as dist

from ldpkernels.common import arguments
from ldpkernels.common.arrays import Words
from ldpkernels.common.keys import Generator, Key
from ldpkernels.distributed.group import WORD, Place, own_generator, refuse_sharded
from ldpkernels.inputs.agreement import Statement, agreed, exchange
from ldpkernels.inputs.containers import Buffers, Weights, collect
from ldpkernels.laws.distributed import Shares
from ldpkernels.updates import decode, encode
from ldpkernels.updates.masks import lifted
from ldpkernels.updates.rotation import rotation_of

if TYPE_CHECKING:
    from ldpkernels.calls.expectation import Mean
    from ldpkernels.distributed.masked import PairMasks


def mean_of_shares(
    model: Weights,
    law: Shares,
    place: Place,
    *,
    secure: bool,
    colluders: int,
    round_: int,
    generator: Generator,
    buffers: Buffers | None,
) -> Mean:
    """`ldpkernels.distributed.mean` under a law of shares."""
    rotation = rotation_of(f"round {round_} among ranks")

    def prepare() -> tuple[tuple[Words, PairMasks | None], Statement]:
        refuse_sharded(model)
        check_ranks(law, place.ranks, colluders, round_)
        masks = _masks(law, rotation, place, colluders, round_) if secure else None
        tensors, _ = collect(model, buffers)
        said = {
            "the call": "mean of shares",
            "law": law.name,
            **{f"law.{field.name}": getattr(law, field.name) for field in dataclasses.fields(law)},
            "round": round_,
            "secure": secure,
            "colluders": colluders,
            "names": tensors.names,
            "shapes": [tuple(value.shape) for value in tensors.values],
        }
        own = own_generator(generator, round_, place.rank)
        return (encode(model, law, rotation, generator=own, buffers=buffers), masks), said

    (integers, masks), _ = agreed([place.group], prepare)
    words = lifted(integers, law.bits, WORD) if masks is None else masks.applied(integers)
    total = _all_reduced(words, place) >> (WORD - law.bits)
    return cast("Mean", decode(total, law, rotation, clients=place.ranks, like=model, buffers=buffers))


def check_ranks(law: Shares, ranks: int, colluders: int, round_: int) -> None:
    """Refuse a law whose noise the ranks do not have, or whose range they would leave."""
    arguments.count("colluders", colluders, 0)
    arguments.count("round", round_, 0)
    honest = ranks - 1 - colluders
    if honest < law.clients:
        raise ValueError(
            f"law.clients={law.clients} needs the noise of that many ranks. Whoever reads the sum of {ranks} ranks "
            f"knows its own noise and that of colluders={colluders}, so {max(honest, 0)} are left. Pass a law with "
            "fewer clients, or have more ranks"
        )
    if ranks > law.invited:
        raise ValueError(
            f"law.invited={law.invited} is the number of ranks that the law's range was planned for, and there are "
            f"{ranks} ranks: calibrate with invited={ranks}"
        )


def _masks(law: Shares, rotation: Key, place: Place, colluders: int, round_: int) -> PairMasks:
    from ldpkernels.distributed.masked import PairMasks

    return PairMasks(law, rotation, place, colluders, round_)


def _all_reduced(words: Words, place: Place) -> Words:
    """The sum modulo 2^32: two's complement wraps where words do."""
    numbers = torch.from_numpy(words.view(np.int32))
    if dist.get_backend(place.group) == "nccl":
        numbers = numbers.cuda()
    with exchange(place.group, "added their integers: charge for them, as they may have left"):
        dist.all_reduce(numbers, group=place.group)
    total: Words = numbers.cpu().numpy().view(np.uint32)
    return total
