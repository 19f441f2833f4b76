# SPDX-License-Identifier: Apache-2.0
"""The public functions that randomise each weight on its own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NoReturn, SupportsFloat, TypeAlias, TypeVar, overload

import numpy as np

from ldpkernels import launch
from ldpkernels.arrays import AnyArray, Array, Bytes, Integers
from ldpkernels.capabilities import chosen_isa
from ldpkernels.dtypes import Dtype
from ldpkernels.inputs.checks import checked_arrays, checked_tensors, tensor_dtypes
from ldpkernels.inputs.containers import Buffers, Container, Numbers, Tensors, Weights, collect, per_tensor
from ldpkernels.inputs.plain import Plain, plain
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.inputs.spans import span_table
from ldpkernels.inputs.transforms import break_graph
from ldpkernels.inputs.views import contiguous, through
from ldpkernels.keys import Generator, Key, host_key, numpy_key, torch_key
from ldpkernels.laws.registry import MechanismName, executed, kind_named, law_table, mechanism_named
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.laws.weightwise import Output, Weightwise, checked_eps
from ldpkernels.optional import is_compiling, is_tensor
from ldpkernels.reports import Report
from ldpkernels.wire.codec import codec_of
from ldpkernels.wire.layout import Layout

if TYPE_CHECKING:
    import torch

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
        mechanism: "two-point", "piecewise" or "hybrid", which are right on average; docs/mechanisms has others.
        generator: None (or "secure") for ChaCha20 with a key from the operating system, whatever was seeded. To
            reproduce, an `ldpkernels.key`, a key tensor, or a seeded `torch.Generator` (`torch.default_generator` is
            one; for arrays a `numpy.random.Generator`).
        buffers: "perturb" or "keep", for a module with floating-point buffers, or a mapping with the statistics of
            batch normalisation. A running variance needs a range whose outputs are not negative, and a count of
            batches must be zero. With "keep", nothing but the parameters may leave.

    Everything is checked before the first write, and what would leave with a module unperturbed is refused: extra
    states, packed weights, tensors that are attributes. (`torch.save` of a view stores all of its storage: save a
    clone.) A NaN weight is reported as C, an infinite one as the end of the range. Autograd does not see it, as under
    `torch.no_grad`: gradients pass through as if nothing was changed.

    >>> import numpy as np, ldpkernels
    >>> w = np.full(100_000, 0.3, np.float32)
    >>> out = ldpkernels.perturb_(w, C=0.0, R=1.0, eps=1.0, generator=ldpkernels.key(0))
    >>> out is w, sorted(set(out.tolist())), round(float(out.mean()), 1)
    (True, [-2.1639535427093506, 2.1639535427093506], 0.3)
    """
    if _perturbed_plain(model, C, R, eps, mechanism, generator, buffers):
        return model
    if is_sharded(model):
        from ldpkernels.ops import shards

        shards.perturb_(shards.Asked(model, C, R, eps, mechanism, generator, buffers))
        return model
    tensors, (c, r) = collect(model, buffers, in_place=True, draws="perturb_", C=C, R=R)
    if tensors.compiling:
        kind_named(mechanism)
        kind = None
    else:
        kind = mechanism_named(mechanism, eps)
    if buffers == "perturb":
        _refuse_negative_variances(tensors, c, r, kind)
    if tensors.is_torch:
        from ldpkernels.ops import OPERATIONS, define

        key = torch_key(generator, tensors.values[0].device)
        define.named(OPERATIONS[mechanism].perturb, tensors.values, tensors.names, key, c, r, float(eps))
    else:
        _perturb_arrays(tensors, c, r, mechanism_named(mechanism, eps), generator)
    return model


