# SPDX-License-Identifier: Apache-2.0
"""What a server takes: the model, the ranges, eps and the mechanism that its clients were told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, overload

from ldpkernels.common.arrays import AnyArray, Array
from ldpkernels.common.dtypes import dtype_named
from ldpkernels.inputs.containers import Buffers, Numbers, collect
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.laws.registry import MechanismName, mechanism_named
from ldpkernels.wire.layout import Layout

if TYPE_CHECKING:
    import torch

Mean: TypeAlias = "dict[str, AnyArray] | list[AnyArray] | AnyArray"  # as the model was handed in
Form = TypeVar("Form", covariant=True)


@dataclass(frozen=True)
class Expected(Generic[Form]):
    """The uploads that a server takes. `expected` makes it; Form is the form of their mean."""

    layout: Layout


@overload
def expected(
    model: torch.nn.Module | Mapping[str, torch.Tensor],
    C: Numbers,
    R: Numbers,
    eps: float,
    *,
    mechanism: MechanismName = ...,
    buffers: Buffers | None = ...,
) -> Expected[dict[str, torch.Tensor]]: ...
@overload
def expected(
    model: Mapping[str, Array], C: Numbers, R: Numbers, eps: float, *, mechanism: MechanismName = ...
) -> Expected[dict[str, Array]]: ...
@overload
def expected(
    model: torch.Tensor, C: Numbers, R: Numbers, eps: float, *, mechanism: MechanismName = ...
) -> Expected[torch.Tensor]: ...
@overload
def expected(
    model: Array, C: Numbers, R: Numbers, eps: float, *, mechanism: MechanismName = ...
) -> Expected[Array]: ...
@overload
def expected(
    model: Sequence[torch.Tensor], C: Numbers, R: Numbers, eps: float, *, mechanism: MechanismName = ...
) -> Expected[list[torch.Tensor]]: ...
@overload
def expected(
    model: Sequence[Array], C: Numbers, R: Numbers, eps: float, *, mechanism: MechanismName = ...
) -> Expected[list[Array]]: ...
def expected(
    model: object,
    C: Numbers,
    R: Numbers,
    eps: float,
    *,
    mechanism: MechanismName = "two-point",
    buffers: Buffers | None = None,
) -> Expected[object]:
    """Say which uploads a server takes, by the arguments of `report`; the model's weights do not count.

    Only names, shapes and formats of the model are read, so a model on torch's meta device will do. `Aggregate(expect)`
    and `aggregate(uploads, expect)` check every upload before they read its weights, and refuse or skip those that
    differ. They need no more memory than these weights, and give the mean in this model's container and library.

    >>> import numpy as np, ldpkernels
    >>> round_ = ldpkernels.expected({"w": np.zeros((3, 5))}, C=0.0, R=1.0, eps=1.0)
    >>> good = ldpkernels.report({"w": np.full((3, 5), 0.5)}, C=0.0, R=1.0, eps=1.0).to_bytes()
    >>> stranger = ldpkernels.report({"w": np.zeros((3, 5))}, C=0.0, R=9.0, eps=1.0).to_bytes()
    >>> total = ldpkernels.Aggregate(round_, on_bad="skip")
    >>> total.add(good, stranger, b"nonsense", good)
    >>> total.clients, total.skipped
    (2, 2)
    >>> list(total.reasons)[0]
    "this is not what is expected: r of 'w' is 9.0, not 1.0"
    """
    (tensors, (c, r)), law = (
        collect(model, buffers, sharded=is_sharded(model), C=C, R=R),
        mechanism_named(mechanism, eps),
    )
    dtypes = [dtype_named(getattr(t, "dtype", type(t))) for t in tensors.values]
    return Expected(Layout.of(tensors, c, r, law, dtypes))
