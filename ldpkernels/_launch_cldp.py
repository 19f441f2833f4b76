# SPDX-License-Identifier: Apache-2.0
"""From checked tables to the ordinal CLDP kernel of the chosen backend. It imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ldpkernels import _launch, _native, capabilities
from ldpkernels.dtypes import Dtype
from ldpkernels.keys import Key
from ldpkernels.laws.ordinal_cldp_thresholds import (
    LARGEST_INTEGER,
    Mechanism,
    checked_alpha,
    checked_m,
    checked_mechanism,
    checked_room,
    largest_integer,
    law_row,
    reach_in,
)

INTEGERS = 4  # a span's dtype where its elements are int64
SMALL = 1 << 14  # elements below which a thread costs more than it saves


def weight_laws(
    alpha: Sequence[float], c: float, rho: int, dtypes: Sequence[Dtype], mechanism: Mechanism, rounding: str
) -> Any:
    """The kernel's parameters for weights of each tensor; every check of them."""
    m = largest_integer(c, rho)
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding={rounding!r} must be 'nearest' or 'stochastic'")
    mechanism, rows = checked_mechanism(mechanism), []
    for a, dtype in zip(map(checked_alpha, alpha), dtypes, strict=True):
        reach = reach_in(dtype, rho)
        if m > reach:
            raise OverflowError(f"c={c} overflows {dtype.name}: use a smaller c or a wider dtype")
        if mechanism == "laplace":
            checked_room(a, m, reach)
        rows.append(law_row(a, m, mechanism, reach=reach, scale=float(10**rho), rounding=rounding))
    return np.array(rows, dtype=_native.ORDINAL_CLDP_LAW)


def integer_laws(alpha: float, m: int, mechanism: Mechanism) -> Any:
    """The kernel's parameters for one tensor of integers."""
    m, a, mechanism = checked_m(m), checked_alpha(alpha), checked_mechanism(mechanism)
    if mechanism == "laplace":
        checked_room(a, m, LARGEST_INTEGER)
    return np.array([law_row(a, m, mechanism)], dtype=_native.ORDINAL_CLDP_LAW)


def integer_span(address: int, out: int, size: int) -> Any:
    """The kernels' description of one tensor of integers."""
    return np.array([(address, out, size, 0, INTEGERS)], dtype=_native.SPAN)


def run(spans: Any, laws: Any, key: Any, device_type: str, out: Any = None) -> None:
    """Run the kernel of ldpkernels/ordinal_cldp.py over all spans. `key` is a Key, or an int64 tensor on the device."""
    name = capabilities.chosen(device_type)
    if name == "cuda":
        import torch

        from ldpkernels import _cuda

        stream = torch.cuda.current_stream(key.device).cuda_stream
        _cuda.ordinal_cldp(spans, laws, key.data_ptr(), 2 * key.numel(), key.device.index, stream)
        return
    if name == "triton":
        from ldpkernels.triton import registry

        registry.launch("ordinal_cldp", "values", spans, laws, key.tensor() if isinstance(key, Key) else key, out)
        return
    words = key.uint32() if isinstance(key, Key) else key.numpy().view(np.uint32)
    if name == "reference":
        from ldpkernels.reference import ordinal_cldp as reference_cldp

        reference_cldp.ordinal_cldp(spans, laws, words)
    else:
        _native.ordinal_cldp(spans, laws, words, name, _launch.worthwhile_threads(spans, SMALL))
