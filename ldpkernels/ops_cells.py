# SPDX-License-Identifier: Apache-2.0
"""torch.ops.ldpkernels of the piecewise and hybrid mechanisms, like those of ops.py."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ldpkernels import _launch
from ldpkernels._codecs import codec_of
from ldpkernels.hybrid import Hybrid
from ldpkernels.ops import _check, _is_plain, _key, _library, _spans
from ldpkernels.piecewise import CellMechanism, Piecewise

_MECHANISMS: dict[str, type[CellMechanism]] = {"piecewise": Piecewise, "hybrid": Hybrid}


def _values_(
    name: str, tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
) -> None:
    dtypes, device = _check(tensors, written=True)
    laws = _launch.cell_laws(_MECHANISMS[name](eps), c, r, dtypes, "values")
    flat = [t if _is_plain(t) else t.contiguous().resolve_neg() for t in tensors]
    _launch.cells(name, "values", _spans(flat, [0] * len(flat), dtypes), laws, _key(key, device), device.type)
    for tensor, values in zip(tensors, flat, strict=True):
        if values is not tensor:
            tensor.copy_(values)
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


def _report(
    name: str, tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
) -> torch.Tensor:
    dtypes, device = _check(tensors, written=False)
    laws = _launch.cell_laws(_MECHANISMS[name](eps), c, r, dtypes, "report")
    flat = [t.contiguous().resolve_neg() for t in tensors]
    sizes, codec = [t.numel() for t in flat], codec_of(name)
    payload = torch.empty(codec.payload_bytes(sizes), dtype=torch.uint8, device=device)
    outs = [payload.data_ptr() + offset for offset in codec.offsets(sizes)]
    _launch.cells(name, "cells", _spans(flat, outs, dtypes), laws, _key(key, device), device.type)
    return payload


def _fake_values_(tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float) -> None:
    return None


def _fake_report(
    name: str, tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
) -> Any:
    size = codec_of(name).payload_bytes([t.numel() for t in tensors])
    return torch.empty(size, dtype=torch.uint8, device=key.device)


for _name in _MECHANISMS:
    _library.define(f"{_name}_(Tensor(a!)[] tensors, Tensor key, float[] c, float[] r, float eps) -> ()")
    _library.define(f"{_name}_report(Tensor[] tensors, Tensor key, float[] c, float[] r, float eps) -> Tensor")
    for _op, _implementation, _fake in (
        (f"{_name}_", partial(_values_, _name), _fake_values_),
        (f"{_name}_report", partial(_report, _name), partial(_fake_report, _name)),
    ):
        _library.impl(_op, _implementation, "CPU")
        _library.impl(_op, _implementation, "CUDA")
        torch.library.register_fake(f"ldpkernels::{_op}", _fake, lib=_library)

piecewise_ = torch.ops.ldpkernels.piecewise_
piecewise_report = torch.ops.ldpkernels.piecewise_report
hybrid_ = torch.ops.ldpkernels.hybrid_
hybrid_report = torch.ops.ldpkernels.hybrid_report

__all__ = ["hybrid_", "hybrid_report", "piecewise_", "piecewise_report"]
