# SPDX-License-Identifier: Apache-2.0
"""The integers by which the two-point mechanism decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsFloat, overload

import numpy as np

from ldpkernels import launch
from ldpkernels.common.arrays import AnyArray, Array, Integers
from ldpkernels.common.keys import Key
from ldpkernels.common.optional import is_compiling
from ldpkernels.inputs.containers import collect
from ldpkernels.inputs.memory import locate
from ldpkernels.laws.registry import law_table
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.laws.weightwise import Output, checked_eps

if TYPE_CHECKING:
    import torch


@overload
def two_point_threshold(
    x: torch.Tensor, c: SupportsFloat, r: SupportsFloat, eps: SupportsFloat, *, output: Output = ...
) -> torch.Tensor: ...


@overload
def two_point_threshold(
    x: Array, c: SupportsFloat, r: SupportsFloat, eps: SupportsFloat, *, output: Output = ...
) -> Integers: ...


def two_point_threshold(
    x: AnyArray, c: SupportsFloat, r: SupportsFloat, eps: SupportsFloat, *, output: Output = "report"
) -> AnyArray:
    """The integers T that are executed, as int64: the report is "upper" with probability exactly T / 2^32.

    `output="report"` is the law of `report`. `output="values"` is the law of `perturb_` on tensors of x's dtype, whose
    two values are rounded to that dtype (`TwoPoint.outputs`). To check privacy, compare any two T. To check
    unbiasedness, decode: lower + (upper - lower) * T / 2^32.

    >>> import numpy as np
    >>> two_point_threshold(np.float32([-1, 0, 1, np.nan]), c=0.0, r=1.0, eps=1.0)
    array([1155094610, 2147483648, 3139872686, 2147483648])
    """
    if not is_compiling():
        eps = checked_eps(eps)
    if output not in ("report", "values"):
        raise ValueError(f"output={output!r} must be 'report' or 'values'")
    tensors, (c_values, r_values) = collect(x, None, C=c, R=r)
    if tensors.container != "tensor":
        raise TypeError(f"x is a {tensors.container}: pass one tensor")
    if tensors.is_torch:
        from ldpkernels.ops.weightwise import two_point_threshold as operation

        try:
            found: torch.Tensor = operation(x, c_values[0], r_values[0], float(eps), output)
        except Exception:
            locate(tensors.values, [""])  # the same error, without the tensor's number
            raise
        return found
    weights, thresholds = locate(tensors.values, [""]), np.empty(x.shape, np.int64)
    weights.spans["out"] = thresholds.ctypes.data
    laws = law_table(TwoPoint(checked_eps(eps)), c_values, r_values, weights.dtypes, output)
    launch.run("two_point", "thresholds", weights.spans, laws, Key((0,)), "cpu")
    return thresholds
