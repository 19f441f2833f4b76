# SPDX-License-Identifier: Apache-2.0
"""Adaptive ranges for each layer: LDP-FL's Algorithm 1, line 13, which the paper leaves open.

A range is a public parameter: the two output values reveal it exactly. Compute it from the aggregated model, on the
server, never from one client's private weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, SupportsFloat, TypeAlias, TypedDict, overload

import numpy as np

from ldpkernels import launch
from ldpkernels._native import Summary
from ldpkernels.common.arguments import number
from ldpkernels.common.arrays import AnyArray, Spans
from ldpkernels.inputs.agreement import Statement
from ldpkernels.inputs.checks import numpy_dtype, torch_dtype
from ldpkernels.inputs.containers import Buffers, Numbers, Tensors, Weights, collect
from ldpkernels.inputs.memory import contiguous
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.inputs.spans import span_table
from ldpkernels.inputs.transforms import outside_of_graphs
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.laws.weightwise import checked_eps

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

Method = Literal["minmax", "quantile", "noise-subtracted"]
By = Literal["module", "tensor", "model"]
Ranges: TypeAlias = tuple[float, float] | tuple[list[float], list[float]] | tuple[dict[str, float], dict[str, float]]


@dataclass
class _Layer:
    """The weights that share a range."""

    name: str
    tensors: list[int]  # their numbers
    min: float = math.inf
    max: float = -math.inf
    sum: float = 0.0
    sum_squares: float = 0.0
    finite: int = 0

    def add(self, tensor: int, part: Summary) -> None:
        self.tensors.append(tensor)
        self.min, self.max = min(self.min, part.min), max(self.max, part.max)
        self.sum += part.sum
        self.sum_squares += part.sum_squares
        self.finite += part.finite

    @property
    def mean(self) -> float:
        return self.sum / self.finite

    @property
    def variance(self) -> float:
        return max(0.0, self.sum_squares / self.finite - self.mean**2)


@dataclass
class _Flat:
    """The weights of all tensors in contiguous memory."""

    values: Sequence[AnyArray]
    spans: Spans
    device: torch.device | None


class _Options(TypedDict, total=False):
    method: Method
    quantile: float
    growth: float | None
    previous: tuple[Numbers, Numbers] | None
    eps: SupportsFloat | None
    clients: int | None
    buffers: Buffers | None


@overload
def ranges(model: Weights, *, by: Literal["model"], **options: Unpack[_Options]) -> tuple[float, float]: ...


@overload
def ranges(model: AnyArray, *, by: By = ..., **options: Unpack[_Options]) -> tuple[float, float]: ...


@overload
def ranges(
    model: torch.nn.Module | Mapping[str, AnyArray],
    *,
    by: Literal["module", "tensor"] = ...,
    **options: Unpack[_Options],
) -> tuple[dict[str, float], dict[str, float]]: ...


@overload
def ranges(
    model: Sequence[AnyArray], *, by: Literal["module", "tensor"] = ..., **options: Unpack[_Options]
) -> tuple[list[float], list[float]]: ...


@overload
def ranges(model: Weights, *, by: By = ..., **options: Unpack[_Options]) -> Ranges: ...


@outside_of_graphs
def ranges(
    model: Weights,
    *,
    method: Method = "minmax",
    by: By = "module",
    quantile: float = 0.99,
    growth: float | None = None,
    previous: tuple[Numbers, Numbers] | None = None,
    eps: SupportsFloat | None = None,
    clients: int | None = None,
    buffers: Buffers | None = None,
) -> Ranges:
    """New ranges (C, R) for the next round, from the aggregated model: arguments for `perturb_` and `report`.

    Args:
        model: The model, mapping, sequence or tensor that the server holds.
        method: "minmax" is the paper's: all weights lie within the range. "quantile" leaves out the outermost weights.
            "noise-subtracted" takes the spread of the weights less the part that the mechanism's noise added; it needs
            `previous`, `eps` and `clients`.
        by: What shares a range: the tensors of a "module" (a layer), each "tensor", or the whole "model".
        quantile: The fraction of a layer's weights within its range, for method="quantile".
        growth: The largest factor by which a radius may grow in a round, such as 1.5. It needs `previous`.
        previous: The ranges (C, R) with which the model was collected.
        eps: Privacy parameter of that round.
        clients: How many reports were averaged.
        buffers: As for `perturb_`.

    If the mean of n clients is noisy, its extremes are mostly noise, and a min/max radius grows from round to round, by
    a factor of about g = B sqrt(2 ln d / n). If g is below 1 it still grows where clients start from the weights that a
    round ended with, because these keep its noise: by about sqrt(1 + g^2) in a round. With `eps` and `clients`, a
    warning says where g is at least 1. With `previous` as well, and for any method, it also says where a radius has
    grown and the round's noise is more than half of it. `growth=1.0` never lets a radius grow; with any `growth` there
    are no warnings.

    >>> import numpy as np
    >>> ranges({"a.weight": np.array([-1.0, 3.0]), "a.bias": np.array([0.5]), "b.weight": np.array([2.0, 2.5])})
    ({'a': 1.0, 'b': 2.25}, {'a': 2.0, 'b': 0.25})
    """
    sharded = is_sharded(model)

    def checked() -> tuple[Tensors, Statement]:
        _check(method, by, quantile, growth, previous, eps, clients)
        if sharded and method == "quantile":
            raise ValueError(
                "method='quantile' needs all weights of a layer in one place, and a DTensor's are not: use 'minmax' or "
                "'noise-subtracted', or pass the full_tensor() of each"
            )
        tensors, _ = collect(model, buffers, sharded=sharded, reads="ranges")
        said = {"the call": "ranges", "method": method, "by": by, "growth": growth, "previous": previous}
        shapes = [tuple(t.shape) for t in tensors.values] if sharded else []
        return tensors, {**said, "eps": eps, "clients": clients, "names": tensors.names, "shapes": shapes}

    found: dict[str, tuple[float, float]] = {}
    if sharded:
        from ldpkernels.ops import shards

        tensors, summaries = shards.summaries(model, checked)
        layers = _layers(tensors, by, summaries)
    else:
        tensors, _ = checked()
        flat = _flat(tensors)
        layers = _layers(tensors, by, launch.summaries(flat.spans, flat.device))
        found = _quantile_ranges(layers, flat, quantile) if method == "quantile" else {}
    C: dict[str, float] = {}
    R: dict[str, float] = {}
    for layer in layers:
        if not layer.finite:
            if any(math.prod(tensors.values[i].shape) for i in layer.tensors):
                raise ValueError(f"layer {layer.name!r} has no finite weight: its range cannot be computed")
            C[layer.name] = R[layer.name] = 0.0
            continue
        before = _previous_radius(previous, layer.name, tensors)
        if method == "quantile":
            C[layer.name], radius = found[layer.name]
        elif method == "noise-subtracted":
            assert before is not None and eps is not None and clients is not None  # noqa: PT018 - by _check
            C[layer.name], radius = layer.mean, _noise_subtracted_radius(layer, before, eps, clients)
        else:
            C[layer.name], radius = (layer.min + layer.max) / 2, (layer.max - layer.min) / 2
        if growth is None and eps is not None and clients is not None:
            _warn_of_divergence(layer, method, radius, before, eps, clients)
        if growth is not None and before:
            radius = min(radius, growth * before)
        if not math.isfinite(C[layer.name]) or not 0 <= radius < math.inf:
            raise ValueError(f"layer {layer.name!r} has weights too large for a range: leave it out, or clip it")
        R[layer.name] = radius
    if by == "model" or tensors.container == "tensor":
        return C[layers[0].name], R[layers[0].name]
    if tensors.container == "sequence":
        return [C[n] for n in tensors.names], [R[n] for n in tensors.names]
    return C, R


def growth_rate(eps: SupportsFloat, clients: int, weights: int) -> float:
    """How far the noise of a round reaches in a layer's mean, in units of the radius: above 1 a min/max range grows.

    >>> round(growth_rate(0.5, clients=100, weights=20_000), 2)
    1.82
    """
    return TwoPoint(checked_eps(eps)).scale * math.sqrt(2 * math.log(max(weights, 2)) / clients)


def _check(
    method: str,
    by: str,
    quantile: float,
    growth: float | None,
    previous: tuple[Numbers, Numbers] | None,
    eps: SupportsFloat | None,
    clients: int | None,
) -> None:
    if method not in ("minmax", "quantile", "noise-subtracted"):
        raise ValueError(f"method={method!r} must be 'minmax', 'quantile' or 'noise-subtracted'")
    if by not in ("module", "tensor", "model"):
        raise ValueError(f"by={by!r} must be 'module', 'tensor' or 'model'")
    if not 0 < number("quantile", quantile) <= 1:
        raise ValueError(f"quantile={quantile} must be above 0 and at most 1")
    if growth is not None and not number("growth", growth) >= 1:
        raise ValueError(f"growth={growth} must be at least 1")
    if clients is not None and not number("clients", clients) >= 1:
        raise ValueError(f"clients={clients} must be at least 1")
    if growth is not None and previous is None:
        raise ValueError("growth needs previous=(C, R): pass the ranges of the round before")
    if method == "noise-subtracted" and (previous is None or eps is None or clients is None):
        raise ValueError("method='noise-subtracted' needs previous=(C, R), eps and clients: they give the noise")


def _flat(tensors: Tensors) -> _Flat:
    named = list(zip(tensors.names, tensors.values, strict=True))
    if tensors.is_torch:
        dtypes = [torch_dtype(n, t) for n, t in named]
    else:
        dtypes = [numpy_dtype(n, a, written=False) for n, a in named]
    flat = contiguous([t.detach() for t in tensors.values] if tensors.is_torch else tensors.values)
    addresses = [t.data_ptr() if tensors.is_torch else t.ctypes.data for t in flat]
    spans = span_table(addresses, [0] * len(flat), [math.prod(t.shape) for t in flat], dtypes)
    return _Flat(flat, spans, flat[0].device if tensors.is_torch else None)


def _layers(tensors: Tensors, by: By, summaries: Sequence[Summary]) -> list[_Layer]:
    """The layers with what their weights add up to."""
    layers: dict[str, _Layer] = {}
    for i, (name, part) in enumerate(zip(tensors.names, summaries, strict=True)):
        group = name
        if by == "model":
            group = ""
        elif by == "module" and tensors.container in ("module", "mapping"):
            group = name.rpartition(".")[0]
        layers.setdefault(group, _Layer(group, [])).add(i, part)
    return list(layers.values())


def _quantile_ranges(layers: list[_Layer], flat: _Flat, quantile: float) -> dict[str, tuple[float, float]]:
    """Center and radius of each layer that has weights."""
    held = [layer for layer in layers if layer.finite]
    if not held:
        return {}
    of = np.full(len(flat.values), -1)
    for i, layer in enumerate(held):
        of[layer.tensors] = i
    chosen = np.flatnonzero(of >= 0).tolist()
    finite = np.array([layer.finite for layer in held])
    ends = np.array([(1 - quantile) / 2, (1 + quantile) / 2])
    found = launch.quantiles(flat.spans[chosen], of[chosen], finite, ends, flat.device)
    pairs = zip(held, found.tolist(), strict=True)
    return {layer.name: ((low + high) / 2, (high - low) / 2) for layer, (low, high) in pairs}


def _noise_subtracted_radius(layer: _Layer, previous_radius: float, eps: SupportsFloat, clients: int) -> float:
    """The radius that holds d weights of the spread that is left when the noise's is taken away.

    The noise's variance is at most (r B)^2 / n a weight. What is left is known to about noise * sqrt(2 / d), so it is
    never taken for less than three times that: a layer whose signal cannot be seen keeps a small range, not none.
    """
    noise = (previous_radius * TwoPoint(checked_eps(eps)).scale) ** 2 / clients
    spread = max(layer.variance - noise, 3 * noise * math.sqrt(2 / layer.finite))
    return math.sqrt(spread * 2 * math.log(max(layer.finite, 2)))


def _warn_of_divergence(
    layer: _Layer, method: Method, radius: float, before: float | None, eps: SupportsFloat, clients: int
) -> None:
    """Where noise alone lets a range grow: at once, or through what stays in the weights from round to round."""
    rate = growth_rate(eps, clients, layer.finite)
    if method == "minmax" and rate >= 1:
        how = f"a min/max range grows about {rate:.2g} times a round from noise alone"
    elif before and before < radius <= 2 * rate * before:
        how = (  # without the radii: what is told every round is told once
            f"the noise of a round reaches {rate:.2g} of the last radius, over half of the new one, which is larger: "
            "where clients start from these weights it will grow on"
        )
    else:
        return
    warnings.warn(
        f"layer {layer.name!r}: at eps={eps} with {clients} clients {how}: pass growth=1.0 with previous=(C, R), which "
        "never lets a range grow, or collect from more clients or at a larger eps",
        RuntimeWarning,
        stacklevel=4,  # the caller of ranges, behind its decorator
    )


def _previous_radius(previous: tuple[Numbers, Numbers] | None, name: str, tensors: Tensors) -> float | None:
    if previous is None:
        return None
    radius = previous[1]
    if isinstance(radius, Mapping):
        if name not in radius:
            raise ValueError(f"previous has no range for layer {name!r}: pass what ranges(..., by=...) returned before")
        radius = radius[name]
    elif isinstance(radius, Sequence):
        radius = radius[tensors.names.index(name)]
    radius = number(f"previous of layer {name!r}", radius)
    if not 0 <= radius < math.inf:
        raise ValueError(f"previous has the radius {radius} for layer {name!r}: pass finite ones that are not negative")
    return radius
