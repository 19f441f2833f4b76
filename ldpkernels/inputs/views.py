# SPDX-License-Identifier: Apache-2.0
"""Kernels take contiguous memory. A view is read from a copy, in the order of its elements, and written back."""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Sequence

import numpy as np

from ldpkernels.arrays import AnyArray, Value


def contiguous(values: Sequence[Value]) -> Sequence[Value]:
    """Each in contiguous memory: itself, or a copy. All of them where none had to be copied."""
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
        deque(map(operator.setitem, values, itertools.repeat(...), copies), maxlen=0)
        return
    import torch

    with torch.inference_mode():  # inference tensors and leaves too: nothing may fail after the first write
        pairs = [(torch._neg_view(v), c.neg()) if v.is_neg() else (v, c) for v, c in zip(values, copies, strict=True)]
        torch._foreach_copy_([value for value, _ in pairs], [copy for _, copy in pairs])


def note_write(tensors: Sequence[AnyArray]) -> None:
    """Let autograd know of a write, which saves tensors for later and would use them unaware."""
    import torch

    torch.autograd.graph.increment_version(tensors)  # type: ignore[arg-type]  # it skips those of inference


def _is_plain(value: Value) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.flags.c_contiguous)
    return value.is_contiguous() and not value.is_neg()
