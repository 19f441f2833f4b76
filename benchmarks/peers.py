# SPDX-License-Identifier: Apache-2.0
"""What others would write for the same work: the two-point mechanism in eager torch and in NumPy, and sums of reports.

Each takes care to be fast: no temporary that the form does not need, constants folded, in fp32 for fp32 weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

C, R, EPS = 0.0, 1.0, 1.0
REACH = R * (math.exp(EPS) + 1) / (math.exp(EPS) - 1)
SLOPE = 1 / (2 * REACH)


def bernoulli_(w: torch.Tensor) -> torch.Tensor:
    """P(upper) = 1/2 + (w - C) / (2 reach), drawn by torch.bernoulli."""
    p = w.clamp(C - R, C + R).sub_(C).mul_(SLOPE).add_(0.5)
    return w.copy_(torch.bernoulli(p).mul_(2 * REACH).add_(C - REACH))


def compare_(w: torch.Tensor) -> torch.Tensor:
    """The law of bernoulli_, drawn by comparing uniform numbers."""
    p = w.clamp(C - R, C + R).sub_(C).mul_(SLOPE).add_(0.5)
    return w.copy_(torch.where(torch.rand_like(w) < p, C + REACH, C - REACH))


def numpy_upper(w: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    p = np.clip(w, C - R, C + R)
    p -= p.dtype.type(C)
    p *= p.dtype.type(SLOPE)
    p += p.dtype.type(0.5)
    return rng.random(w.size, dtype=w.dtype) < p


def numpy_(w: np.ndarray, rng: np.random.Generator) -> None:
    w[:] = np.where(numpy_upper(w, rng), w.dtype.type(C + REACH), w.dtype.type(C - REACH))


def numpy_report(w: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.packbits(numpy_upper(w, rng), bitorder="little")


def numpy_mean(reports: Sequence[np.ndarray]) -> np.ndarray:
    counts = np.zeros(8 * len(reports[0]), np.uint16)
    for report in reports:
        counts += np.unpackbits(report, bitorder="little")
    return counts * np.float32(2 * REACH / len(reports)) + np.float32(C - REACH)


def torch_mean(reports: Sequence[torch.Tensor]) -> torch.Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=reports[0].device)
    counts = torch.zeros(reports[0].numel(), 8, dtype=torch.int16, device=reports[0].device)
    for report in reports:
        counts += report.unsqueeze(1).bitwise_right_shift(places).bitwise_and_(1)
    return counts.flatten().float().mul_(2 * REACH / len(reports)).add_(C - REACH)


def small_model() -> torch.nn.Module:
    """29,034 parameters in 10 tensors: the CNN of LDP-Fed for Fashion-MNIST."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, padding=2),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 5, padding=2),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(1568, 10),
    )


@torch.no_grad()
def eager_loop_(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        bernoulli_(parameter)
