# SPDX-License-Identifier: Apache-2.0
"""What calls on weights share: whether torch has to see them, their key, and laws that are one for all.

A call is a row of steps: the caller's objects are walked (`collect`), which also makes its numbers; the mechanism and
the key are made; memory is looked up (`locate`); the law of each tensor is computed; a kernel runs (`launch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ldpkernels.common.arrays import Laws
from ldpkernels.common.dtypes import Dtype
from ldpkernels.common.keys import Generator, Key, host_key
from ldpkernels.inputs.containers import Tensors
from ldpkernels.inputs.transforms import is_seen_by_torch
from ldpkernels.laws.registry import law_table
from ldpkernels.laws.weightwise import Output, Weightwise

if TYPE_CHECKING:
    import torch


def takes_operation(tensors: Tensors) -> bool:
    """Whether a call is an operation of `torch.ops`: in graphs, modes, transforms and traces, and for subclasses."""
    return tensors.compiling or (tensors.is_torch and is_seen_by_torch(tensors.values))


def perform(name: str, tensors: Tensors, generator: Generator, *arguments: object) -> torch.Tensor:
    """Call an operation of `torch.ops.ldpkernels` on tensors, with the call's key; what it gives, if anything."""
    from ldpkernels.ops import named, torch_key

    key = torch_key(generator, tensors.values[0].device)
    result: torch.Tensor = named(name, tensors.values, tensors.names, key, *arguments)
    return result


def key_of(generator: Generator, tensors: Tensors) -> bytes | torch.Tensor:
    """The key of a call, as bytes or as a tensor on the tensors' device."""
    if not tensors.is_torch:
        return host_key(generator)
    device: torch.device = tensors.values[0].device
    if device.type == "cpu" and (generator is None or isinstance(generator, (Key, str))):
        return host_key(generator)
    from ldpkernels.ops import torch_key

    return torch_key(generator, device)


def laws_of(mechanism: Weightwise, c: list[float], r: list[float], dtypes: list[Dtype], output: Output) -> Laws:
    """What the kernel executes for each tensor, or one law where all have the same."""
    if c.count(c[0]) == r.count(r[0]) == dtypes.count(dtypes[0]) == len(c):
        c, r, dtypes = c[:1], r[:1], dtypes[:1]
    return law_table(mechanism, c, r, dtypes, output)
