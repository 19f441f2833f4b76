# SPDX-License-Identifier: Apache-2.0
"""Everything that has kernels for a GPU, called as users call it: what tests/gpu compares, captures and compiles, and
what compute-sanitizer watches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import ldpkernels
from ldpkernels.laws.registry import MECHANISMS

C, R, EPS = 0.25, 1.5, 1.0
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
KEYS = {
    "philox": ldpkernels.Key((0x0123456789ABCDEF,)),
    "chacha20": ldpkernels.Key((1, 2**64 - 1, 0xA5A5A5A55A5A5A5A, 2**63)),
}
LENGTHS = (1, 7, 8, 33, 255, 257, 0, 2049, 70_001)

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """`make(dtype)` gives inputs on the CPU. `call(inputs, generator)` gives outputs, and may write the inputs."""

    kernel: str  # by its name in the registries
    make: Callable[[torch.dtype], Tensors]
    call: Callable[[Tensors, Any], Tensors]
    dtypes: tuple[torch.dtype, ...] = DTYPES
    draws: bool = True


def weights(n: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Inside the range, outside it, at its ends, and what is not a number."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64).mul_(R).add_(C).to(dtype)
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, C - R, C + R, C], dtype=dtype)
    where = torch.randint(0, max(n, 1), (min(n, n // 100 + 8),), generator=generator)
    x[where] = special.repeat(len(where) // 8 + 1)[: len(where)]
    return x


def on(device: str, inputs: Tensors) -> Tensors:
    """Copies on a device: every third begins at an address that no vector of 16 bytes does."""
    moved = []
    for i, t in enumerate(inputs):
        if i % 3 == 2 and t.dim() == 1:
            moved.append(torch.cat([t[:1], t]).to(device)[min(1, t.numel()) :])
        else:
            moved.append(t.to(device, copy=True))
    return moved


def _some_weights(dtype: torch.dtype) -> Tensors:
    return [weights(n, dtype, seed) for seed, n in enumerate(LENGTHS)]


def _some_integers(_: torch.dtype) -> Tensors:
    generator = torch.Generator().manual_seed(1)
    v = torch.randint(-(10**10), 10**10, (5003,), generator=generator)
    v[::3], v[1::7] = 10**10, -(10**10)
    return [v]


def _some_rows(dtype: torch.dtype) -> Tensors:
    shapes = ((70, 1), (70, 4), (70, 17), (70, 3, 100), (70, 1028), (70,))
    x = [weights(math.prod(shape), torch.float64, i).nan_to_num(0, 1, -1).view(shape) for i, shape in enumerate(shapes)]
    x[1][3, 2], x[3][66, 2, 1] = math.nan, math.inf
    return [t.to(dtype) for t in x]


def _some_numbers(dtype: torch.dtype) -> Tensors:
    """Single numbers for clipped sums: whole groups of 4096, others, and the third from an address of no vector."""
    x = [weights(n, torch.float64, i).mul_(20.0) for i, n in enumerate((12_288, 4097, 9001, 3))]
    return [t.to(dtype) for t in x]


def _some_votes(dtype: torch.dtype) -> Tensors:
    return [torch.randint(0, 10, (20, 4001), generator=torch.Generator().manual_seed(2)).to(dtype)]


def _perturb(mechanism: Any, x: Tensors, key: Any) -> Tensors:
    return ldpkernels.perturb_(x, C, R, EPS, mechanism=mechanism, generator=key)


def _report(mechanism: Any, x: Tensors, key: Any) -> Tensors:
    return [ldpkernels.report(x, C, R, EPS, mechanism=mechanism, generator=key).payload]


def _thresholds(x: Tensors, _: Any) -> Tensors:
    return [ldpkernels.two_point_threshold(t, C, R, EPS, output=o) for t in x for o in ("report", "values")]


def _cldp(rounding: Any, x: Tensors, key: Any) -> Tensors:
    return ldpkernels.cldp_(x, 1e-3, 1.0, 4, rounding=rounding, generator=key)


def _sample(mechanism: Any, v: Tensors, key: Any) -> Tensors:
    return [ldpkernels.cldp_sample(v[0], 4.3e-7, 10**10, mechanism=mechanism, generator=key)]


def _clipped(noise: Any, clipping: Any, x: Tensors, key: Any) -> Tensors:
    options = {"noise": noise, "clipping": clipping, "generator": key, "return_info": True}
    sums, info = ldpkernels.clipped_noised_sum(x, 30.0, 0.7, **options)
    return [*sums, info.norms]


def _clipped_numbers(noise: Any, x: Tensors, key: Any) -> Tensors:
    options = {"noise": noise, "generator": key, "return_info": True}
    found = [ldpkernels.clipped_noised_sum([t], 30.0, 0.7, **options) for t in x]
    return [t for sums, info in found for t in (*sums, info.norms)]


def _vote(votes: Tensors, _: Any) -> Tensors:
    return list(ldpkernels.majority_vote(votes[0], 10))


def _operations() -> Iterator[tuple[str, Operation]]:
    for name, kind in MECHANISMS.items():
        yield f"perturb_ {name}", Operation(kind.kernel, _some_weights, partial(_perturb, name))
        yield f"report {name}", Operation(kind.kernel, _some_weights, partial(_report, name))
    yield "thresholds", Operation("two_point", _some_weights, _thresholds, draws=False)
    for rounding in ("nearest", "stochastic"):
        yield f"cldp_ {rounding}", Operation("ordinal_cldp", _some_weights, partial(_cldp, rounding))
    for noise in ("exponential", "laplace"):
        operation = Operation("ordinal_cldp", _some_integers, partial(_sample, noise), (torch.int64,))
        yield f"cldp_sample {noise}", operation
    for noise, clipping in (("gaussian", "flat"), ("discrete", "per-layer")):
        yield f"sum {noise} {clipping}", Operation("clipped_noise", _some_rows, partial(_clipped, noise, clipping))
    for noise in ("gaussian", "discrete"):
        yield f"sum of numbers {noise}", Operation("clipped_noise", _some_numbers, partial(_clipped_numbers, noise))
    kinds = (torch.uint8, torch.int32, torch.int64)
    yield "majority_vote", Operation("votes", _some_votes, _vote, kinds, draws=False)


OPERATIONS = dict(_operations())


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """New memory is filled with NaN and largest integers: what a kernel leaves unwritten is not what was there before,
    which may well be the result of the same call."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors have the same bits, but that one NaN is as good as another."""
    found, expected = found.detach().cpu().contiguous(), expected.detach().cpu().contiguous()
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if not found.is_floating_point():
        return torch.equal(found, expected)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    equal = found.view(integers) == expected.view(integers)
    return bool((equal | (found.isnan() & expected.isnan())).all())
