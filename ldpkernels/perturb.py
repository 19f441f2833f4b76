# SPDX-License-Identifier: Apache-2.0
"""The public functions that randomise each weight on its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ldpkernels import _launch
from ldpkernels.inputs.checks import numpy_dtype
from ldpkernels.inputs.containers import Tensors, collect, per_tensor
from ldpkernels.inputs.memory import Memory, refuse_shared_memory
from ldpkernels.inputs.spans import span_table
from ldpkernels.keys import Generator, numpy_key, torch_key
from ldpkernels.laws.hybrid import Mechanism, mechanism_named
from ldpkernels.laws.two_point import Output, TwoPoint
from ldpkernels.reports import Report
from ldpkernels.wire.codec import codec_of
from ldpkernels.wire.layout import Layout

if TYPE_CHECKING:
    import torch

Model = TypeVar("Model")
Range = float | Sequence[float] | Mapping[str, float]


def perturb_(
    model: Model,
    C: Range,
    R: Range,
    eps: float,
    *,
    mechanism: str = "two-point",
    generator: Generator = None,
    buffers: str | None = None,
) -> Model:
    """Perturb every weight in place, by default by the two-point mechanism of LDP-FL, and return the model.

    A weight w becomes one of two values, C +- R (e^eps + 1) / (e^eps - 1), with the probabilities that make it w on
    average. "piecewise" and "hybrid" have many values, likelier near w, and less variance where eps is above 0.61:
    `ldpkernels.best_mechanism(eps)` says how much. **Each weight on its own** is eps-locally differentially private
    with respect to [C - R, C + R]; a model of d weights released whole is d * eps (`ldpkernels.accounting` composes
    it). C and R must not depend on private data: the output values reveal them.

    Args:
        model: A module, a tensor, a NumPy array, or a sequence or mapping of them, in fp32, fp64, bf16 or fp16.
        C: Center of the range: a number, or one for each tensor, as a sequence or as a mapping by the tensor's or its
            module's name.
        R: Radius of the range, likewise. Weights outside are clipped.
        eps: Privacy parameter of each weight.
        mechanism: "two-point", "piecewise" or "hybrid".
        generator: A `torch.Generator` (for arrays a `numpy.random.Generator`), an `ldpkernels.key`, a key tensor, or
            "secure" for ChaCha20 keyed by the operating system. None is the device's default generator for tensors, and
            "secure" for arrays.
        buffers: "perturb" or "keep", for a module with floating-point buffers.

    Everything is checked before the first write. A NaN weight is reported as C, an infinite one as the end of the
    range. Autograd does not see it, as under `torch.no_grad`.

    >>> import numpy as np, ldpkernels
    >>> w = np.full(100_000, 0.3, np.float32)
    >>> out = ldpkernels.perturb_(w, C=0.0, R=1.0, eps=1.0, generator=ldpkernels.key(0))
    >>> out is w, sorted(set(out.tolist())), round(float(out.mean()), 1)
    (True, [-2.1639535427093506, 2.1639535427093506], 0.3)
    """
    if not _compiling():  # there, the operation itself checks when it runs
        eps = mechanism_named(mechanism, eps).eps
    tensors, c, r = _prepare(model, C, R, buffers)
    if tensors.is_torch:
        import torch

        from ldpkernels.ops import two_point as ops

        operation = _operation(mechanism, "")
        if any(getattr(t, "is_meta", False) for t in tensors.values):  # one would turn the operation into its fake
            ops.check(tensors.values, tensors.names)
        key = torch_key(generator, tensors.values[0].device)
        try:
            with torch.no_grad():
                operation(tensors.values, key, c, r, float(eps))
        except Exception:
            ops.check(tensors.values, tensors.names)  # the same error, with the tensor's name
            raise
    else:
        _perturb_arrays(tensors, c, r, mechanism_named(mechanism, eps), generator)
    return model


def report(
    model: Any,
    C: Range,
    R: Range,
    eps: float,
    *,
    mechanism: str = "two-point",
    generator: Generator = None,
    buffers: str | None = None,
) -> Report:
    """What `perturb_` does, for a server that calls `ldpkernels.aggregate`: one bit a weight, or one byte.

    The arguments and the guarantee are those of `perturb_`; the model is not changed. A report carries the names and
    shapes, C, R and eps, and the bits ("two-point") or bytes ("piecewise", "hybrid"). (In a graph for torch.compile,
    call `torch.ops.ldpkernels.two_point_report` or a sibling, which give the bits alone.)

    >>> import numpy as np, ldpkernels
    >>> one = ldpkernels.report({"w": np.zeros((3, 5))}, C=0.0, R=1.0, eps=1.0)
    >>> one.nbytes
    2
    """
    executed = mechanism_named(mechanism, eps)
    tensors, c, r = _prepare(model, C, R, buffers)
    if tensors.is_torch:
        import torch

        from ldpkernels.ops import two_point as ops

        dtypes, device = ops.check(tensors.values, tensors.names)
        with torch.no_grad():
            key = torch_key(generator, device)
            payload = _operation(mechanism, "report")(tensors.values, key, c, r, executed.eps)
    else:
        dtypes = _checked_arrays(tensors, written=False)
        laws = _launch.laws_of(executed, c, r, dtypes, "report")
        flat = [np.ascontiguousarray(a) for a in tensors.values]
        sizes, codec = [a.size for a in flat], codec_of(executed.name)
        payload = np.empty(codec.payload_bytes(sizes), np.uint8)
        outs = [payload.ctypes.data + offset for offset in codec.offsets(sizes)]
        spans = span_table([a.ctypes.data for a in flat], outs, sizes, dtypes)
        _launch.run(executed, "report", spans, laws, numpy_key(generator), "cpu")
    layout = Layout.of(tensors, c, r, executed, dtypes)
    return Report(layout, payload)


def two_point_threshold(x: Any, c: float, r: float, eps: float, *, output: Output = "report") -> torch.Tensor | Any:
    """The integers T that are executed, as int64: the report is "upper" with probability exactly T / 2^32.

    `output="report"` is the law of `report`, and `output="values"` the law of `perturb_` on tensors of x's dtype, whose
    two values are rounded to that dtype (`TwoPoint.outputs`). Check privacy by comparing any two T, unbiasedness by
    decoding: lower + (upper - lower) * T / 2^32.

    >>> import numpy as np
    >>> two_point_threshold(np.float32([-1, 0, 1, np.nan]), c=0.0, r=1.0, eps=1.0)
    array([1155094610, 2147483648, 3139872686, 2147483648])
    """
    if not _compiling():
        eps = TwoPoint(eps).eps
    if output not in ("report", "values"):
        raise ValueError(f"output={output!r} must be 'report' or 'values'")
    tensors, c_values, r_values = _prepare(x, c, r, None)
    if tensors.container != "tensor":
        raise TypeError(f"x is a {tensors.container}: pass one tensor")
    if tensors.is_torch:
        from ldpkernels.ops import two_point as ops

        if not _compiling():
            ops.check(tensors.values, tensors.names)
        return ops.two_point_threshold(x, c_values[0], r_values[0], float(eps), output)
    dtypes = [numpy_dtype("", x, written=False)]
    laws = _launch.two_point_laws(c_values, r_values, eps, dtypes, output)
    flat, thresholds = np.ascontiguousarray(x), np.empty(x.shape, np.int64)
    spans = span_table([flat.ctypes.data], [thresholds.ctypes.data], [flat.size], dtypes)
    _launch.two_point("thresholds", spans, laws, numpy_key(None), "cpu")
    return thresholds


def _operation(mechanism: str, suffix: str) -> Any:
    """The torch operation of a mechanism."""
    if mechanism == "two-point":
        from ldpkernels.ops import two_point as ops

        return getattr(ops, f"two_point_{suffix}")
    from ldpkernels.ops import cells as ops_cells

    if mechanism not in ops_cells.MECHANISMS:
        raise ValueError(f"mechanism={mechanism!r} must be 'two-point', 'piecewise' or 'hybrid'")
    return getattr(ops_cells, f"{mechanism}_{suffix}")


def _compiling() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def _prepare(model: Any, C: Range, R: Range, buffers: str | None) -> tuple[Tensors, list[float], list[float]]:
    tensors = collect(model, buffers)
    return tensors, per_tensor("C", C, tensors), per_tensor("R", R, tensors)


def _checked_arrays(tensors: Tensors, written: bool) -> Any:
    arrays = tensors.values
    dtypes = [numpy_dtype(n, a, written) for n, a in zip(tensors.names, arrays, strict=True)]
    memories = [Memory(a.ctypes.data, a.shape, a.strides, a.itemsize) for a in arrays]
    refuse_shared_memory(tensors.names, memories)
    return dtypes


def _perturb_arrays(
    tensors: Tensors, c: list[float], r: list[float], mechanism: Mechanism, generator: Generator
) -> None:
    arrays = tensors.values
    dtypes = _checked_arrays(tensors, written=True)
    laws = _launch.laws_of(mechanism, c, r, dtypes, "values")
    flat = [np.ascontiguousarray(a) for a in arrays]
    spans = span_table([a.ctypes.data for a in flat], [0] * len(flat), [a.size for a in flat], dtypes)
    _launch.run(mechanism, "values", spans, laws, numpy_key(generator), "cpu")
    for array, values in zip(arrays, flat, strict=True):
        if not array.flags.c_contiguous:
            array[...] = values
