# SPDX-License-Identifier: Apache-2.0
"""The memory of weights, looked up last: nothing of the caller's runs between this and the kernel.

Numbers, keys, names and classes can run a caller's code (`__float__`, a generator's subclass, a metaclass), which could
free what an address was just read of. They come before. What is found here is checked here, once, for every call.
Kernels take contiguous memory: a view is read from a copy, in the order of its elements, and written back.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ldpkernels import _native
from ldpkernels.common.arrays import AnyArray, Array, Spans, Value
from ldpkernels.common.dtypes import Dtype
from ldpkernels.inputs.checks import check_key, numpy_dtype, torch_dtype, torch_dtypes
from ldpkernels.inputs.overlap import memory_of, refuse_shared_memory
from ldpkernels.inputs.spans import span_table

if TYPE_CHECKING:
    import torch


class Located(NamedTuple):
    """Weights that a kernel may touch, and what it has to know of their memory."""

    values: Sequence[AnyArray]  # the caller's tensors or arrays
    addresses: list[int]
    flat: Sequence[AnyArray]  # contiguous memory of each: the values themselves, or copies
    spans: Spans
    numel: int
    dtypes: list[Dtype]
    device: torch.device | None  # None for arrays
    owners: Sequence[object]  # storages: memory stays, though a tensor is given another


class _Found(NamedTuple):
    """What was read of tensors or arrays, by their order."""

    addresses: list[int]
    sizes: list[int]
    dtypes: list[Dtype]
    owners: Sequence[object]
    plain: bool  # all are contiguous


def locate(
    values: Sequence[AnyArray], names: Sequence[str] = (), *, key: object = None, written: bool = False
) -> Located:
    """Look up the memory of tensors or arrays, or raise for the first that a kernel may not touch.

    Views are copied. Where one has to be written, all are written in copies: `write_back` then changes all of them at
    once. Without names, errors give numbers. A `key` that is a tensor has to be on the tensors' device.
    """
    if not values:
        raise ValueError("no tensors: there is nothing to perturb")
    names = names or [str(i) for i in range(len(values))]
    device = None if isinstance(values[0], np.ndarray) else values[0].device
    found = _of_arrays(names, values, written) if device is None else _of_tensors(names, values, device)  # type: ignore[arg-type]
    if device is not None and not isinstance(key, bytes) and key is not None:
        check_key(key, device)  # type: ignore[arg-type]  # a tensor
    if len(values) > 1:
        _refuse_overlaps(names, values, found)
    flat, places = values, found.addresses
    if not found.plain:
        flat = [*map(copied, values)] if written else contiguous(values)  # type: ignore[type-var,arg-type]
        places = addresses(flat)
    spans = span_table(places, [0] * len(values), found.sizes, found.dtypes)
    return Located(values, found.addresses, flat, spans, sum(found.sizes), found.dtypes, device, found.owners)


def _refuse_overlaps(names: Sequence[str], values: Sequence[AnyArray], found: _Found) -> None:
    if found.plain:  # apart, if each ends before the next begins
        lengths = [n * dtype.itemsize for n, dtype in zip(found.sizes, found.dtypes, strict=True)]
        ends = sorted(map(operator.add, found.addresses, lengths))
        if all(map(operator.le, ends, sorted(found.addresses)[1:])):
            return
    refuse_shared_memory(names, [memory_of(value) for value in values])


def _of_tensors(names: Sequence[str], tensors: Sequence[torch.Tensor], device: torch.device) -> _Found:
    import torch

    ask, strided, formats = torch.Tensor, torch.strided, torch_dtypes()
    kinds = [t.dtype for t in tensors]
    strange = any([t.layout is not strided or t.is_nested for t in tensors])
    if strange or len({*map(ask.get_device, tensors)}) > 1 or not formats.keys() >= {*kinds}:
        _refuse_strange(names, tensors, device)
    try:
        addresses, owners = [*map(ask.data_ptr, tensors)], [*map(ask.untyped_storage, tensors)]
    except RuntimeError:
        raise _stands_for_another() from None
    sizes, dtypes = [*map(ask.numel, tensors)], [*map(formats.__getitem__, kinds)]
    plain = all(map(ask.is_contiguous, tensors)) and not any(map(ask.is_neg, tensors))
    if plain:
        last = map(operator.add, sizes, map(ask.storage_offset, tensors))
        fits = all([n * d.itemsize <= s.nbytes() for n, d, s in zip(last, dtypes, owners, strict=True)])
    if not plain or not fits or not all(addresses):
        _refuse_strange(names, tensors, device)
    return _Found(addresses, sizes, dtypes, owners, plain)


def _refuse_strange(names: Sequence[str], tensors: Sequence[torch.Tensor], device: torch.device) -> None:
    """Raise for the first tensor whose memory no kernel may touch, if there is one."""
    for name, t in zip(names, tensors, strict=True):
        torch_dtype(name, t)
        if t.device != device:
            raise ValueError(
                f"tensor {name!r} is on {t.device} and the first on {device}: perturb the tensors of each device "
                "separately"
            )
        if t.numel() and not t.data_ptr():
            raise _stands_for_another()


def _of_arrays(names: Sequence[str], arrays: Sequence[Array], written: bool) -> _Found:
    dtypes = [numpy_dtype(name, array, written) for name, array in zip(names, arrays, strict=True)]
    plain = all([array.flags.c_contiguous for array in arrays])
    return _Found(addresses(arrays), [array.size for array in arrays], dtypes, arrays, plain)


def _stands_for_another() -> ValueError:
    return ValueError("a tensor has no memory, or stands for one that has: call this outside of torch's transforms")


def addresses(values: Sequence[AnyArray]) -> list[int]:
    """Where contiguous tensors or arrays begin."""
    if isinstance(values[0], np.ndarray):
        return _native.addresses(values)  # type: ignore[arg-type]  # arrays
    return [value.data_ptr() for value in values]  # type: ignore[union-attr]  # tensors


def contiguous(values: Sequence[Value]) -> Sequence[Value]:
    """Give each value in contiguous memory: itself, or a copy; the values themselves where none had to be copied."""
    if all(map(_is_plain, values)):
        return values
    return [value if _is_plain(value) else copied(value) for value in values]


def copied(value: Value) -> Value:
    """A copy in contiguous memory."""
    if isinstance(value, np.ndarray):
        return value.copy(order="C")
    import torch

    return torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.detach())


def write_back(values: Sequence[AnyArray], copies: Sequence[AnyArray]) -> None:
    """Write each copy to its value, all in one call of C code: no value is left half written.

    Handlers of signals, and with them the exceptions that they raise, run between calls of Python alone.
    """
    if not values:
        return
    if isinstance(values[0], np.ndarray):
        deque(map(operator.setitem, values, itertools.repeat(...), copies), maxlen=0)  # type: ignore[arg-type]
        return
    import torch

    with torch.inference_mode():  # inference tensors and leaves too: nothing may fail after the first write
        targets = [value for value in values if isinstance(value, torch.Tensor)]
        sources = [copy for copy in copies if isinstance(copy, torch.Tensor)]
        for i, value in enumerate(targets):
            if value.is_neg():  # which _foreach_copy_ does not take
                targets[i], sources[i] = torch._neg_view(value), sources[i].neg()
        torch._foreach_copy_(targets, sources)


def note_write(tensors: Sequence[AnyArray]) -> None:
    """Let autograd know of a write, which saves tensors for later and would use them unaware."""
    import torch

    torch.autograd.graph.increment_version(tensors)  # type: ignore[arg-type]  # it skips those of inference


def _is_plain(value: AnyArray) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.flags.c_contiguous)
    return value.is_contiguous() and not value.is_neg()