def prepare(
    model: Model,
    C: Range,
    R: Range,
    eps: SupportsFloat,
    *,
    mechanism: MechanismName = "two-point",
    buffers: Buffers | None = None,
) -> Prepared[Model]:
    """`perturb_` for a loop: everything is checked and computed now, and `perturb()` is a call of the same tensors.

    The arguments are those of `perturb_`; the generator is the call's own, as a key is used once. Every call looks
    again at all that could have changed and refuses what did: which tensors are registered, where they lie, their
    shapes, dtypes and devices, what else would leave with the model. Their values may change, and ranges may not.

    >>> import numpy as np, ldpkernels
    >>> w = np.zeros(8, np.float32)
    >>> perturb = ldpkernels.prepare(w, C=0.0, R=1.0, eps=4.0)
    >>> for step in range(3):
    ...     w[:] = 0.5
    ...     _ = perturb(ldpkernels.key(step))
    >>> sorted(set(w.round(2).tolist()))
    [-1.0399999618530273, 1.0399999618530273]
    """
    return Prepared(model, C, R, eps, mechanism, buffers)


class Prepared(Generic[Model]):
    """What `ldpkernels.prepare` returns."""

    def __init__(
        self, model: Model, C: Range, R: Range, eps: SupportsFloat, mechanism: MechanismName, buffers: Buffers | None
    ) -> None:
        if is_sharded(model):
            raise TypeError("prepare takes no DTensors: call perturb_, where the ranks agree on every call")
        tensors, (self._c, self._r) = collect(model, buffers, in_place=True, draws="prepare", C=C, R=R)
        kind = mechanism_named(mechanism, eps)
        if buffers == "perturb":
            _refuse_negative_variances(tensors, self._c, self._r, kind)
        if tensors.is_torch:
            dtypes = checked_tensors(tensors.values, names=tensors.names).dtypes
        else:
            dtypes = checked_arrays(tensors.names, tensors.values, written=True)
        self._laws = law_table(kind, self._c, self._r, dtypes, "values")
        self._model, self._eps, self._mechanism, self._buffers = model, kind.eps, mechanism, buffers
        self._kernel, self._names, self._values = kind.kernel, tensors.names, tensors.values
        self._places = [_place(value) for value in tensors.values]
        self._plain = plain(model, buffers, shapes=True)

    def __call__(self, generator: Generator = None) -> Model:
        """Perturb the tensors in place, and return the model."""
        found = None if is_tensor(generator) else plain(self._model, self._buffers, shapes=True)
        if found is not None and self._plain is not None and found.same(self._plain):
            isa = chosen_isa(self._kernel)
            if isa is not None:
                launch.run_plain(self._kernel, found, self._laws, host_key(generator, found.is_torch), isa)
                return self._model
        if not is_compiling():
            self._refuse_changes(collect(self._model, self._buffers, in_place=True, draws="a prepared call")[0])
        numbers, mechanism = (self._c, self._r, self._eps), self._mechanism
        return perturb_(self._model, *numbers, mechanism=mechanism, generator=generator, buffers=self._buffers)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a prepared call is for its own tensors: prepare another for a copy, or in another process")

    def _refuse_changes(self, now: Tensors) -> None:
        for name, other in itertools.zip_longest(self._names, now.names):
            if name != other:
                raise ValueError(f"tensor {name or other!r} came or went since the call was prepared: prepare it again")
        for name, value, before, place in zip(self._names, now.values, self._values, self._places, strict=True):
            if value is not before or _place(value) != place:
                raise ValueError(
                    f"tensor {name!r} is another one, or lies elsewhere, or has another shape or dtype than when the "
                    "call was prepared: prepare it again"
                )


