# SPDX-License-Identifier: Apache-2.0
"""`perturb_` for a loop: a call whose checks and laws are done once."""

from __future__ import annotations

import itertools
import operator
from typing import Generic, NoReturn, SupportsFloat

import numpy as np

from ldpkernels import launch
from ldpkernels.inputs.containers import Buffers, Tensors, collect
from ldpkernels.inputs.memory import Located, locate
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.keys import Generator
from ldpkernels.laws.registry import MechanismName, mechanism_named
from ldpkernels.optional import is_compiling
from ldpkernels.perturb.call import key_of, laws_of, takes_operation
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
        self._model, self._mechanism, self._buffers = model, mechanism, buffers
        self._tensors, (self._c, self._r) = collect(model, buffers, in_place=True, draws="prepare", C=C, R=R)
        self._law = mechanism_named(mechanism, eps)
        if buffers == "perturb":
            refuse_negative_variances(self._tensors, self._c, self._r, self._law)
        weights = locate(self._tensors.values, self._tensors.names, written=True)
        self._laws = laws_of(self._law, self._c, self._r, weights.dtypes, "values")
        self._places = _places(weights)

    def __call__(self, generator: Generator = None) -> Model:
        """Perturb the tensors in place, and return the model."""
        if not is_compiling():
            now, _ = collect(self._model, self._buffers, in_place=True, draws="a prepared call")
            self._refuse_others(now)
            key = key_of(generator, now)
            weights = locate(now.values, now.names, key=key, written=True)
            self._refuse_moved(_places(weights))
            if not takes_operation(now):
                launch.overwrite(self._law.kernel, weights, self._laws, key)
                return self._model
        numbers, mechanism = (self._c, self._r, self._law.eps), self._mechanism
        return perturb_(self._model, *numbers, mechanism=mechanism, generator=generator, buffers=self._buffers)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a prepared call is for its own tensors: prepare another for a copy, or in another process")

    def _refuse_others(self, now: Tensors) -> None:
        for name, other in itertools.zip_longest(self._tensors.names, now.names):
            if name != other:
                raise ValueError(f"tensor {name or other!r} came or went since the call was prepared: prepare it again")
        if not all(map(operator.is_, now.values, self._tensors.values)):
            self._refuse([one is other for one, other in zip(now.values, self._tensors.values, strict=True)])

    def _refuse_moved(self, places: list[list[object]]) -> None:
        if places != self._places:
            self._refuse([one == other for one, other in zip(_rows(places), _rows(self._places), strict=True)])

    def _refuse(self, same: list[bool]) -> NoReturn:
        raise ValueError(
            f"tensor {self._tensors.names[same.index(False)]!r} is another one, or lies elsewhere, or has another "
            "shape or dtype than when the call was prepared: prepare it again"
        )


def _places(weights: Located) -> list[list[object]]:
    """Addresses, dtypes, shapes and strides."""
    strides = [v.strides if isinstance(v, np.ndarray) else v.stride() for v in weights.values]
    return [[*weights.addresses], [*weights.dtypes], [v.shape for v in weights.values], [*strides]]


def _rows(places: list[list[object]]) -> list[tuple[object, ...]]:
    return [*zip(*places, strict=True)]
