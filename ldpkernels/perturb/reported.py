# SPDX-License-Identifier: Apache-2.0
"""The report of a model, for a server that adds up many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from ldpkernels import launch
from ldpkernels.arrays import Array, Bytes
from ldpkernels.capabilities import chosen_isa
from ldpkernels.dtypes import Dtype
from ldpkernels.inputs.checks import checked_arrays, tensor_dtypes
from ldpkernels.inputs.containers import Buffers, Container, Weights, collect
from ldpkernels.inputs.plain import Plain, plain, ranges_of
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.inputs.spans import span_table
from ldpkernels.inputs.transforms import break_graph
from ldpkernels.inputs.views import contiguous
from ldpkernels.keys import Generator, Key, host_key, numpy_key, torch_key
from ldpkernels.laws.registry import MechanismName, law_table, mechanism_named
from ldpkernels.laws.weightwise import Weightwise
from ldpkernels.optional import is_compiling, is_tensor
from ldpkernels.perturb.in_place import Range
from ldpkernels.reports import Report
from ldpkernels.wire.codec import codec_of
from ldpkernels.wire.layout import Layout

if TYPE_CHECKING:
    import torch


def report(
    model: Weights,
    C: Range,
    R: Range,
    eps: SupportsFloat,
    *,
    mechanism: MechanismName = "two-point",
    generator: Generator = None,
    buffers: Buffers | None = None,
) -> Report:
    """What `perturb_` does, for a server that calls `ldpkernels.aggregate`: one bit a weight, or one byte.

    The arguments and the guarantee are those of `perturb_`; the model is not changed. A report carries the names and
    shapes, C, R and eps, and the bits ("two-point") or bytes ("piecewise", "hybrid"). (A report breaks the graph of
    torch.compile: in one, `torch.ops.ldpkernels.two_point_report` or a sibling give the bits alone.)

    >>> import numpy as np, ldpkernels
    >>> one = ldpkernels.report({"w": np.zeros((3, 5))}, C=0.0, R=1.0, eps=1.0)
    >>> one.nbytes
    2
    """
    if is_compiling():
        return break_graph(
            "report", lambda: report(model, C, R, eps, mechanism=mechanism, generator=generator, buffers=buffers)
        )
    if (plainly := _reported_plain(model, C, R, eps, mechanism, generator, buffers)) is not None:
        return plainly
    if is_sharded(model):
        from ldpkernels.ops import shards

        return Report(*shards.report(shards.Asked(model, C, R, eps, mechanism, generator, buffers)))
    kind = mechanism_named(mechanism, eps)
    tensors, (c, r) = collect(model, buffers, draws="report", C=C, R=R)
    if tensors.is_torch:
        from ldpkernels.ops import OPERATIONS, define

        key = torch_key(generator, tensors.values[0].device)
        arguments = (key, c, r, kind.eps)
        payload = define.named(OPERATIONS[mechanism].report, tensors.values, tensors.names, *arguments)
        dtypes = tensor_dtypes(tensors.values)
    else:
        dtypes = checked_arrays(tensors.names, tensors.values, written=False)
        payload = _report_arrays(tensors.values, dtypes, c, r, kind, numpy_key(generator))
    return Report(Layout.of(tensors, c, r, kind, dtypes), payload)


def _reported_plain(
    model: Weights,
    C: Range,
    R: Range,
    eps: SupportsFloat,
    mechanism: MechanismName,
    generator: Generator,
    buffers: Buffers | None,
) -> Report | None:
    """The report where nothing of a call is out of the ordinary."""
    found = plain(model, buffers, shapes=True, named=True)
    if found is None or isinstance(C, Mapping) or isinstance(R, Mapping) or is_tensor(generator):
        return None
    kind = mechanism_named(mechanism, eps)
    isa = chosen_isa(kind.kernel)
    if isa is None:
        return None
    c, r, dtypes = ranges_of(found, C, R)
    laws = law_table(kind, c, r, dtypes, "report")
    container, names = _container_of(model, found)
    layout = Layout.of_plain(found, names, c, r, kind, container)
    payload = _payload(layout.nbytes, found.is_torch)
    address = payload.ctypes.data if isinstance(payload, np.ndarray) else payload.data_ptr()
    found.spans["out"] = layout.offsets + address
    launch.report_plain(kind.kernel, kind.reported, found, laws, host_key(generator, found.is_torch), isa)
    return Report(layout, payload)


def _payload(size: int, is_torch: bool) -> Bytes | torch.Tensor:
    if is_torch:
        import torch

        return torch.empty(size, dtype=torch.uint8, device="cpu")
    return np.empty(size, np.uint8)


def _container_of(model: Weights, found: Plain) -> tuple[Container, tuple[str, ...]]:
    """What a plain model is, and the names of its tensors."""
    if isinstance(model, (list, tuple)):
        return "sequence", tuple([str(i) for i in range(len(model))])
    return ("module", found.names) if found.names else ("tensor", ("",))


def _report_arrays(
    arrays: Sequence[Array], dtypes: list[Dtype], c: list[float], r: list[float], mechanism: Weightwise, key: Key
) -> Bytes:
    laws, flat = law_table(mechanism, c, r, dtypes, "report"), contiguous(arrays)
    sizes, codec = [a.size for a in flat], codec_of(mechanism.reported)
    payload = np.empty(codec.payload_bytes(sizes), np.uint8)
    outs = [payload.ctypes.data + offset for offset in codec.offsets(sizes)]
    spans = span_table([a.ctypes.data for a in flat], outs, sizes, dtypes)
    launch.run(mechanism.kernel, mechanism.reported, spans, laws, key, "cpu")
    return payload
