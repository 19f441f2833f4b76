# SPDX-License-Identifier: Apache-2.0
"""What a server may ask a report of, and what training made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ldpkernels.common.arrays import Array
from ldpkernels.inputs.containers import Weights, collect
from ldpkernels.inputs.modules import Buffers
from ldpkernels.releases.release import Arrays


@dataclass(frozen=True)
class Layouts:
    """Names, shapes and dtypes that a client's owner has agreed to.

    >>> Layouts.of({"w": np.zeros((2, 3))}).check({"w": np.zeros((2, 4))})
    Traceback (most recent call last):
    ValueError: array 'w' is float64 of shape (2, 4), and this client was set up for float64 of shape (2, 3)
    """

    kinds: Mapping[str, tuple[str, tuple[int, ...]]]

    @classmethod
    def of(cls, like: Weights, buffers: Buffers | None = None) -> Layouts:
        """Those of a model, or of arrays or tensors by name."""
        tensors, _ = collect(like, buffers)
        values = zip(tensors.names, tensors.values, strict=True)
        return cls({n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in values})

    @property
    def digest(self) -> str:
        """Text that differs wherever the layout does."""
        return hashlib.sha256(repr(list(self.kinds.items())).encode()).hexdigest()

    def check(self, asked: Arrays) -> None:
        """Refuse other arrays. What is said here goes to the server: it is of what was asked and of the settings."""
        if list(asked) != list(self.kinds):
            name = next((n for n in [*asked, *self.kinds] if (n in asked) != (n in self.kinds)), None)
            order = "another order" if name is None else f"{name!r} too many or missing"
            raise ValueError(f"the server sends other arrays than this client was set up for: {order}")
        for name, array in asked.items():
            dtype, shape = self.kinds[name]
            if (str(array.dtype), array.shape) != (dtype, shape):
                raise ValueError(
                    f"array {name!r} is {array.dtype} of shape {array.shape}, and this client was set up for "
                    f"{dtype} of shape {shape}"
                )


def changed(before: Arrays, received: Arrays, trained: Arrays, upload: str) -> Arrays:
    """What is reported of a training: what it arrived at ("weights"), or its differences from what was received.

    `before` are those of the received arrays that are reported. The errors are for the client's own log.
    """
    check_trained(before, received, trained)
    if upload == "weights":
        return {name: trained[name] for name in before}
    return {name: _difference(trained[name], array) for name, array in before.items()}


def check_trained(before: Arrays, received: Arrays, trained: Arrays) -> None:
    """Refuse a training of other names than were received, or of other shapes and dtypes than those of `before`."""
    if list(trained) != list(received):
        raise ValueError("the app's reply has other arrays than it received: send back the same names, in order")
    for name, array in before.items():
        after = trained[name]
        if after.shape != array.shape or after.dtype != array.dtype:
            raise ValueError(
                f"array {name!r} came as {array.dtype} of shape {array.shape}, and the app's reply has "
                f"{after.dtype} of shape {after.shape}"
            )


def _difference(after: Array, before: Array) -> Array:
    """In the arrays' own format, 0-d arrays too; infinite weights give NaN, which a report takes for its center."""
    with np.errstate(all="ignore"):
        return np.subtract(after, before, out=np.empty_like(before))
