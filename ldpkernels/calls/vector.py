# SPDX-License-Identifier: Apache-2.0
"""One eps for an entire update: the total that a client can read off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, overload

import numpy as np

from ldpkernels import launch
from ldpkernels.common import capabilities
from ldpkernels.common.arguments import number
from ldpkernels.common.arrays import AnyArray, Array, Floats, Integers, Value
from ldpkernels.common.dtypes import FLOAT64, Dtype
from ldpkernels.common.keys import Generator, Key, is_secure, numpy_key, secure_key
from ldpkernels.inputs import flat
from ldpkernels.inputs.containers import Buffers, Tensors, Weights, collect
from ldpkernels.inputs.spans import span_table
from ldpkernels.inputs.transforms import outside_of_graphs
from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.privunitg import PrivUnitG
from ldpkernels.laws.vector_gaussian import VectorGaussian

if TYPE_CHECKING:
    import torch
    from typing_extensions import Required, Unpack

Sampled: TypeAlias = "KOfD | PrivUnitG | VectorGaussian"
VectorMechanism = Literal["privunitg", "k-of-d", "gaussian"]


class _Options(TypedDict, total=False):
    mechanism: VectorMechanism
    norm: Required[float]
    bound: float | None
    delta: float | None
    sigma: float | None
    generator: Generator
    buffers: Buffers | None


@overload
def perturb_vector(model: Value, eps: float | None = None, **options: Unpack[_Options]) -> Value: ...


@overload
def perturb_vector(
    model: torch.nn.Module, eps: float | None = None, **options: Unpack[_Options]
) -> dict[str, torch.Tensor]: ...


@overload
def perturb_vector(
    model: Mapping[str, Value], eps: float | None = None, **options: Unpack[_Options]
) -> dict[str, Value]: ...


@overload
def perturb_vector(model: Sequence[Value], eps: float | None = None, **options: Unpack[_Options]) -> list[Value]: ...


@outside_of_graphs
def perturb_vector(
    model: Weights,
    eps: float | None = None,
    *,
    mechanism: VectorMechanism = "privunitg",
    norm: float,
    bound: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    generator: Generator = None,
    buffers: Buffers | None = None,
) -> AnyArray | Sequence[AnyArray] | Mapping[str, AnyArray]:
    """A randomised copy of an update under **one eps for all of it**; its mean is the clipped update.

    All tensors together are one vector x, which is scaled to an L2 norm of at most `norm`. Whatever it was, every
    output that a server sees is at most e^eps times as likely as for any other update ("privunitg": in real arithmetic;
    "gaussian": but for a probability of delta). Send differences from the server's model rather than weights: their
    norm is smaller, and the noise is proportional to `norm`.

    Args:
        model: The update: a module, a tensor, a NumPy array, or a sequence or mapping of them. It is not changed.
        eps: Privacy parameter of the entire update.
        mechanism: "privunitg" has the least error; its guarantee is for real numbers, not for floating-point ones
            (docs/mechanisms/vector.md). "k-of-d" is exact in integers, and reports a few coordinates. "gaussian" adds a
            discrete Gaussian to every weight, is (eps, delta)-LDP in integers, and composes best over rounds
            (docs/mechanisms/vector_gaussian.md): pass `eps` and `delta`, or `sigma`.
        norm: The L2 norm to which the update is clipped. It must not depend on private data.
        bound: For "k-of-d", the magnitude to which each coordinate is clipped. None is `norm`, which clips none. The
            error is about proportional to its square.
        delta: For "gaussian", the probability that eps excludes.
        sigma: For "gaussian", the deviation of the noise, in place of eps and delta; `vector_mechanism` has its eps.
        generator: As for `perturb_`.
        buffers: As for `perturb_`.

    The result is named and shaped like the model, in fp32 (fp64 for fp64 tensors): a dict for a module or a mapping.
    With Triton, "privunitg" and "gaussian" leave it on the update's GPU; otherwise it is in host memory. NaN counts as
    0.

    >>> import numpy as np, ldpkernels
    >>> update = {"w": np.full((20, 30), 0.01), "b": np.zeros(30)}
    >>> sent = ldpkernels.perturb_vector(update, eps=8.0, norm=1.0)
    >>> sent["w"].shape, sent["b"].shape
    ((20, 30), (30,))
    >>> sent = ldpkernels.perturb_vector(update, eps=8.0, delta=1e-5, mechanism="gaussian", norm=1.0)
    """
    tensors, _ = collect(model, buffers, draws="perturb_vector", reads="perturb_vector")
    norm = _checked_norm(norm)
    law = vector_mechanism(mechanism, eps, sum(flat.sizes(tensors)), norm, bound, delta=delta, sigma=sigma)
    key = vector_key(tensors, generator)
    dtypes, sizes = flat.formats(tensors), flat.sizes(tensors)  # memory, after all that can run a caller's code
    if sum(sizes) != law.dimension:
        raise ValueError(f"the update has {sum(sizes)} weights now, and had {law.dimension} when the call began")
    kinds = [np.float64 if dtype is FLOAT64 else np.float32 for dtype in dtypes]
    if isinstance(law, (PrivUnitG, VectorGaussian)):
        return flat.contained(tensors, _report(law, tensors.values, dtypes, kinds, key))
    outs: list[Array] = [np.zeros(size, kind) for size, kind in zip(sizes, kinds, strict=True)]
    chosen = law.coordinates(key)
    numbers = _clipped_at(tensors.values, dtypes, sizes, chosen, norm)
    with capabilities.on_the_host():
        flat.put(outs, sizes, chosen, law.report(numbers, key))
    return flat.contained(tensors, outs)


def vector_mechanism(
    mechanism: str,
    eps: float | None,
    dimension: int,
    norm: float,
    bound: float | None = None,
    *,
    delta: float | None = None,
    sigma: float | None = None,
) -> Sampled:
    """The mechanism that `perturb_vector` runs, with its `error(x)`, `event` and `epsilon(delta)`."""
    if mechanism not in ("privunitg", "k-of-d", "gaussian"):
        raise ValueError(f"mechanism={mechanism!r} must be 'privunitg', 'k-of-d' or 'gaussian'")
    if bound is not None and mechanism != "k-of-d":
        raise ValueError(f"bound={bound} is for mechanism='k-of-d': leave it out")
    if mechanism == "gaussian":
        if sigma is not None and eps is None and delta is None:
            return VectorGaussian(number("sigma", sigma), dimension, norm)
        if sigma is not None or eps is None or delta is None:
            raise ValueError(f"eps={eps}, delta={delta}, sigma={sigma}: pass eps and delta, or sigma alone")
        return _calibrated(number("eps", eps), number("delta", delta), dimension, norm)
    if delta is not None or sigma is not None:
        raise ValueError(f"delta={delta}, sigma={sigma} are for mechanism='gaussian': leave them out")
    if eps is None:
        raise ValueError("eps is missing: the privacy parameter of the entire update")
    if mechanism == "privunitg":
        return PrivUnitG(eps, dimension, norm)
    return KOfD(eps, dimension, norm, norm if bound is None else number("bound", bound))


@lru_cache(maxsize=64)
def _calibrated(eps: float, delta: float, dimension: int, norm: float) -> VectorGaussian:
    return VectorGaussian.calibrated(eps, delta, dimension=dimension, norm=norm)


def _clipped_at(
    values: Sequence[AnyArray], dtypes: Sequence[Dtype], sizes: Sequence[int], places: Integers, norm: float
) -> Floats:
    """The weights at these places of an update that is clipped to a norm; cleaned of what is not a number.

    Of an update on a GPU these are all that is copied to the host, unless there is something to clean.
    """
    values, device = flat.in_reach(values)
    spans = span_table([flat.address(v) for v in values], [0] * len(values), sizes, dtypes)
    length = launch.norm(spans, device)
    if not math.isfinite(length):
        return flat.clipped(flat.float64s(flat.in_host_memory(values)), norm)[places]
    return flat.at(values, sizes, places) * (norm / length if length > norm else 1.0)


def _report(
    law: PrivUnitG | VectorGaussian,
    values: Sequence[AnyArray],
    dtypes: Sequence[Dtype],
    kinds: Sequence[type[np.floating]],
    key: Key,
) -> Sequence[AnyArray]:
    """The parts as they lie in memory; without a norm, cleaned of what is not a number, in fp64 on the host."""
    values, device = flat.in_reach(values)
    sizes = [math.prod(value.shape) for value in values]
    outs = [launch.empty(size, kind, device) for size, kind in zip(sizes, kinds, strict=True)]
    try:
        law.write([flat.address(value) for value in values], dtypes, outs, key, device)
        return outs
    except OverflowError:
        x = flat.float64s(flat.in_host_memory(values))
    x, unit = flat.direction(x) if isinstance(law, PrivUnitG) else (flat.clipped(x, law.norm), 1.0)
    parts = [launch.copied(part, device) for part in np.split(x, np.cumsum(sizes)[:-1])]
    addresses, wide = [flat.address(part) for part in parts], [FLOAT64] * len(parts)
    if isinstance(law, VectorGaussian):
        law.write(addresses, wide, outs, key, device)
        return outs
    reports = [launch.empty(size, np.float64, device) for size in sizes]
    law.write(addresses, wide, reports, key, device, unit=unit)
    return [one if kind is np.float64 else flat.narrowed(one) for one, kind in zip(reports, kinds, strict=True)]


def _checked_norm(norm: float) -> float:
    norm = number("norm", norm)
    if not (math.isfinite(norm) and norm > 0):
        raise ValueError(f"norm={norm} must be a finite number above 0")
    return norm


def vector_key(tensors: Tensors, generator: Generator) -> Key:
    """The key of a call on a whole vector: the host's, from which a device has it."""
    on_a_gpu = tensors.is_torch and tensors.values[0].device.type != "cpu"
    if on_a_gpu and is_secure(generator):
        return secure_key("chacha20")
    if generator is None or isinstance(generator, (str, Key)) or not tensors.is_torch:
        return numpy_key(generator)
    from ldpkernels.ops.keys import torch_key_on_host

    return torch_key_on_host(generator, tensors.values[0].device)
