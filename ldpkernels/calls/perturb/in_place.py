# SPDX-License-Identifier: Apache-2.0
"""Weights that are randomised where they are, each on its own."""

from __future__ import annotations

from typing import SupportsFloat, TypeAlias, TypeVar

from ldpkernels import launch
from ldpkernels.calls.perturb.call import key_of, laws_of, perform, takes_operation
from ldpkernels.common.keys import Generator
from ldpkernels.inputs.containers import Buffers, Numbers, Tensors, Weights, collect
from ldpkernels.inputs.memory import locate
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.laws.registry import MechanismName, kind_named, mechanism_named
from ldpkernels.laws.weightwise import Weightwise

Model = TypeVar("Model", bound="Weights")
Range: TypeAlias = Numbers


def perturb_(
    model: Model,
    C: Range,
    R: Range,
    eps: SupportsFloat,
    *,
    mechanism: MechanismName = "two-point",
    generator: Generator = None,
    buffers: Buffers | None = None,
) -> Model:
    """Perturb every weight in place, by default by the two-point mechanism of LDP-FL, and return the model.

    A weight w becomes one of two values, C +- R (e^eps + 1) / (e^eps - 1), with the probabilities that make it w on
    average. "piecewise" and "hybrid" have many values, likelier near w, and less variance if eps is above 1.2
    and 0.61: `ldpkernels.best_mechanism(eps)` says how much less. **Each weight on its own** is eps-locally
    differentially private: between any two values of it in [C - R, C + R], against whoever sees the model, such as a
    server. Releasing a model of d weights costs up to d * eps (`ldpkernels.accounting` has the exact figure). C and R
    must not depend on private data: the output values reveal them.

    Args:
        model: A module, a tensor, a NumPy array, or a sequence or mapping of them, in fp32, fp64, bf16 or fp16.
        C: Center of the range: a number, or one for each tensor, as a sequence or as a mapping by the tensor's or its
            module's name.
        R: Radius of the range, likewise. Weights outside are clipped.
        eps: Privacy parameter of each weight.
        mechanism: "two-point", "piecewise" or "hybrid", all of which are right on average. docs/mechanisms has others.
        generator: None (or "secure") for a key from the operating system, even after `torch.manual_seed`. To reproduce
            a run, an `ldpkernels.key`, a key tensor, or a seeded `torch.Generator` (also `torch.default_generator`; for
            arrays a `numpy.random.Generator`).
        buffers: "perturb" or "keep", for a module with floating-point buffers. Also a mapping with the statistics of
            batch normalisation: a running variance needs a range whose outputs are not negative, and a count of batches
            must be zero. With "keep", only the parameters may leave.

    Everything is checked before the first write. Whatever would leave with a module without noise is refused: extra
    states, packed weights, tensors that are attributes. `torch.save` of a view stores all of its storage, so save a
    clone. A NaN weight is reported as C, an infinite one as the end of the range. As under `torch.no_grad`, autograd
    does not see the change: gradients pass through.

    >>> import numpy as np, ldpkernels
    >>> w = np.full(100_000, 0.3, np.float32)
    >>> out = ldpkernels.perturb_(w, C=0.0, R=1.0, eps=1.0, generator=ldpkernels.key(0))
    >>> out is w, sorted(set(out.tolist())), round(float(out.mean()), 1)
    (True, [-2.1639535427093506, 2.1639535427093506], 0.3)
    """
    if is_sharded(model):
        from ldpkernels.ops import shards

        shards.perturb_(shards.Asked(model, C, R, eps, mechanism, generator, buffers))
        return model
    tensors, (c, r) = collect(model, buffers, in_place=True, draws="perturb_", C=C, R=R)
    law = None if tensors.compiling else mechanism_named(mechanism, eps)
    if buffers == "perturb":
        refuse_negative_variances(tensors, c, r, law)
    if law is None or takes_operation(tensors):
        operation = f"{kind_named(mechanism).kernel}_"
        perform(operation, tensors, generator, c, r, float(eps) if law is None else law.eps)
        return model
    key = key_of(generator, tensors)
    weights = locate(tensors.values, tensors.names, key=key, written=True)
    launch.overwrite(law.kernel, weights, laws_of(law, c, r, weights.dtypes, "values"), key)
    return model


def refuse_negative_variances(tensors: Tensors, c: list[float], r: list[float], mechanism: Weightwise | None) -> None:
    """Batch normalisation takes a running variance's square root: eval() would give NaN."""
    for name, tensor, center, radius in zip(tensors.names, tensors.values, c, r, strict=True):
        if name.endswith("running_var"):
            if mechanism is None:
                raise ValueError(
                    f"the outputs of {name!r} cannot be compared with zero in a graph for torch.compile, and a "
                    "variance cannot be negative: call this outside of it, or pass buffers='keep' if buffers are not "
                    "sent"
                )
            low = float(min(mechanism.outputs(center, radius, tensor.dtype)))
            if low < 0:
                raise ValueError(
                    f"C={center:g} and R={radius:g} of {name!r} have the output {low:g}, and a variance cannot be "
                    "negative: give it a range of its own with a larger C or a smaller R, or pass buffers='keep' if "
                    "buffers are not sent"
                )
