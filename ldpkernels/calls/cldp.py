# SPDX-License-Identifier: Apache-2.0
"""The public functions of ordinal CLDP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ldpkernels import launch
from ldpkernels.calls.perturb.call import key_of, perform, takes_operation
from ldpkernels.common.arguments import number
from ldpkernels.common.arrays import Array
from ldpkernels.common.keys import Generator, numpy_key
from ldpkernels.inputs.checks import refuse_outside
from ldpkernels.inputs.containers import Buffers, collect
from ldpkernels.inputs.memory import locate
from ldpkernels.inputs.spans import integer_span
from ldpkernels.inputs.transforms import refuse_rows
from ldpkernels.laws.ordinal_cldp_integers import Noise
from ldpkernels.laws.ordinal_cldp_thresholds import Rounding, checked_m, checked_rho, integer_laws, weight_laws

if TYPE_CHECKING:
    import torch

Model = TypeVar("Model")
Values = TypeVar("Values", Array, "torch.Tensor")
Alpha = float | Sequence[float] | Mapping[str, float]


def cldp_(
    model: Model,
    alpha: Alpha,
    c: float,
    rho: int,
    *,
    mechanism: Noise = "exponential",
    rounding: Rounding = "nearest",
    generator: Generator = None,
    buffers: Buffers | None = None,
) -> Model:
    """Perturb every weight in place by the ordinal CLDP mechanism of LDP-Fed, and return the model.

    A weight is clipped to [-c, c] and becomes the integer v = weight 10^rho, rounded. v becomes an integer y on [-c
    10^rho, c 10^rho] with probability proportional to e^(-alpha |y - v| / 2), and the new weight is y 10^-rho. **Each
    weight on its own** has alpha-condensed local differential privacy: whoever sees the result can tell any two values
    that are d integers apart by a factor of at most e^(alpha d). That is not a small epsilon: over the whole box it is
    alpha c 10^rho, and twice that for "laplace" (`OrdinalCLDP.worst_case_eps`).

    Args:
        model: A module, a tensor, a NumPy array, or a sequence or mapping of them, in fp32, fp64, bf16 or fp16.
        alpha: Privacy of one integer step: a number, or one for each tensor, as a sequence or as a mapping by the
            tensor's or its module's name. This is how layers share a budget.
        c: Weights are clipped to [-c, c]. c 10^rho must be below 2^62.
        rho: Digits that are kept after the decimal point.
        mechanism: "exponential" is the paper's: its outputs stay inside the box, and are biased towards the middle.
            "laplace" adds discrete Laplace noise of the same alpha: it is unbiased, has a quarter of the variance, and
            may leave the box.
        rounding: "nearest" is the paper's; "stochastic" rounds so that the integer is the scaled weight on average.
        generator: As for `perturb_`.
        buffers: "perturb" or "keep", for a module with floating-point buffers.

    Everything is checked before the first write. A NaN weight is reported as 0, an infinite one as the end of the box.
    As under `torch.no_grad`, autograd does not see the change: gradients pass through. The time that "exponential"
    takes reveals how many weights lie near the box's ends (docs/mechanisms/ordinal_cldp.md).

    >>> import numpy as np, ldpkernels
    >>> w = np.full(100_000, 0.3, np.float32)
    >>> out = ldpkernels.cldp_(w, alpha=0.1, c=1.0, rho=2, mechanism="laplace", generator=ldpkernels.key(0))
    >>> out is w, round(float(out.mean()), 2), round(float(out.std()), 2)
    (True, 0.3, 0.14)
    """
    tensors, (alphas,) = collect(model, buffers, in_place=True, draws="cldp_", alpha=alpha)
    variances = [name for name in tensors.names if name.endswith("running_var")] if buffers == "perturb" else []
    if variances:
        raise ValueError(
            f"{variances[0]!r} could become negative, since half of the box [-c, c] is negative: pass buffers='keep' "
            "if buffers are not sent, or perturb it by perturb_ with a range of its own"
        )
    c, rho = number("c", c), checked_rho(rho)
    if takes_operation(tensors):
        perform("ordinal_cldp_", tensors, generator, alphas, c, rho, mechanism, rounding)
        return model
    key = key_of(generator, tensors)
    weights = locate(tensors.values, tensors.names, key=key, written=True)
    laws = weight_laws(alphas, c, rho, weights.dtypes, mechanism, rounding)
    launch.overwrite("ordinal_cldp", weights, laws, key)
    return model


def cldp_sample(
    v: Values, alpha: float, M: int, *, mechanism: Noise = "exponential", generator: Generator = None
) -> Values:
    """A sample of the ordinal CLDP mechanism for every integer of v, as a new tensor or array of the same shape.

    Args:
        v: An int64 tensor or array, of integers from -M to M. A GPU clips others, because to check them would
            synchronise.
        alpha: P(y | v) / P(y | v') is at most e^(alpha |v - v'|) for every y.
        M: From 0 to 2^62 - 1. The outputs of "exponential" lie in [-M, M] too; those of "laplace" may not.
        mechanism: "exponential" or "laplace", as for `cldp_`.
        generator: As for `perturb_`.

    >>> import numpy as np, ldpkernels
    >>> y = ldpkernels.cldp_sample(np.zeros(5, np.int64), alpha=4.3e-7, M=10**10, generator=ldpkernels.key(0))
    >>> y.dtype, y.shape, bool((abs(y) <= 10**10).all())
    (dtype('int64'), (5,), True)
    """
    if not isinstance(v, np.ndarray):
        import torch

        from ldpkernels.ops import torch_key
        from ldpkernels.ops.ordinal_cldp import check_integers, ordinal_cldp_sample

        refuse_rows("cldp_sample", [v])
        check_integers(v)
        with torch.no_grad():
            sample: torch.Tensor = ordinal_cldp_sample(
                v, torch_key(generator, v.device), float(alpha), checked_m(M), mechanism
            )
            return sample
    if v.dtype != np.int64 or not v.dtype.isnative:
        raise TypeError(f"v has dtype {v.dtype}: convert it to int64")
    laws = integer_laws(alpha, M, mechanism)
    if v.size:
        refuse_outside("v", int(v.min()), int(v.max()), int(M))
    flat, out = np.ascontiguousarray(v), np.empty(v.shape, np.int64)
    spans = integer_span(flat.ctypes.data, out.ctypes.data, flat.size)
    launch.run("ordinal_cldp", "values", spans, laws, numpy_key(generator), "cpu")
    return out
