# SPDX-License-Identifier: Apache-2.0
"""The report of a model, for a server that adds up many."""

from __future__ import annotations

from typing import SupportsFloat

from ldpkernels import launch
from ldpkernels.calls.perturb.call import key_of, laws_of, perform, takes_operation
from ldpkernels.calls.perturb.in_place import Range
from ldpkernels.calls.reports import Report
from ldpkernels.common.keys import Generator
from ldpkernels.common.optional import is_compiling
from ldpkernels.inputs.checks import tensor_dtypes
from ldpkernels.inputs.containers import Buffers, Weights, collect
from ldpkernels.inputs.memory import locate
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.inputs.transforms import break_graph
from ldpkernels.laws.registry import MechanismName, mechanism_named
from ldpkernels.wire.layout import Layout


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
    """Randomise every weight as `perturb_` does, and return one bit or byte for each, which `aggregate` averages.

    The arguments and the guarantee are those of `perturb_`: eps is between any two values of a weight, for whoever sees
    the report. The model is not changed. A report has the names and shapes, C, R and eps, and the bits ("two-point") or
    bytes ("piecewise", "hybrid"). It breaks the graph of torch.compile; inside of one,
    `torch.ops.ldpkernels.two_point_report` and its siblings give the bits alone.

    >>> import numpy as np, ldpkernels
    >>> one = ldpkernels.report({"w": np.zeros((3, 5))}, C=0.0, R=1.0, eps=1.0)
    >>> one.nbytes
    2
    """
    if is_compiling():
        return break_graph(
            "report", lambda: report(model, C, R, eps, mechanism=mechanism, generator=generator, buffers=buffers)
        )
    if is_sharded(model):
        from ldpkernels.ops import shards

        return Report(*shards.report(shards.Asked(model, C, R, eps, mechanism, generator, buffers)))
    law = mechanism_named(mechanism, eps)
    tensors, (c, r) = collect(model, buffers, draws="report", C=C, R=R)
    if takes_operation(tensors):
        payload = perform(f"{law.kernel}_report", tensors, generator, c, r, law.eps)
        return Report(Layout.of(tensors, c, r, law, tensor_dtypes(tensors.values)), payload)
    key = key_of(generator, tensors)
    weights = locate(tensors.values, tensors.names, key=key)
    laws, layout = laws_of(law, c, r, weights.dtypes, "report"), Layout.of(tensors, c, r, law, weights.dtypes)
    return Report(layout, launch.report(law.kernel, law.reported, weights, laws, key, layout.nbytes, layout.offsets))
