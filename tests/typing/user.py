# SPDX-License-Identifier: Apache-2.0
"""What a user writes, as type checkers see it. tests/test_typing.py has it checked, and runs it."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

import ldpkernels
from ldpkernels import Aggregate, Key, Report, TwoPoint


def clients(model: torch.nn.Module) -> Iterator[Report | bytes]:
    """Reports, some as they travel."""
    for seed in range(4):
        one: Report = ldpkernels.report(model, C=0.0, R=0.5, eps=1.0, generator=ldpkernels.key(seed))
        yield one.to_bytes() if seed % 2 else one


def torch_user() -> None:
    """Containers come back as they went in."""
    model = torch.nn.Linear(3, 2)
    same: torch.nn.Linear = ldpkernels.perturb_(model, 0.0, {"weight": 0.5, "bias": 0.25}, eps=1.0)
    x: torch.Tensor = ldpkernels.perturb_(torch.zeros(5), 0.0, 1.0, 2.0, mechanism="hybrid")
    seeded = torch.Generator().manual_seed(5)
    several: list[torch.Tensor] = ldpkernels.perturb_([x, x + 1], [0.0, 1.0], 1.0, 1.0, generator=seeded)
    named: dict[str, torch.Tensor] = ldpkernels.perturb_({"a": x}, 0.0, 1.0, 1.0, generator="secure")
    ldpkernels.aggregate(clients(same))
    ldpkernels.perturb_(model, *ldpkernels.ranges(model), eps=1.0, buffers="keep")
    assert len(several) == len(named) + 1


def numpy_user() -> None:
    """Arrays, and scalars of NumPy for every number."""
    c, r, eps = np.float32(0.0), np.float64(0.5), np.float32(1.0)
    w: NDArray[np.float32] = np.zeros(9, np.float32)
    out: NDArray[np.float32] = ldpkernels.perturb_(w, c, r, eps, generator=np.random.default_rng(0))
    ldpkernels.perturb_([w, w.copy()], [c, c], [r, r], eps, mechanism="sign")
    one = ldpkernels.report({"w": out}, c, r, eps, mechanism="piecewise")
    total = Aggregate()
    total.add(one, one.to_bytes())
    count: int = total.clients
    key: Key = ldpkernels.key(count).fold_in(3)
    ldpkernels.report(w, 0, 1, 1, generator=key)  # whole numbers are numbers


def claims() -> None:
    """Laws and what they say."""
    mechanism = TwoPoint(1.0)
    number: float = mechanism.variance(0.25, c=0.0, r=1.0) + mechanism.effective_eps
    tensor: torch.Tensor = mechanism.bias(torch.zeros(3), c=0.0, r=number)
    best: str = ldpkernels.best_mechanism(4.0).name
    assert tensor.numel() == 3
    assert best == "hybrid"
    with ldpkernels.backend("reference"):
        ldpkernels.two_point_threshold(np.zeros(3), 0.0, 1.0, 1.0, output="values")


if __name__ == "__main__":
    torch_user()
    numpy_user()
    claims()
