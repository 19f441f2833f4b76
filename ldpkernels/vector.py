# SPDX-License-Identifier: Apache-2.0
"""One eps for an entire update, which is the only total that a client can read off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, overload

import numpy as np

from ldpkernels.accounting.arguments import number
from ldpkernels.arrays import AnyArray, Array, Floats, Value
from ldpkernels.dtypes import FLOAT64
from ldpkernels.inputs.checks import numpy_dtype, torch_dtype
from ldpkernels.inputs.containers import Buffers, Tensors, Weights, collect
from ldpkernels.keys import Generator, Key, numpy_key, torch_key
from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.privunitg import PrivUnitG

if TYPE_CHECKING:
    import torch
    from typing_extensions import Required, Unpack

VectorMechanism = Literal["privunitg", "k-of-d"]


class _Options(TypedDict, total=False):
    mechanism: VectorMechanism
    norm: Required[float]
    bound: float | None
    generator: Generator
    buffers: Buffers | None


@overload
def perturb_vector(model: Value, eps: float, **options: Unpack[_Options]) -> Value: ...


@overload
def perturb_vector(model: torch.nn.Module, eps: float, **options: Unpack[_Options]) -> dict[str, torch.Tensor]: ...


@overload
def perturb_vector(model: Mapping[str, Value], eps: float, **options: Unpack[_Options]) -> dict[str, Value]: ...


@overload
def perturb_vector(model: Sequence[Value], eps: float, **options: Unpack[_Options]) -> list[Value]: ...


def perturb_vector(
    model: Weights,
    eps: float,
    *,
    mechanism: VectorMechanism = "privunitg",
    norm: float,
    bound: float | None = None,
    generator: Generator = None,
    buffers: Buffers | None = None,
) -> AnyArray | Sequence[AnyArray] | Mapping[str, AnyArray]:
    """A randomised copy of an update under **one eps for all of it**, unbiased but for the clipping.

    All tensors together are one vector x. It is scaled to an L2 norm of at most `norm`, and whatever it was, every
    output is at most e^eps times as likely as it would have been for any other update. Send differences from the
    server's model rather than weights: their norm is smaller, and the noise is proportional to `norm`.

    Args:
        model: The update: a module, a tensor, a NumPy array, or a sequence or mapping of them. It is not changed.
        eps: Privacy parameter of the entire update.
        mechanism: "privunitg" has the least error, and a guarantee for real numbers, not for floating-point ones
            (docs/mechanisms/vector.md). "k-of-d" is exact in integers, and reports a few coordinates.
        norm: The L2 norm to which the update is clipped. It must not depend on private data.
        bound: For "k-of-d", the largest magnitude of a coordinate, to which each is clipped; None is `norm`, which
            clips none. The error is about proportional to its square.
        generator: As for `perturb_`.
        buffers: As for `perturb_`.

    The result is named and shaped like the model, in fp32 (fp64 for fp64 tensors) in host memory: a dict for a module
    or a mapping. NaN counts as 0.

    >>> import numpy as np, ldpkernels
    >>> update = {"w": np.full((20, 30), 0.01), "b": np.zeros(30)}
    >>> sent = ldpkernels.perturb_vector(update, eps=8.0, norm=1.0)
    >>> sent["w"].shape, sent["b"].shape
    ((20, 30), (30,))
    """
    tensors, _ = collect(model, buffers)
    check = torch_dtype if tensors.is_torch else lambda n, a: numpy_dtype(n, a, written=False)
    dtypes = [check(n, t) for n, t in zip(tensors.names, tensors.values, strict=True)]
    norm = _checked_norm(norm)
    flat = [_float64(t) for t in tensors.values]
    x = np.concatenate(flat)
    sampler = vector_mechanism(mechanism, eps, len(x), norm, bound)
    out = sampler.sample(clipped(x, norm), _key(tensors, generator))
    parts, start = [], 0
    for tensor, part, dtype in zip(tensors.values, flat, dtypes, strict=True):
        end = start + len(part)
        shaped = out[start:end].astype(np.float64 if dtype is FLOAT64 else np.float32).reshape(tuple(tensor.shape))
        parts.append(_as_library(shaped, tensors.is_torch))
        start = end
    if tensors.container == "tensor":
        return parts[0]
    return parts if tensors.container == "sequence" else dict(zip(tensors.names, parts, strict=True))


def vector_mechanism(
    mechanism: str, eps: float, dimension: int, norm: float, bound: float | None = None
) -> KOfD | PrivUnitG:
    """The mechanism that `perturb_vector` runs, with its `effective_eps`, `error(x)` and `event`."""
    if mechanism == "privunitg":
        if bound is not None:
            raise ValueError(f"bound={bound} is for mechanism='k-of-d': leave it out")
        return PrivUnitG(eps, dimension, norm)
    if mechanism == "k-of-d":
        return KOfD(eps, dimension, norm, norm if bound is None else number("bound", bound))
    raise ValueError(f"mechanism={mechanism!r} must be 'privunitg' or 'k-of-d'")


def clipped(x: Array, norm: float) -> Array:
    """x scaled to a length of at most `norm`; NaN counts as 0, and infinities dwarf every number."""
    x = np.where(np.isnan(x), 0.0, x)
    largest = float(np.max(np.abs(x), initial=0.0))
    if largest == 0.0:
        return x
    x = np.where(np.isinf(x), np.sign(x), 0.0) if math.isinf(largest) else x / largest
    scaled: Array = x * min(largest, norm / float(np.linalg.norm(x)))
    return scaled


def _checked_norm(norm: float) -> float:
    norm = number("norm", norm)
    if not (math.isfinite(norm) and norm > 0):
        raise ValueError(f"norm={norm} must be a finite number above 0")
    return norm


def _key(tensors: Tensors, generator: Generator) -> Key:
    if generator is None or isinstance(generator, (str, Key)) or not tensors.is_torch:
        return numpy_key(generator)  # the vector is perturbed in host memory, wherever it came from
    words = torch_key(generator, tensors.values[0].device).cpu().tolist()
    return Key(tuple(w % 2**64 for w in words))


def _float64(tensor: AnyArray) -> Floats:
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float64).ravel()
    flat: Floats = tensor.detach().double().cpu().numpy().ravel()
    return flat


def _as_library(array: Array, is_torch: bool) -> AnyArray:
    if not is_torch:
        return array
    import torch

    return torch.from_numpy(array)
