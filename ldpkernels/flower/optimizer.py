# SPDX-License-Identifier: Apache-2.0
"""A server's optimizer: the step from a model towards the noisy mean of its clients is torch's to choose."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ldpkernels.releases.release import Arrays

if TYPE_CHECKING:
    import torch

MakeOptimizer: TypeAlias = "Callable[[list[torch.Tensor]], torch.optim.Optimizer]"


class ServerOptimizer:
    """An optimizer of torch that takes the way from the clients' mean back to the model for a gradient."""

    def __init__(self, make: MakeOptimizer) -> None:
        if not callable(make):
            raise TypeError(
                f"server_optimizer={make!r} must make an optimizer of a list of tensors, as "
                "functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9) does"
            )
        self._make = make
        self._state = b""
        self._tensors: list[torch.Tensor] | None = None

    def moved(self, before: Arrays, after: Arrays) -> Arrays:
        """The model after the round, where the clients' mean would take it from `before` to `after`."""
        import torch  # the server may have no other use for it

        if self._tensors is None:
            self._tensors = [torch.zeros(array.shape, dtype=torch.float64) for array in before.values()]
            self._optimizer = self._make(self._tensors)
            if self._state:
                self._optimizer.load_state_dict(torch.load(io.BytesIO(self._state), weights_only=True))
        for tensor, old, new in zip(self._tensors, before.values(), after.values(), strict=True):
            tensor.copy_(torch.from_numpy(np.asarray(old, np.float64)))
            tensor.grad = tensor - torch.from_numpy(np.asarray(new, np.float64))
        self._optimizer.step()
        return {name: tensor.numpy().copy() for name, tensor in zip(before, self._tensors, strict=True)}

    @property
    def state(self) -> bytes:
        """Momenta and the like, for a run that goes on; nothing before the first round."""
        if self._tensors is None:
            return self._state
        import torch

        buffer = io.BytesIO()
        torch.save(self._optimizer.state_dict(), buffer)
        return buffer.getvalue()

    @state.setter
    def state(self, state: bytes) -> None:
        self._state, self._tensors = state, None
