# SPDX-License-Identifier: Apache-2.0
"""Where weights lie, looked up last: nothing of the caller's runs between this and the kernel.

Numbers, keys, names and classes can run a caller's code (`__float__`, a generator's subclass, a metaclass), which could
free what an address was just read of. They come before. What is found here is checked here, once, for every call.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ldpkernels import _native
from ldpkernels.arrays import AnyArray, Array, Spans
from ldpkernels.dtypes import Dtype
from ldpkernels.inputs.checks import check_key, numpy_dtype, refuse_freed, torch_dtype, torch_dtypes
from ldpkernels.inputs.memory import Memory, refuse_shared_memory
from ldpkernels.inputs.spans import span_table
from ldpkernels.inputs.views import contiguous, copied

if TYPE_CHECKING:
    import torch


class Located(NamedTuple):
    """Weights that a kernel may touch, and what it has to know of their memory."""

    values: Sequence[Any]  # the caller's tensors or arrays
    addresses: list[int]
    flat: Sequence[Any]  # contiguous memory of each: the values themselves, or copies
    spans: Spans
    numel: int
    dtypes: list[Dtype]
    device: torch.device | None  # None for arrays
    owners: Sequence[object]  # storages: memory stays, though a tensor is given another


class _Memory(NamedTuple):
    """What was read of tensors or arrays, by their order."""

    addresses: list[int]
    sizes: list[int]
    dtypes: list[Dtype]
    owners: list[object]
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
    found = _of_arrays(names, values, written) if device is None else _of_tensors(names, values, device)
    if device is not None and not isinstance(key, bytes) and key is not None:
        check_key(key, device)  # type: ignore[arg-type]  # a tensor
    if not found.plain or _may_share(found):
        refuse_shared_memory(names, [memory_of(value) for value in values])
    flat, places = values, found.addresses
    if not found.plain:
        flat = [copied(value) for value in values] if written else contiguous(values)
        places = _native.addresses(flat) if device is None else [t.data_ptr() for t in flat]
    spans = span_table(places, [0] * len(values), found.sizes, found.dtypes)
    return Located(values, found.addresses, flat, spans, sum(found.sizes), found.dtypes, device, found.owners)


def _of_tensors(names: Sequence[str], tensors: Sequence[torch.Tensor], device: torch.device) -> _Memory:
    import torch

    formats, strided, plain = torch_dtypes(), torch.strided, True
    addresses: list[int] = []
    sizes: list[int] = []
    dtypes: list[Dtype] = []
    owners: list[object] = []
    for name, t in zip(names, tensors, strict=True):
        dtype = formats.get(t.dtype)
        if dtype is None or t.layout is not strided or t.is_nested:
            dtype = torch_dtype(name, t)
        if t.device != device:
            raise ValueError(f"tensor {name!r} is on {t.device} and the first on {device}: perturb each device's apart")
        try:
            address, storage, numel = t.data_ptr(), t.untyped_storage(), t.numel()
        except RuntimeError:
            raise _stands_for_another() from None
        if not (t.is_contiguous() and not t.is_neg()):
            torch_dtype(name, t)
            plain = False
        elif (t.storage_offset() + numel) * dtype.itemsize > storage.nbytes():
            refuse_freed(name, t)
        if not address and numel:
            torch_dtype(name, t)
            raise _stands_for_another()
        addresses.append(address)
        sizes.append(numel)
        dtypes.append(dtype)
        owners.append(storage)
    return _Memory(addresses, sizes, dtypes, owners, plain)


def _of_arrays(names: Sequence[str], arrays: Sequence[Array], written: bool) -> _Memory:
    dtypes = [numpy_dtype(name, array, written) for name, array in zip(names, arrays, strict=True)]
    plain = all([array.flags.c_contiguous for array in arrays])
    return _Memory(_native.addresses(arrays), [array.size for array in arrays], dtypes, [*arrays], plain)


def _stands_for_another() -> ValueError:
    return ValueError(
        "a tensor has no memory, or stands for one that has: call this outside of torch's transforms"
    )


def _may_share(found: _Memory) -> bool:
    """Whether some contiguous memory begins before other memory ends."""
    ends = [a + n * d.itemsize for a, n, d in zip(found.addresses, found.sizes, found.dtypes, strict=True)]
    ordered = sorted(zip(found.addresses, ends, strict=True))
    return any([one[1] > other[0] for one, other in itertools.pairwise(ordered)])


def memory_of(value: AnyArray) -> Memory:
    """Where a tensor or an array lies, in bytes."""
    if isinstance(value, np.ndarray):
        return Memory(value.ctypes.data, value.shape, value.strides, value.itemsize)
    size = value.element_size()
    return Memory(value.data_ptr(), value.shape, [s * size for s in value.stride()], size)
