# SPDX-License-Identifier: Apache-2.0
"""What everyday calls cost beside one `mul_` of ten elements: `python benchmarks/calls.py [threads]`.

Every row is the least of many repetitions, taken in turn with `mul_` in one run: ratios, which others move least.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import ldpkernels

ROUNDS, WINDOW = 200, 3e-4  # seconds: what else runs interrupts longer ones


def once(call: Callable[[], object], times: int) -> float:
    """Seconds a call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def ratio(call: Callable[[], object]) -> tuple[float, float]:
    """Microseconds a call, and how many `mul_` that is."""
    x = torch.ones(10)
    call()
    best, unit = once(call, 3), math.inf
    for _ in range(ROUNDS):
        unit = min(unit, once(lambda: x.mul_(1.0), 100))
        best = min(best, once(call, max(1, round(WINDOW / best))))
    return 1e6 * best, best / unit


def eager_(model: torch.nn.Module) -> None:
    """The mechanism as one writes it in torch, a tensor at a time."""
    scale = (math.e + 1) / (math.e - 1)
    with torch.no_grad():
        for w in model.parameters():
            upper = torch.bernoulli((w.clamp(-1.0, 1.0) / scale + 1) / 2)
            w.copy_((2 * upper - 1) * scale)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    one, array = torch.zeros(10), np.zeros(10, np.float32)
    ten, many = [torch.zeros(10) for _ in range(10)], [torch.zeros(10) for _ in range(800)]
    large, whole = [torch.zeros(64, 64) for _ in range(800)], torch.zeros(800 * 64 * 64)
    small = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(5)])
    deep = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(150)])
    block = [torch.nn.Conv2d(8, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    layers = [copy.deepcopy(layer) for _ in range(53) for layer in block]
    residual = torch.nn.Sequential(*layers, torch.nn.Linear(8, 8))  # modules and tensors as ResNet-50 has them
    view, views = torch.zeros(64, 64).t(), [torch.zeros(8, 8).t() for _ in range(10)]
    key = ldpkernels.key(0)
    prepared = [ldpkernels.prepare(model, 0.0, 1.0, 1.0) for model in (one, array, small)]
    rows: list[tuple[str, Callable[[], object]]] = [
        ("one tensor", lambda: ldpkernels.perturb_(one, 0.0, 1.0, 1.0)),
        ("one tensor, Philox", lambda: ldpkernels.perturb_(one, 0.0, 1.0, 1.0, generator=key)),
        ("one array", lambda: ldpkernels.perturb_(array, 0.0, 1.0, 1.0)),
        ("10 tensors", lambda: ldpkernels.perturb_(ten, 0.0, 1.0, 1.0)),
        ("800 tensors", lambda: ldpkernels.perturb_(many, 0.0, 1.0, 1.0)),
        ("800 tensors, Philox", lambda: ldpkernels.perturb_(many, 0.0, 1.0, 1.0, generator=key)),
        ("800 tensors, torch._foreach_mul_", lambda: torch._foreach_mul_(many, 1.0)),
        ("800 tensors of [64, 64]", lambda: ldpkernels.perturb_(large, 0.0, 1.0, 1.0)),
        ("one tensor of as many weights", lambda: ldpkernels.perturb_(whole, 0.0, 1.0, 1.0)),
        ("mul_ of that tensor", lambda: whole.mul_(1.0)),
        ("model of 10 tensors", lambda: ldpkernels.perturb_(small, 0.0, 1.0, 1.0)),
        ("model of 10 tensors, eager", lambda: eager_(small)),
        ("model of 161 tensors, as ResNet-50", lambda: ldpkernels.perturb_(residual, 0.0, 1.0, 1.0, buffers="keep")),
        ("one view", lambda: ldpkernels.perturb_(view, 0.0, 1.0, 1.0)),
        ("10 views", lambda: ldpkernels.perturb_(views, 0.0, 1.0, 1.0)),
        ("one tensor, cldp_", lambda: ldpkernels.cldp_(one, 1.0, 1.0, 1)),
        ("model of 300 tensors", lambda: ldpkernels.perturb_(deep, 0.0, 1.0, 1.0)),
        ("prepared, one tensor", lambda: prepared[0]()),
        ("prepared, one array", lambda: prepared[1]()),
        ("prepared, model of 10", lambda: prepared[2]()),
        ("report, model of 10", lambda: ldpkernels.report(small, 0.0, 1.0, 1.0)),
    ]
    print(f"{'':36}{'us':>8}{'mul_':>8}")
    for name, call in rows:
        spent, units = ratio(call)
        print(f"{name:36}{spent:8.1f}{units:8.1f}")


if __name__ == "__main__":
    main()
