# SPDX-License-Identifier: Apache-2.0
"""The vote beside NumPy and torch.mode, and the sound discriminator step beside Opacus.

    python -m pytest benchmarks/test_han_xue.py --benchmark-columns=min,median

torch.mode finds the label alone; the others also which samples are kept. A discriminator step is the gradient by
example of a batch of real examples, clipped, noised and added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import _native

pytestmark = pytest.mark.filterwarnings("default")

PARTIES, SAMPLES, CLASSES = 20, 1_000_000, 10


def numpy_vote(votes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts = np.stack([(votes == c).sum(0, dtype=np.uint8) for c in range(CLASSES)])
    two = np.partition(counts, -2, axis=0)[-2:]
    return counts.argmax(0), two[1] - two[0] > 1


def ours(isa: str) -> Callable[[np.ndarray], object]:
    def vote(votes: np.ndarray) -> object:
        with ldpkernels.backend(isa):
            return ldpkernels.majority_vote(votes, CLASSES)

    return vote


VOTES: dict[str, Callable[[np.ndarray], object]] = {
    **{f"ldpkernels, {isa}": ours(isa) for isa in _native.isas()},
    "NumPy": numpy_vote,
    "torch.mode": lambda votes: torch.from_numpy(votes).mode(0),
    "floor: read once": lambda votes: torch.from_numpy(votes).view(torch.int64).sum(),
}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("row", VOTES)
@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_vote(benchmark: Any, dtype: str, row: str) -> None:
    votes = np.random.default_rng(0).integers(0, CLASSES, (PARTIES, SAMPLES)).astype(dtype)
    benchmark.group = f"vote of {PARTIES} parties on {SAMPLES:,} samples, {dtype}"
    benchmark.pedantic(VOTES[row], (votes,), rounds=5, warmup_rounds=1)


def our_step(critic: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
    from ldpkernels.federated.dp_gan import gradients

    noise, key = torch.empty(len(x), 1), ldpkernels.key(0)

    def step() -> None:
        grads = gradients(critic, x, noise)
        ldpkernels.dp_sgd_step(critic, None, 1.0, 1.0, batch_size=len(x), grads=grads, generator=key)

    return step


def opacus_step(critic: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
    opacus = pytest.importorskip("opacus")
    from opacus.optimizers import DPOptimizer

    logit = opacus.GradSampleModule(copy.deepcopy(critic.logit), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(logit.parameters(), lr=0.0), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=len(x)
    )

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.softplus(-logit(x)).sum().backward()
        optimizer.pre_step()

    return step


@pytest.mark.parametrize("row", ["ldpkernels", "Opacus"])
@pytest.mark.parametrize(
    ("kind", "shape", "batch"), [("gan", (88,), 256), ("gan", (1, 28, 28), 128), ("dcgan", (1, 28, 28), 128)]
)
def test_discriminator_step(benchmark: Any, kind: str, shape: tuple[int, ...], batch: int, row: str) -> None:
    from ldpkernels.federated import generators

    span = (0.0, 1.0) if len(shape) > 1 else None
    critic = generators.build(kind, shape, span, ldpkernels.key(0), loss="log").critic
    x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
    benchmark.group = f"discriminator step, {kind} on {shape}, batch {batch}"
    benchmark.pedantic((our_step if row == "ldpkernels" else opacus_step)(critic, x), rounds=10, warmup_rounds=2)
