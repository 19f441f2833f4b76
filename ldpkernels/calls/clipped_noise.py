# SPDX-License-Identifier: Apache-2.0
"""Sums and means of clipped rows with noise: the step of DP-SGD, and the loss of Han and Xue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsFloat, TypeAlias, TypedDict, TypeVar, overload

import numpy as np

from ldpkernels import _native, launch
from ldpkernels.calls.perturb.call import key_of
from ldpkernels.common.arguments import number
from ldpkernels.common.arrays import AnyArray, Array, Value
from ldpkernels.common.capabilities import chosen_isa
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.common.keys import Generator, numpy_key
from ldpkernels.common.optional import is_compiling, is_tensor
from ldpkernels.inputs.checks import PLAIN_KINDS, numpy_dtype
from ldpkernels.inputs.containers import Tensors, rows_of
from ldpkernels.inputs.memory import contiguous, locate
from ldpkernels.inputs.transforms import is_dual, is_seen_by_torch, refuse_derivatives, refuse_rows
from ldpkernels.laws import clipped_noise as law

if TYPE_CHECKING:
    from typing_extensions import Unpack

NoiseKind = Literal["gaussian", "discrete"]
Clipping = Literal["flat", "per-layer"]
Bounds: TypeAlias = SupportsFloat | Sequence[SupportsFloat]
Name = TypeVar("Name")
Rows: TypeAlias = "AnyArray | Sequence[AnyArray] | Mapping[Name, AnyArray]"


class _Options(TypedDict, total=False):
    generator: Generator
    noise: NoiseKind
    clipping: Clipping


class _SumAlone(_Options, total=False):
    return_info: Literal[False]


class _MeanOptions(_Options, total=False):
    batch_size: SupportsFloat | None


class _MeanAlone(_MeanOptions, _SumAlone, total=False):
    pass


@dataclass(frozen=True)
class ClippedInfo(Generic[Value]):
    """The rows' norms before clipping. **They are exact and private**: for the owner of the data, never for release.

    `norms` has the norm of each row, [B], or with per-layer clipping [B, layers]. The norm of a poisoned row is not
    finite. `single` says that a row is a single number, whose norm is exact.
    """

    norms: Value
    bounds: tuple[float, ...]
    single: bool = False

    @property
    def poisoned(self) -> int:
        """How many rows held NaN or infinite values and were left out."""
        return int((~self._finite()).sum())

    @property
    def clipped(self) -> int:
        """How many rows were scaled down in some layer, or clamped as single numbers. A norm of exactly C counts."""
        if self.single:
            return int(((self.norms >= self.bounds[0]) & self._finite()).sum())
        over = [self._column(i) * law.MARGIN > bound for i, bound in enumerate(self.bounds)]
        some = over[0]
        for column in over[1:]:
            some = some | column
        return int((some & self._finite()).sum())

    def _column(self, i: int) -> Value:
        return self.norms if self.norms.ndim == 1 else self.norms[:, i]

    def _finite(self) -> Any:
        finite = self.norms < float("inf")
        return finite if finite.ndim == 1 else finite.all(1)


@overload
def clipped_noised_sum(x: Value, C: Bounds, sigma: SupportsFloat, **options: Unpack[_SumAlone]) -> Value: ...
@overload
def clipped_noised_sum(
    x: Mapping[Name, Value], C: Bounds, sigma: SupportsFloat, **options: Unpack[_SumAlone]
) -> dict[Name, Value]: ...
@overload
def clipped_noised_sum(
    x: Sequence[Value], C: Bounds, sigma: SupportsFloat, **options: Unpack[_SumAlone]
) -> list[Value]: ...
@overload
def clipped_noised_sum(
    x: Value | Mapping[Name, Value] | Sequence[Value],
    C: Bounds,
    sigma: SupportsFloat,
    *,
    return_info: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Any, ClippedInfo[Value]]: ...
def clipped_noised_sum(
    x: Rows[Name],
    C: Bounds,
    sigma: SupportsFloat,
    *,
    generator: Generator = None,
    noise: NoiseKind = "gaussian",
    clipping: Clipping = "flat",
    return_info: bool = False,
) -> Rows[Name] | tuple[Rows[Name], ClippedInfo[Any]]:
    """The sum of x's rows, each clipped to Euclidean norm C, plus noise of standard deviation C * sigma.

    One row is one sample: adding or removing it changes the sum by C at most. So releasing the sum once is a Gaussian
    mechanism with noise multiplier sigma. A row is scaled by min(1, C / norm); a single number, such as a loss, is
    clamped to [-C, C]. **A row with NaN or Inf is left out**, as if it were zero, and does not disturb the others.

    Args:
        x: [B] or [B, ...], or a sequence or mapping of such tensors or arrays, one for each layer: the gradients of a
            model by sample. fp32, fp64, bf16 or fp16; those that are not contiguous are copied.
        C: The bound, positive. With clipping="per-layer" it may also be one bound for each layer.
        sigma: The noise multiplier; 0 for no noise and no privacy.
        generator: As in `ldpkernels.perturb_`: None for a key from the operating system.
        noise: "gaussian" adds normal numbers of fp64 precision to a floating-point sum. "discrete" rounds every clipped
            row towards zero onto a grid of spacing 2^-26 C or so, adds integers exactly, and adds a discrete Gaussian
            drawn from integers alone: its guarantee holds for the bits that are released.
        clipping: "flat" clips the norm of a sample over all layers. "per-layer" clips each layer, by C / sqrt(layers)
            if C is one number. The noise is sigma times the norm of all bounds, the same in every layer.
        return_info: Also return a `ClippedInfo`: the rows' norms, how many were clipped or poisoned. It is private.

    Returns:
        The noised sum, of the shape and dtype of a row, in x's container. It is differentiable once in x.

    >>> import numpy as np, ldpkernels
    >>> x = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 0.0]])
    >>> out, info = ldpkernels.clipped_noised_sum(x, C=1.0, sigma=0.0, return_info=True)
    >>> out.round(6), info.clipped, info.poisoned
    (array([0.9, 1.2]), 1, 1)
    """
    return _reduce(x, C, sigma, 1.0, generator, (noise, clipping), return_info)


@overload
def clipped_noised_mean(x: Value, C: Bounds, sigma: SupportsFloat, **options: Unpack[_MeanAlone]) -> Value: ...
@overload
def clipped_noised_mean(
    x: Mapping[Name, Value], C: Bounds, sigma: SupportsFloat, **options: Unpack[_MeanAlone]
) -> dict[Name, Value]: ...
@overload
def clipped_noised_mean(
    x: Sequence[Value], C: Bounds, sigma: SupportsFloat, **options: Unpack[_MeanAlone]
) -> list[Value]: ...
@overload
def clipped_noised_mean(
    x: Value | Mapping[Name, Value] | Sequence[Value],
    C: Bounds,
    sigma: SupportsFloat,
    *,
    return_info: Literal[True],
    **options: Unpack[_MeanOptions],
) -> tuple[Any, ClippedInfo[Value]]: ...
def clipped_noised_mean(
    x: Rows[Name],
    C: Bounds,
    sigma: SupportsFloat,
    *,
    batch_size: SupportsFloat | None = None,
    generator: Generator = None,
    noise: NoiseKind = "gaussian",
    clipping: Clipping = "flat",
    return_info: bool = False,
) -> Rows[Name] | tuple[Rows[Name], ClippedInfo[Any]]:
    """The mean of x's rows, each clipped to norm C, plus noise. Of a loss it protects the released scalar only. The
    noise is a constant for the gradient, which stays private data. To train, use `ldpkernels.dp_sgd_step`, which clips
    and noises gradients by sample.

    The sum is divided by the number of rows, poisoned ones included, or by `batch_size`. The size of a Poisson sample
    is private: pass the expected size. For x of shape [B] the result is the loss of Han and Xue (Algorithm 1, lines 10
    to 12), and for x of shape [B, ...] DP-SGD's gradient. The guarantee is the sum's: a row is added or removed, for
    whoever sees the mean.

    >>> import numpy as np, ldpkernels
    >>> losses = np.array([0.5, 2.0, 7.0])
    >>> float(ldpkernels.clipped_noised_mean(losses, C=1.0, sigma=0.0).round(6))
    0.833333
    """
    divisor = 0.0 if batch_size is None else number("batch_size", batch_size)
    if batch_size is not None and not 0 < divisor < float("inf"):
        raise ValueError(f"batch_size={batch_size} must be positive and finite: the expected size of a batch")
    return _reduce(x, C, sigma, divisor, generator, (noise, clipping), return_info)


def _reduce(
    x: Rows[Name],
    C: Bounds,
    sigma: SupportsFloat,
    divisor: float,
    generator: Generator,
    how: tuple[NoiseKind, Clipping],
    return_info: bool,
) -> Rows[Name] | tuple[Rows[Name], ClippedInfo[Any]]:
    names, tensors = _rows(x)
    limits, size = _numbers(C), number("sigma", sigma)
    out: Sequence[AnyArray]
    few = None if return_info else _few_columns(tensors, limits, size, divisor, generator, how)
    if few is not None:
        out, norms = [few], np.empty((0, 1))
    elif is_tensor(tensors[0]):
        from ldpkernels.ops.clipped_noise import checked_rows
        from ldpkernels.ops.clipped_noise import clipped_noised_sum as operation
        from ldpkernels.ops.keys import torch_key

        if not is_compiling():
            refuse_rows("clipped_noised_sum", tensors)
            refuse_derivatives("clipped_noised_sum", tensors)
        if any(getattr(t, "is_meta", False) for t in tensors):  # one would turn the operation into its fake
            checked_rows(tensors, names)
        key = torch_key(generator, tensors[0].device)
        try:
            out, norms = operation(tensors, key, limits, size, divisor, *how)
        except Exception:
            checked_rows(tensors, names)  # the same error, with the tensor's name
            raise
    else:
        out, norms = _reduce_arrays(names, tensors, limits, size, divisor, generator, how)
    result: Rows[Name] = out[0]
    if isinstance(x, Mapping):
        result = dict(zip(x, out, strict=True))
    elif isinstance(x, Sequence):
        result = list(out)
    if not return_info:
        return result
    bounds = tuple(law.bounds(limits, how[1], len(tensors)))
    single = law.is_single([math.prod(t.shape[1:]) for t in tensors])
    return result, ClippedInfo(norms[:, 0] if norms.shape[1] == 1 else norms, bounds, single)


def _few_columns(
    tensors: Sequence[AnyArray],
    C: list[float],
    sigma: float,
    divisor: float,
    generator: Generator,
    how: tuple[NoiseKind, Clipping],
) -> AnyArray | None:
    """The sum of one plain matrix of few columns, as losses are, whose norms nobody asks for; None for any other."""
    x = tensors[0]
    shape = getattr(x, "shape", ())
    if len(tensors) > 1 or not shape or math.prod(shape[1:]) > _native.NARROW or is_tensor(generator):
        return None
    if type(x) not in PLAIN_KINDS or not math.prod(shape) or _is_differentiated(x):
        return None
    if is_tensor(x) and (x.device.type != "cpu" or not x.is_contiguous() or is_seen_by_torch(tensors)):
        return None
    isa = chosen_isa("clipped_noise")
    if isa is None or (isinstance(x, np.ndarray) and not x.flags.c_contiguous):
        return None
    key = key_of(generator, Tensors([""], [x], "tensor", is_tensor(x), False))
    found, rows = locate(tensors, [""]), len(x)
    law.check(C, sigma, *how, found.dtypes)
    divisor, noise = law.divisor_of(divisor, rows), law.noise_of(C, sigma, how[0], rows)
    out = np.empty(tuple(x.shape[1:]), np.float64 if found.dtypes[0] is FLOAT64 else np.float32)
    launch.narrow_sum(found, rows, out, C[0], noise, divisor, key, isa)
    if isinstance(x, np.ndarray):
        with np.errstate(over="ignore"):
            return out.astype(x.dtype, copy=False)
    import torch

    return torch.from_numpy(out).to(x.dtype)


def _is_differentiated(x: AnyArray) -> bool:
    if not is_tensor(x):
        return False
    import torch

    return (x.requires_grad and torch.is_grad_enabled()) or is_dual(x)


def _reduce_arrays(
    names: list[str],
    arrays: list[Array],
    C: list[float],
    sigma: float,
    divisor: float,
    generator: Generator,
    how: tuple[NoiseKind, Clipping],
) -> tuple[list[Array], Array]:
    dtypes = [numpy_dtype(n, a, written=False, overlapping=True) for n, a in zip(names, arrays, strict=True)]
    rows = rows_of(names, [a.shape for a in arrays])
    law.check(C, sigma, *how, dtypes)
    divisor, key = law.divisor_of(divisor, rows), numpy_key(generator)
    out = [np.empty(a.shape[1:], np.float64 if a.itemsize == 8 else np.float32) for a in arrays]
    limits, noise = law.bounds(C, how[1], len(arrays)), law.noise_of(C, sigma, how[0], rows)
    norms = launch.clipped_sums(contiguous(arrays), out, dtypes, limits, noise, divisor, key, "cpu")
    with np.errstate(over="ignore"):
        return [o.astype(a.dtype, copy=False) for o, a in zip(out, arrays, strict=True)], np.asarray(norms)


def _rows(x: Rows[Name]) -> tuple[list[str], list[Any]]:
    if isinstance(x, np.ndarray) or is_tensor(x):
        return [""], [x]
    if isinstance(x, Mapping):
        named = [(str(name), value) for name, value in x.items()]
    elif isinstance(x, Sequence) and not isinstance(x, (str, bytes)):
        named = [(str(i), value) for i, value in enumerate(x)]
    else:
        raise TypeError(f"x is a {type(x).__name__}: pass a tensor, or a sequence or mapping of tensors")
    if not named:
        raise ValueError("x has no tensors: there is nothing to add")
    return [name for name, _ in named], [value for _, value in named]


def _numbers(C: Bounds) -> list[float]:
    try:
        if isinstance(C, (Sequence, np.ndarray)) and not isinstance(C, str):
            return [number("C", c) for c in C]
        return [number("C", C)]
    except TypeError:
        raise TypeError(f"C={C!r} must be a number, or with clipping='per-layer' one for each tensor") from None
