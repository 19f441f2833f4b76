# SPDX-License-Identifier: Apache-2.0
"""From checked tables to the kernels of the chosen backend. It imports no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ldpkernels import _native, capabilities
from ldpkernels.dtypes import Dtype
from ldpkernels.keys import Key
from ldpkernels.laws.hybrid import Mechanism
from ldpkernels.laws.piecewise import CellMechanism
from ldpkernels.laws.two_point import Output, TwoPoint, two_point_law

SMALL = 1 << 17  # elements below which a thread costs more than it saves


def two_point_laws(c: Sequence[float], r: Sequence[float], eps: float, dtypes: Sequence[Dtype], output: Output) -> Any:
    """The kernels' parameters for each tensor."""
    return _two_point_laws(tuple(c), tuple(r), eps, tuple(dtypes), output)


@lru_cache(maxsize=64)
def _two_point_laws(c: Any, r: Any, eps: float, dtypes: Any, output: Output) -> Any:
    rows = [two_point_law(ci, ri, eps, d, output)[:7] for ci, ri, d in zip(c, r, dtypes, strict=True)]
    table = np.array(rows, dtype=_native.TWO_POINT_LAW)
    table.flags.writeable = False  # it is shared
    return table


def two_point(
    output: Literal["values", "bits", "thresholds"], spans: Any, laws: Any, key: Any, device_type: str, out: Any = None
) -> None:
    """Run one kernel over all spans. `key` is a Key, or an int64 tensor on the device.

    `out` is the new tensor that the spans' `out` point into, None in place.
    """
    name = capabilities.chosen(device_type)
    if name == "triton":
        from ldpkernels.triton import registry

        registry.launch("two_point", output, spans, laws, key.tensor() if isinstance(key, Key) else key, out)
    elif name == "cuda":
        import torch

        from ldpkernels import _cuda

        stream = torch.cuda.current_stream(key.device).cuda_stream
        getattr(_cuda, f"two_point_{output}")(spans, laws, key.data_ptr(), 2 * key.numel(), key.device.index, stream)
    else:
        words = key.uint32() if isinstance(key, Key) else key.numpy().view(np.uint32)
        if name == "reference":
            from ldpkernels.reference import two_point as reference

            reference.two_point(output, spans, laws, words)
        else:
            getattr(_native, f"two_point_{output}")(spans, laws, words, name, worthwhile_threads(spans))


def cell_laws(
    mechanism: CellMechanism, c: Sequence[float], r: Sequence[float], dtypes: Sequence[Dtype], output: Output
) -> Any:
    """The parameters of the kernels that report cells, for each tensor."""
    return _cell_laws(mechanism, tuple(c), tuple(r), tuple(dtypes), output)


@lru_cache(maxsize=64)
def _cell_laws(mechanism: CellMechanism, c: Any, r: Any, dtypes: Any, output: Output) -> Any:
    cells = [mechanism.cells(ci, ri, d, output) for ci, ri, d in zip(c, r, dtypes, strict=True)]
    if mechanism.name == "hybrid":
        table = np.array([one.hybrid_record() for one in cells], dtype=_native.HYBRID_LAW)
    else:
        table = np.array([one.piecewise_record() for one in cells], dtype=_native.PIECEWISE_LAW)
    table.flags.writeable = False  # it is shared
    return table


def cells(
    mechanism: str,
    output: Literal["values", "cells", "turns"],
    spans: Any,
    laws: Any,
    key: Any,
    device_type: str,
    out: Any = None,
) -> None:
    """Run one kernel of the piecewise or hybrid mechanism over all spans."""
    name = capabilities.chosen(device_type)
    if name in ("cuda", "triton"):  # the CUDA C++ backend has no kernels of these: Triton's run beside it
        if importlib.util.find_spec("triton") is None:
            raise RuntimeError(f"mechanism={mechanism!r} on 'cuda' needs Triton (pip install triton)")
        from ldpkernels.triton import registry

        registry.launch(mechanism, output, spans, laws, key.tensor() if isinstance(key, Key) else key, out)
        return
    words = key.uint32() if isinstance(key, Key) else key.numpy().view(np.uint32)
    if name == "reference":
        from ldpkernels.reference import cells as reference_cells

        reference_cells.cells(mechanism, output, spans, laws, words)
    else:
        getattr(_native, f"{mechanism}_{output}")(spans, laws, words, name, worthwhile_threads(spans))


def laws_of(
    mechanism: Mechanism, c: Sequence[float], r: Sequence[float], dtypes: Sequence[Dtype], output: Output
) -> Any:
    """The parameters of any mechanism's kernels, for each tensor."""
    if isinstance(mechanism, TwoPoint):
        return two_point_laws(c, r, mechanism.eps, dtypes, output)
    return cell_laws(mechanism, c, r, dtypes, output)


def run(
    mechanism: Mechanism, output: Output, spans: Any, laws: Any, key: Any, device_type: str, out: Any = None
) -> None:
    """Run any mechanism's kernel for values or reports over all spans."""
    if isinstance(mechanism, TwoPoint):
        two_point("values" if output == "values" else "bits", spans, laws, key, device_type, out)
    else:
        cells(mechanism.name, "values" if output == "values" else "cells", spans, laws, key, device_type, out)


def worthwhile_threads(spans: Any, small: int = SMALL) -> int:
    """No more threads than there is work for."""
    return max(1, min(capabilities.threads(), int(spans["numel"].sum()) // small))
