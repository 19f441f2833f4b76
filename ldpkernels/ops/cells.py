# SPDX-License-Identifier: Apache-2.0
"""torch.ops.ldpkernels of the piecewise and hybrid mechanisms, like those of ops.py."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ldpkernels import _launch
from ldpkernels.laws.hybrid import mechanism_named
from ldpkernels.ops.two_point import _is_plain, _key, _library, _spans, check, refuse_apart
from ldpkernels.wire.codec import codec_of

MECHANISMS = ("piecewise", "hybrid")


def _values_(
    name: str, tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
) -> None:
    dtypes, device = check(tensors)
    mechanism = mechanism_named(name, eps)
    laws = _launch.laws_of(mechanism, c, r, dtypes, "values")
    flat = [t if _is_plain(t) else t.contiguous().resolve_neg() for t in tensors]
    spans = _spans(flat, [0] * len(flat), dtypes)
    _launch.run(mechanism, "values", spans, laws, _key(key, device), device.type)
    for tensor, values in zip(tensors, flat, strict=True):
        if values is not tensor:
            with torch.inference_mode():
                tensor.copy_(values)
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


def _report(
    name: str, tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
) -> torch.Tensor:
    dtypes, device = check(tensors)
    mechanism = mechanism_named(name, eps)
    laws = _launch.laws_of(mechanism, c, r, dtypes, "report")
    flat = [t.contiguous().resolve_neg() for t in tensors]
    sizes, codec = [t.numel() for t in flat], codec_of(mechanism.name)
    payload = torch.empty(codec.payload_bytes(sizes), dtype=torch.uint8, device=device)
    outs = [payload.data_ptr() + offset for offset in codec.offsets(sizes)]
    _launch.run(mechanism, "report", _spans(flat, outs, dtypes), laws, _key(key, device), device.type, payload)
    return payload


def _fake_values_(tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float) -> None:
    for tensor in tensors:
        refuse_apart(key, tensor.device)


def _fake_report(
    name: str, tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
) -> Any:
    _fake_values_(tensors, key, c, r, eps)
    size = codec_of(mechanism_named(name, eps).name).payload_bytes([t.numel() for t in tensors])
    return torch.empty(size, dtype=torch.uint8, device=key.device)


for _name in MECHANISMS:
    _library.define(f"{_name}_(Tensor(a!)[] tensors, Tensor key, float[] c, float[] r, float eps) -> ()")
    _library.define(f"{_name}_report(Tensor[] tensors, Tensor key, float[] c, float[] r, float eps) -> Tensor")
    for _op, _implementation, _fake in (
        (f"{_name}_", partial(_values_, _name), _fake_values_),
        (f"{_name}_report", partial(_report, _name), partial(_fake_report, _name)),
    ):
        _library.impl(_op, _implementation, "CPU")
        _library.impl(_op, _implementation, "CUDA")
        _library.impl(_op, torch.library.fallthrough_kernel, "Negative")
        torch.library.register_fake(f"ldpkernels::{_op}", _fake, lib=_library)

piecewise_ = torch.ops.ldpkernels.piecewise_
piecewise_report = torch.ops.ldpkernels.piecewise_report
hybrid_ = torch.ops.ldpkernels.hybrid_
hybrid_report = torch.ops.ldpkernels.hybrid_report

__all__ = ["hybrid_", "hybrid_report", "piecewise_", "piecewise_report"]
