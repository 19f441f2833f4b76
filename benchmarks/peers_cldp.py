# SPDX-License-Identifier: Apache-2.0
"""Ordinal CLDP's law as others would sample it: in eager torch, in NumPy, by OpenDP and by diffprivlib."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

M, ALPHA = 10**10, 4.3e-7
S = ALPHA / 2


def torch_inverse(v: torch.Tensor) -> torch.Tensor:
    """The inverse distribution function of the boxed law: what a careful user writes in eager torch, in fp64."""
    below, above = (v + M).double(), (M - v).double()
    left = torch.expm1(below.add_(1).mul_(-S)).neg_()
    right = torch.expm1(above.mul_(-S)).neg_().mul_(math.exp(-S))
    u = torch.rand_like(left).mul_(right.add_(left))
    down = u < left
    w = torch.where(down, u, (u - left).mul_(math.exp(S)))
    steps = torch.log1p(w.neg_()).div_(-S).floor_().long()
    return torch.where(down, v - steps, v + 1 + steps).clamp_(-M, M)


def torch_unboxed(v: torch.Tensor) -> torch.Tensor:
    """The law without the box, clamped to it instead: the least that a user could write."""
    steps = torch.log1p(torch.rand(v.shape, dtype=torch.float64).neg_()).div_(-S).floor_().long()
    return (v + (torch.randint(0, 2, v.shape).mul_(2).sub_(1)).mul_(steps)).clamp_(-M, M)


def numpy_unboxed(v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A difference of two geometric variables, from NumPy's sampler."""
    p = -math.expm1(-S)
    return np.clip(v + rng.geometric(p, v.shape) - rng.geometric(p, v.shape), -M, M)


def opendp_laplace(n: int) -> Callable[[], object]:
    dp, space = opendp()
    sampler, values = dp.m.make_laplace(*space, scale=2 / ALPHA), [0] * n
    return lambda: sampler(values)


def opendp_geometric(n: int) -> Callable[[], object]:
    """A sampler of constant time: its work grows with the box, so that only a narrow one can be measured."""
    dp, space = opendp()
    sampler, values = dp.m.make_geometric(*space, scale=2 / 0.1, bounds=(-10_000, 10_000)), [0] * n
    return lambda: sampler(values)


def opendp() -> tuple[Any, Any]:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp, (dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64"))


def diffprivlib_truncated(n: int) -> Callable[[], object]:
    spec = importlib.util.find_spec("diffprivlib")
    if "diffprivlib" not in sys.modules and spec is not None:
        # Importing the package would import estimators, which new versions of scikit-learn break.
        sys.modules["diffprivlib"] = importlib.util.module_from_spec(spec)
    mechanisms = importlib.import_module("diffprivlib.mechanisms")
    sampler = mechanisms.GeometricTruncated(epsilon=S, sensitivity=1, lower=-M, upper=M)
    return lambda: [sampler.randomise(0) for _ in range(n)]


# How to make a call of each, and of how many samples.
SAMPLERS: dict[str, tuple[Callable[[int], Callable[[], object]], int]] = {
    "OpenDP, discrete Laplace": (opendp_laplace, 20_000),
    "OpenDP, bounded geometric at M = 1e4": (opendp_geometric, 20),
    "diffprivlib, truncated geometric": (diffprivlib_truncated, 2_000),
}


def installed(peer: str) -> bool:
    """Whether the library of one of SAMPLERS is there."""
    return importlib.util.find_spec(peer.split(",")[0].lower()) is not None