def _place(value: AnyArray) -> tuple[object, ...]:
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.shape, value.strides, value.dtype
    return value.data_ptr(), value.shape, value.stride(), value.dtype, value.device


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

    `output="report"` is the law of `report`, and `output="values"` the law of `perturb_` on tensors of x's dtype, whose
    two values are rounded to that dtype (`TwoPoint.outputs`). Check privacy by comparing any two T, unbiasedness by
    decoding: lower + (upper - lower) * T / 2^32.

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
        from ldpkernels.ops.two_point import two_point_threshold as operation

        try:
            found: torch.Tensor = operation(x, c_values[0], r_values[0], float(eps), output)
        except Exception:
            checked_tensors(tensors.values, names=[""])  # the same error, without the tensor's number
            raise
        return found
    dtypes = checked_arrays([""], tensors.values, written=False)
    laws = law_table(TwoPoint(checked_eps(eps)), c_values, r_values, dtypes, output)
    flat, thresholds = np.ascontiguousarray(x), np.empty(x.shape, np.int64)
    spans = span_table([flat.ctypes.data], [thresholds.ctypes.data], [flat.size], dtypes)
    launch.run("two_point", "thresholds", spans, laws, Key((0,)), "cpu")
    return thresholds


def _refuse_negative_variances(tensors: Tensors, c: list[float], r: list[float], mechanism: Weightwise | None) -> None:
    """Batch normalisation takes a running variance's square root: eval() would give NaN."""
    for name, tensor, center, radius in zip(tensors.names, tensors.values, c, r, strict=True):
        if name.endswith("running_var"):
            if mechanism is None:
                raise ValueError(
                    f"the outputs of {name!r} cannot be compared with zero in a graph for torch.compile, and a "
                    "variance is not negative: call this outside of it, or pass buffers='keep' if buffers stay"
                )
            low = float(min(mechanism.outputs(center, radius, tensor.dtype)))
            if low < 0:
                raise ValueError(
                    f"C={center:g} and R={radius:g} of {name!r} have the output {low:g}, and a variance is not "
                    "negative: give it a range of its own with a larger C or a smaller R, or pass buffers='keep' if "
                    "buffers stay"
                )


def _perturbed_plain(
    model: Weights,
    C: Range,
    R: Range,
    eps: SupportsFloat,
    mechanism: MechanismName,
    generator: Generator,
    buffers: Buffers | None,
) -> bool:
    """Whether nothing of a call is out of the ordinary, and it is done: torch's dispatcher costs more than the kernel
    of a small model."""
    found = plain(model, buffers)
    if found is None or isinstance(C, Mapping) or isinstance(R, Mapping) or is_tensor(generator):
        return False
    isa = chosen_isa(kind_named(mechanism).kernel)
    if isa is None:
        return False
    c, r, dtypes = _plain_ranges(found, C, R)
    kind, laws = executed(mechanism, eps, c, r, dtypes, "values")
    launch.run_plain(kind.kernel, found, laws, host_key(generator, found.is_torch), isa)
    return True


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
    c, r, dtypes = _plain_ranges(found, C, R)
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


def _plain_ranges(found: Plain, C: Range, R: Range) -> tuple[tuple[float, ...], tuple[float, ...], tuple[Dtype, ...]]:
    """One range and dtype for all tensors where they are alike, else one for each."""
    dtypes = found.dtypes
    if type(C) is float and type(R) is float and len(dtypes) == 1:
        return (C,), (R,), dtypes
    unnamed = [""] * len(found.values)
    c, r = per_tensor("C", C, unnamed), per_tensor("R", R, unnamed)
    return tuple(c), tuple(r), dtypes * (len(unnamed) // len(dtypes))


def _perturb_arrays(
    tensors: Tensors, c: list[float], r: list[float], mechanism: Weightwise, generator: Generator
) -> None:
    dtypes = checked_arrays(tensors.names, tensors.values, written=True)
    laws, key = law_table(mechanism, c, r, dtypes, "values"), numpy_key(generator)

    def run(flat: Sequence[Array]) -> None:
        spans = span_table([a.ctypes.data for a in flat], [0] * len(flat), [a.size for a in flat], dtypes)
        launch.run(mechanism.kernel, "values", spans, laws, key, "cpu")

    flat = contiguous(tensors.values)
    if flat is tensors.values:
        run(flat)
    else:
        through(tensors.values, flat, run)


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
