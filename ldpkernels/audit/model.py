# SPDX-License-Identifier: Apache-2.0
"""The audit of a whole model, as a client would send it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ldpkernels.audit.measure import AuditFailure, AuditResult, measure
from ldpkernels.calls.perturb import Model, Range, perturb_
from ldpkernels.common.arrays import Floats
from ldpkernels.inputs.containers import Buffers, collect

_COINS = 64  # trials in which a fair coin shows both faces, but with probability 2^-63


@dataclass(frozen=True)
class ModelAudit:
    """Each tensor's result, and the weights that never changed."""

    tensors: list[AuditResult]
    constant: dict[str, int]  # by tensor, how many positions gave one value in every trial

    @property
    def ok(self) -> bool:
        """Whether every tensor kept its claim and every weight was randomised."""
        return not self.constant and all(t.ok for t in self.tensors)

    def __str__(self) -> str:
        lines = [str(t) for t in self.tensors]
        lines += [
            f"{name}: {n} weights are released as they are, never randomised" for name, n in self.constant.items()
        ]
        return "\n".join(lines)

    def check(self) -> ModelAudit:
        """Return this audit, or raise an AuditFailure that says what leaks."""
        if not self.ok:
            bad = ModelAudit([t for t in self.tensors if not t.ok], self.constant)
            raise AuditFailure(str(bad))
        return self


def audit_model(
    model: Model,
    C: Range,
    R: Range,
    eps: float,
    *,
    perturb: Callable[[Model], object] | None = None,
    n: int = 1 << 18,
    buffers: Buffers | None = None,
) -> ModelAudit:
    """Audit `perturb_` on a model of yours, or a function of yours that perturbs one in place.

    Every weight is set to one end of its range, then to the other, and each tensor's outputs are told apart. Then all
    weights are set to the center, where each must take both values. The audit works on a copy of the model.

    >>> import numpy as np
    >>> audit_model({"w": np.zeros((20, 30), np.float32)}, C=0.0, R=1.0, eps=1.0, n=1 << 14).ok
    True
    """
    run = perturb or (lambda m: perturb_(m, C, R, eps, buffers=buffers))
    tensors, (centers, radii) = collect(model, buffers, C=C, R=R)
    results = []
    for i, name in enumerate(tensors.names):
        size = int(np.prod(tensors.values[i].shape))
        if size == 0 or radii[i] == 0:
            continue

        def outputs(side: float, n: int, i: int = i, size: int = size) -> Floats:
            rounds = [_run_at(model, run, side, centers, radii, buffers)[i].ravel() for _ in range(-(-n // size))]
            return np.concatenate(rounds)[:n]

        results.append(measure(outputs, -1.0, 1.0, eps, n=n, name=f"tensor {name!r}" if name else "the tensor"))
    seen = [_run_at(model, run, 0.0, centers, radii, buffers) for _ in range(_COINS)]
    constant = {}
    for i, name in enumerate(tensors.names):
        values = np.stack([s[i] for s in seen])
        fixed = int((values == values[0]).all(axis=0).sum())
        if fixed and radii[i] > 0:
            constant[name] = fixed
    return ModelAudit(results, constant)


def _run_at(
    model: Model,
    run: Callable[[Model], object],
    side: float,
    centers: list[float],
    radii: list[float],
    buffers: Buffers | None,
) -> list[Floats]:
    """All weights at the center plus `side` radii, perturbed, as arrays."""
    fresh = copy.deepcopy(model)
    copied = collect(fresh, buffers)[0].values
    for value, c, r in zip(copied, centers, radii, strict=True):
        if isinstance(value, np.ndarray):
            value[...] = c + side * r
        else:
            value.detach().fill_(c + side * r)
    perturbed = run(fresh)
    values = copied if perturbed is None else collect(perturbed, buffers)[0].values
    return [v.astype(np.float64) if isinstance(v, np.ndarray) else v.detach().double().cpu().numpy() for v in values]
