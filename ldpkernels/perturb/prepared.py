# SPDX-License-Identifier: Apache-2.0
"""`perturb_` for a loop: a call whose checks and laws are done once."""

from __future__ import annotations

import itertools
from typing import Generic, NoReturn, SupportsFloat

import numpy as np

from ldpkernels import launch
from ldpkernels.arrays import AnyArray
from ldpkernels.capabilities import chosen_isa
from ldpkernels.inputs.checks import checked_arrays, checked_tensors
from ldpkernels.inputs.containers import Buffers, Tensors, collect
from ldpkernels.inputs.plain import plain
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.keys import Generator, host_key
from ldpkernels.laws.registry import MechanismName, law_table, mechanism_named
from ldpkernels.optional import is_compiling, is_tensor
from ldpkernels.perturb.in_place import Model, Range, perturb_, refuse_negative_variances


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
            refuse_negative_variances(tensors, self._c, self._r, kind)
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
