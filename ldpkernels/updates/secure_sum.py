# SPDX-License-Identifier: Apache-2.0
"""Updates as integers modulo a power of two, noised so that their sum is private: docs/mechanisms/distributed.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from ldpkernels import launch
from ldpkernels.common.arrays import AnyArray, Array, Spans, Words
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.common.keys import Generator, Key
from ldpkernels.inputs import flat
from ldpkernels.inputs.containers import Buffers, Weights, collect
from ldpkernels.inputs.spans import span_table
from ldpkernels.inputs.transforms import outside_of_graphs
from ldpkernels.laws.distributed import Shares
from ldpkernels.updates.rotation import Singles, rotate_back_, rotated, update_of

if TYPE_CHECKING:
    import torch

FLOAT32 = DTYPES["float32"]
_ROUNDING, _NOISE = 0, 1  # fold_in of a call's key
_TRIES = 64  # a rounding is refused with probability 2^-40


@outside_of_graphs
def encode(
    update: Weights, law: Shares, rotation: Key, *, generator: Generator = None, buffers: Buffers | None = None
) -> Words:
    """A client's integers for a secure sum: clipped, rotated, rounded at random, with its share of the noise.

    **They are private only in the sum**: send them by secure aggregation, and by nothing else.

    Args:
        update: A module, a tensor, an array, or a sequence or mapping of them; `law.dimension` weights in all. Send
            differences from the server's model. It is not changed.
        law: `DistributedGaussian` or `DistributedSkellam`, the same for all clients of a round.
        rotation: The round's public key, the same for all its clients; not a client's own.
        generator: The client's own secret, as for `perturb_`; None for a key from the operating system.
        buffers: As for `perturb_`.

    Returns:
        `law.padded` integers below 2^bits, uint32, in host memory; with Triton, nothing else of an update leaves its
        GPU. Add them modulo 2^bits before anyone sees the sum: a later reduction would show how many were negative.

    >>> import numpy as np, ldpkernels
    >>> law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=100, clients=1000, bits=24)
    >>> round_key = ldpkernels.key(3)
    >>> total = np.zeros(law.padded, np.uint32)
    >>> for client in range(1000):
    ...     total += encode(np.full(100, 0.1), law, round_key)
    >>> bool(abs(decode(total, law, round_key, clients=1000) - 0.1).max() < 0.01)
    True
    """
    given = update_of("encode", update, law.dimension, generator, buffers)
    x, scale = rotated(given, law.padded, law.norm, rotation)
    integers = launch.empty(law.padded, np.int32, given.device)
    spans = span_table([flat.address(x)], [flat.address(integers)], [law.padded], [FLOAT32])
    _round(spans, scale / law.unit, law, given.key.fold_in(_ROUNDING), given.device)
    out = launch.empty(law.padded, np.uint32, given.device)
    noised = span_table([flat.address(integers)], [flat.address(out)], [law.padded], [FLOAT32])
    launch.add_noise(noised, law.table, given.key.fold_in(_NOISE), bits=law.bits, device=given.device)
    return out if isinstance(out, np.ndarray) else out.cpu().numpy().view(np.uint32)


@overload
def decode(total: Array, law: Shares, rotation: Key, *, clients: int, like: None = None) -> Singles: ...


@overload
def decode(
    total: Array, law: Shares, rotation: Key, *, clients: int, like: Weights, buffers: Buffers | None = None
) -> AnyArray | Sequence[AnyArray] | Mapping[str, AnyArray]: ...


def decode(
    total: Array,
    law: Shares,
    rotation: Key,
    *,
    clients: int,
    like: Weights | None = None,
    buffers: Buffers | None = None,
) -> AnyArray | Sequence[AnyArray] | Mapping[str, AnyArray]:
    """The mean of the clients' updates, from the sum of their integers.

    Args:
        total: The sum, `law.padded` integers of any type; whole multiples of 2^bits are dropped.
        law: The round's law. Its eps, of an update against zeros for whoever sees sums, needs at least `law.clients`
            honest clients in the sum.
        rotation: The round's public key.
        clients: How many are in the sum. Fewer than `law.clients` are refused, because their noise is less than
            promised.
        like: A model whose shapes and container the mean takes; None for one array.
        buffers: As for `encode`.
    """
    total = np.asarray(total)
    if total.dtype.kind not in "iu" or total.shape != (law.padded,):
        raise ValueError(f"total is {total.dtype} of shape {total.shape}: pass {law.padded} integers")
    if not law.clients <= clients <= law.invited:
        raise ValueError(
            f"clients={clients} must be from {law.clients} to {law.invited}, for which the noise and the range were "
            "planned: law.with_clients says what fewer are worth"
        )
    half = 1 << (law.bits - 1)
    signed = ((total.astype(np.int64) + half) & (2 * half - 1)) - half
    mean = rotate_back_((signed * (law.unit / clients)).astype(np.float32), rotation)[: law.dimension]
    if like is None:
        return mean
    tensors, _ = collect(like, buffers)
    sizes = flat.sizes(tensors)
    if sum(sizes) != law.dimension:
        raise ValueError(f"like has {sum(sizes)} weights, and the law is of {law.dimension}")
    return flat.contained(tensors, [part.copy() for part in np.split(mean, np.cumsum(sizes)[:-1])])


def _round(spans: Spans, scale: float, law: Shares, key: Key, device: torch.device | None) -> None:
    """Round at random until the integers' norm is within the law's bound: the comparison is the guarantee."""
    for attempt in range(_TRIES):
        if launch.quantise(spans, scale, key, attempt, device) <= law.square_bound:
            return
    raise ArithmeticError("no rounding was within its bound: the update's norm is not what was computed")
