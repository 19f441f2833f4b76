# SPDX-License-Identifier: Apache-2.0
"""`perturb_` for a loop: a call whose checks and laws are done once."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Generic, NoReturn, SupportsFloat

import numpy as np

from ldpkernels import launch
from ldpkernels.calls.perturb.call import key_of, laws_of, takes_operation
from ldpkernels.calls.perturb.in_place import Model, Range, perturb_, refuse_negative_variances
from ldpkernels.common.arrays import AnyArray, Array
from ldpkernels.common.keys import Generator
from ldpkernels.common.optional import is_compiling
from ldpkernels.inputs.containers import Buffers, Tensors, collect
from ldpkernels.inputs.memory import Located, addresses, locate
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.laws.registry import MechanismName, mechanism_named

if TYPE_CHECKING:
    import torch


def prepare(
    model: Model,
    C: Range,
    R: Range,
    eps: SupportsFloat,
    *,
    mechanism: MechanismName = "two-point",
    buffers: Buffers | None = None,
) -> Prepared[Model]:
    """`perturb_` for a loop: everything is checked and computed once, and `perturb()` then perturbs the same tensors.

    The arguments are those of `perturb_`, except the generator: each call takes its own, because a key is used once. A
    call refuses if anything has changed but the values: which tensors are registered, where they lie, their shapes,
    dtypes and devices, and what else would leave with the model.

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
        if isinstance(model, GeneratorType):
            raise TypeError("model is a generator, which can be iterated only once: prepare a list of its tensors")
        if is_sharded(model):
            raise TypeError("prepare takes no DTensors: call perturb_, where the ranks agree on every call")
        self._model, self._mechanism, self._buffers = model, mechanism, buffers
        self._tensors, (self._c, self._r) = collect(model, buffers, in_place=True, draws="prepare", C=C, R=R)
        self._law = mechanism_named(mechanism, eps)
        if buffers == "perturb":
            refuse_negative_variances(self._tensors, self._c, self._r, self._law)
        self._weights = locate(self._tensors.values, self._tensors.names, written=True)
        self._laws = laws_of(self._law, self._c, self._r, self._weights.dtypes, "values")
        self._places = _places(self._weights.values)

    def __call__(self, generator: Generator = None) -> Model:
        """Perturb the tensors in place, and return the model."""
        if not is_compiling():
            if not self._is_of_the_same():
                self._refuse_others(collect(self._model, self._buffers, in_place=True, draws="a prepared call")[0])
            if not takes_operation(self._tensors):
                key = key_of(generator, self._tensors)
                self._refuse_moved()
                launch.overwrite(self._law.kernel, self._located(), self._laws, key)
                return self._model
            self._refuse_moved()
        numbers, mechanism = (self._c, self._r, self._law.eps), self._mechanism
        return perturb_(self._model, *numbers, mechanism=mechanism, generator=generator, buffers=self._buffers)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a prepared call is for its own tensors: prepare another for a copy, or in another process")

    def _is_of_the_same(self) -> bool:
        """Whether a tensor, or a sequence of them, is of the same objects; modules and mappings are walked again."""
        if self._tensors.container == "tensor":
            return True
        model = self._model
        values = self._tensors.values
        return isinstance(model, (list, tuple)) and len(model) == len(values) and all(map(operator.is_, model, values))

    def _located(self) -> Located:
        """Memory as it was found; views are copied anew."""
        if self._weights.flat is self._weights.values:
            return self._weights
        return locate(self._tensors.values, self._tensors.names, written=True)

    def _refuse_others(self, now: Tensors) -> None:
        for name, other in itertools.zip_longest(self._tensors.names, now.names):
            if name != other:
                raise ValueError(
                    f"tensor {name or other!r} was added or removed since the call was prepared: prepare it again"
                )
        for name, one, other in zip(now.names, now.values, self._tensors.values, strict=True):
            if one is not other:
                raise _changed(name)

    def _refuse_moved(self) -> None:
        places = _places(self._tensors.values)
        if places != self._places:
            same = map(operator.eq, places, self._places)
            raise _changed(self._tensors.names[[*same].index(False)])


def _changed(name: str) -> ValueError:
    return ValueError(
        f"tensor {name!r} is another one, or lies elsewhere, or has another shape or dtype than when the call was "
        "prepared: prepare it again"
    )


def _places(values: Sequence[AnyArray]) -> list[tuple[object, ...]]:
    """Read what says of each tensor or array which memory is its own."""
    if isinstance(values[0], np.ndarray):
        arrays: Sequence[Array] = values  # type: ignore[assignment]
        both = zip(addresses(arrays), arrays, strict=True)
        return [(at, a.shape, a.strides, a.dtype, a.flags.writeable) for at, a in both]
    tensors: Sequence[torch.Tensor] = values  # type: ignore[assignment]
    return [
        (t.data_ptr(), t.shape, t.stride(), t.dtype, t.device, t.untyped_storage().nbytes(), t.is_neg())
        for t in tensors
    ]
