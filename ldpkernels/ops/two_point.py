# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels`: schemas, fake kernels and implementations.

Each operation is a function of its arguments, the key among them, which is a tensor on the tensors' own device: nothing
is hidden, nothing synchronises, and a CUDA graph replays with whatever key the tensor then holds. Library.define and
impl cost 7 microseconds a call, torch.library.custom_op 170.
"""

from __future__ import annotations

from typing import Any

import torch

from ldpkernels import _launch
from ldpkernels.dtypes import Dtype
from ldpkernels.inputs.checks import torch_dtype, torch_dtypes
from ldpkernels.inputs.memory import Memory, apart, refuse_shared_memory
from ldpkernels.inputs.spans import first_elements, report_bytes, span_table
from ldpkernels.keys import CHACHA20, PHILOX
from ldpkernels.laws.two_point import Output

_library: Any = torch.library.Library("ldpkernels", "DEF")
_library.define("two_point_(Tensor(a!)[] tensors, Tensor key, float[] c, float[] r, float eps) -> ()")
_library.define("two_point_report(Tensor[] tensors, Tensor key, float[] c, float[] r, float eps) -> Tensor")
_library.define("two_point_threshold(Tensor x, float c, float r, float eps, str output) -> Tensor")


def _two_point_(tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float) -> None:
    dtypes, device = check(tensors)
    laws = _launch.two_point_laws(c, r, eps, dtypes, "values")
    # A view that is not contiguous is perturbed in a copy, in the order of its elements, and written back.
    flat = [t if _is_plain(t) else t.contiguous().resolve_neg() for t in tensors]
    _launch.two_point("values", _spans(flat, [0] * len(flat), dtypes), laws, _key(key, device), device.type)
    for tensor, values in zip(tensors, flat, strict=True):
        if values is not tensor:
            with torch.inference_mode():  # inference tensors and leaves too: nothing may fail after the first write
                tensor.copy_(values)
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


def _two_point_report(
    tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
) -> torch.Tensor:
    dtypes, device = check(tensors)
    laws = _launch.two_point_laws(c, r, eps, dtypes, "report")
    flat = [t.contiguous().resolve_neg() for t in tensors]
    sizes = [t.numel() for t in flat]
    bits = torch.empty(report_bytes(sizes), dtype=torch.uint8, device=device)
    outs = [bits.data_ptr() + first // 8 for first in first_elements(sizes)]
    _launch.two_point("bits", _spans(flat, outs, dtypes), laws, _key(key, device), device.type, bits)
    return bits


def _two_point_threshold(x: torch.Tensor, c: float, r: float, eps: float, output: Output) -> torch.Tensor:
    dtypes, device = check([x])
    laws = _launch.two_point_laws([c], [r], eps, dtypes, output)
    flat = x.contiguous().resolve_neg()
    thresholds = torch.empty(x.shape, dtype=torch.int64, device=device)
    key = torch.zeros(1, dtype=torch.int64, device=device)  # thresholds draw nothing
    spans = _spans([flat], [thresholds.data_ptr()], dtypes)
    _launch.two_point("thresholds", spans, laws, _key(key, device), device.type, thresholds)
    return thresholds


def _key(key: torch.Tensor, device: torch.device) -> Any:
    refuse_apart(key, device)
    if key.dtype != torch.int64 or key.shape not in ((PHILOX,), (CHACHA20,)):
        raise TypeError(f"a key is an int64 tensor of 1 or 4 words, not {key.dtype} of {tuple(key.shape)}")
    return key.detach().contiguous()


def refuse_apart(key: torch.Tensor, device: torch.device) -> None:
    """The fakes ask too: torch takes a key on "meta" for a wish to run them, whatever the tensors hold."""
    if key.device != device:
        raise ValueError(f"the key is on {key.device} and the tensors are on {device}: move the key there")


def check(tensors: list[torch.Tensor], names: list[str] | None = None) -> tuple[list[Dtype], torch.device]:
    """Everything that could go wrong, before the first write. Errors name the tensors, or give their numbers."""
    if not tensors:
        raise ValueError("no tensors: there is nothing to perturb")
    device = tensors[0].device
    formats = torch_dtypes()
    plain = device.type != "meta" and all(
        isinstance(t, torch.Tensor)
        and t.dtype in formats
        and t.layout is torch.strided
        and t.is_contiguous()
        and t.device == device
        for t in tensors
    )
    if not plain:
        _check_each(tensors, names or [str(i) for i in range(len(tensors))], device)
    extents = [_extent(t) for t in tensors]
    if any(start == 0 and stop for start, stop in extents):
        raise ValueError("a tensor has no memory: its storage was freed, as sharded models do; gather it first")
    if not apart(extents):
        names = names or [str(i) for i in range(len(tensors))]
        refuse_shared_memory(names, [_memory(t) for t in tensors])
    return [formats[t.dtype] for t in tensors], device


def _check_each(tensors: list[torch.Tensor], names: list[str], device: torch.device) -> None:
    for name, t in zip(names, tensors, strict=True):
        torch_dtype(name, t)
        if t.device != device:
            raise ValueError(f"tensor {name!r} is on {t.device} and the first on {device}: perturb each device's apart")


def _is_plain(t: torch.Tensor) -> bool:
    return t.is_contiguous() and not t.is_neg()


def _spans(tensors: list[torch.Tensor], outs: list[int], dtypes: list[Dtype]) -> Any:
    return span_table([t.data_ptr() for t in tensors], outs, [t.numel() for t in tensors], dtypes)


def _extent(t: torch.Tensor) -> tuple[int, int]:
    address = t.data_ptr()
    return (address, address + t.nbytes) if t.is_contiguous() else _memory(t).extent()


def _memory(t: torch.Tensor) -> Memory:
    size = t.element_size()
    return Memory(t.data_ptr(), t.shape, [s * size for s in t.stride()], size)


def _fake_two_point_(
    tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float
) -> None:
    for tensor in tensors:
        refuse_apart(key, tensor.device)


def _fake_report(tensors: list[torch.Tensor], key: torch.Tensor, c: list[float], r: list[float], eps: float) -> Any:
    _fake_two_point_(tensors, key, c, r, eps)
    return torch.empty(report_bytes([t.numel() for t in tensors]), dtype=torch.uint8, device=key.device)


def _fake_threshold(x: torch.Tensor, c: float, r: float, eps: float, output: str) -> Any:
    return torch.empty(x.shape, dtype=torch.int64, device=x.device)


for _name, _implementation, _fake in (
    ("two_point_", _two_point_, _fake_two_point_),
    ("two_point_report", _two_point_report, _fake_report),
    ("two_point_threshold", _two_point_threshold, _fake_threshold),
):
    _library.impl(_name, _implementation, "CPU")
    _library.impl(_name, _implementation, "CUDA")
    _library.impl(_name, torch.library.fallthrough_kernel, "Negative")  # the implementations resolve such views
    torch.library.register_fake(f"ldpkernels::{_name}", _fake, lib=_library)

two_point_ = torch.ops.ldpkernels.two_point_
two_point_report = torch.ops.ldpkernels.two_point_report
two_point_threshold = torch.ops.ldpkernels.two_point_threshold

__all__ = ["two_point_", "two_point_report", "two_point_threshold"]
