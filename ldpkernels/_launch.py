# SPDX-License-Identifier: Apache-2.0
"""From checked tables to the kernels of the chosen backend. It imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ldpkernels import _backends, _native
from ldpkernels._dtypes import Dtype
from ldpkernels.keys import Key
from ldpkernels.ordinal_cldp import (
    LARGEST_INTEGER,
    Mechanism,
    checked_alpha,
    checked_mechanism,
    checked_room,
    law_row,
    reach_in,
)
from ldpkernels.two_point import Output, two_point_law

INTEGERS = 4  # a span's dtype where its elements are int64
SMALL = 1 << 17  # elements below which a thread costs more than it saves
SMALL_CLDP = 1 << 14  # the same where an element costs ten times as much


def two_point_laws(c: Sequence[float], r: Sequence[float], eps: float, dtypes: Sequence[Dtype], output: Output) -> Any:
    """The kernels' parameters for each tensor."""
    rows = [two_point_law(ci, ri, eps, d, output)[:7] for ci, ri, d in zip(c, r, dtypes, strict=True)]
    return np.array(rows, dtype=_native.TWO_POINT_LAW)


def two_point(
    output: Literal["values", "bits", "thresholds"], spans: Any, laws: Any, key: Any, device_type: str
) -> None:
    """Run one kernel over all spans. `key` is a Key, or an int64 tensor on the device."""
    name = _backends.chosen(device_type)
    if name == "triton":
        from ldpkernels import triton

        getattr(triton, output)(spans, laws, key.tensor() if isinstance(key, Key) else key)
    elif name == "cuda":
        import torch

        from ldpkernels import _cuda

        stream = torch.cuda.current_stream(key.device).cuda_stream
        getattr(_cuda, f"two_point_{output}")(spans, laws, key.data_ptr(), 2 * key.numel(), key.device.index, stream)
    else:
        words = key.uint32() if isinstance(key, Key) else key.numpy().view(np.uint32)
        if name == "reference":
            from ldpkernels import reference

            reference.two_point(output, spans, laws, words)
        else:
            getattr(_native, f"two_point_{output}")(spans, laws, words, name, worthwhile_threads(spans))


def ordinal_cldp_laws(
    alpha: Sequence[float], m: int, rho: int, dtypes: Sequence[Dtype], mechanism: Mechanism, rounding: str
) -> Any:
    """The kernel's parameters for weights of each tensor; every check of them."""
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding={rounding!r} must be 'nearest' or 'stochastic'")
    mechanism, rows = checked_mechanism(mechanism), []
    for a, dtype in zip(map(checked_alpha, alpha), dtypes, strict=True):
        reach = reach_in(dtype, rho)
        if m > reach:
            raise OverflowError(f"c={m}e-{rho} overflows {dtype.name}: use a smaller c or a wider dtype")
        if mechanism == "laplace":
            checked_room(a, m, reach)
        rows.append(law_row(a, m, mechanism, reach=reach, scale=float(10**rho), rounding=rounding))
    return np.array(rows, dtype=_native.ORDINAL_CLDP_LAW)


def ordinal_cldp_integer_laws(alpha: float, m: int, mechanism: Mechanism) -> Any:
    """The kernel's parameters for one tensor of integers."""
    a, mechanism = checked_alpha(alpha), checked_mechanism(mechanism)
    if mechanism == "laplace":
        checked_room(a, m, LARGEST_INTEGER)
    return np.array([law_row(a, m, mechanism)], dtype=_native.ORDINAL_CLDP_LAW)


def integer_span(address: int, out: int, size: int) -> Any:
    """The kernels' description of one tensor of integers."""
    return np.array([(address, out, size, 0, INTEGERS)], dtype=_native.SPAN)


def ordinal_cldp(spans: Any, laws: Any, key: Any, device_type: str) -> None:
    """Run the kernel of ldpkernels/ordinal_cldp.py over all spans. `key` is a Key, or an int64 tensor on the device."""
    name = _backends.chosen(device_type)
    words = key.uint32() if isinstance(key, Key) else key.cpu().numpy().view(np.uint32)
    if name in _native.isas():
        _native.ordinal_cldp(spans, laws, words, name, worthwhile_threads(spans, SMALL_CLDP))
    elif name == "reference":
        from ldpkernels import reference_cldp

        reference_cldp.ordinal_cldp(spans, laws, words)
    else:
        raise NotImplementedError(f"backend {name!r} has no CLDP kernel yet: move the tensors to 'cpu'")


def worthwhile_threads(spans: Any, small: int = SMALL) -> int:
    """No more threads than there is work for."""
    return max(1, min(_backends.threads(), int(spans["numel"].sum()) // small))
