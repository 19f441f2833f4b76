# SPDX-License-Identifier: Apache-2.0
"""A step of DP-SGD, ours beside Opacus's: processor time of one core, and how much the process grew.

Each in a process of its own. Of ours all is in it, the drawing of a batch too, which Opacus's has made before.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import torch

from ldpkernels.accounting import Ledger
from ldpkernels.trainers import train_privately

BATCH, TIMES = 256, 100
cross_entropy = torch.nn.functional.cross_entropy


def _convolutions() -> torch.nn.Module:
    """Papernot et al.'s network for MNIST: 26,010 weights."""
    first = torch.nn.Conv2d(1, 16, 8, 2, 3), torch.nn.Tanh(), torch.nn.MaxPool2d(2, 1)
    second = torch.nn.Conv2d(16, 32, 4, 2), torch.nn.Tanh(), torch.nn.MaxPool2d(2, 1), torch.nn.Flatten()
    return torch.nn.Sequential(*first, *second, torch.nn.Linear(512, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))


def _two_layers(width: int, hidden: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))


NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "linear 88-2": (lambda: torch.nn.Linear(88, 2), (88,)),
    "196-32-10": (lambda: _two_layers(196, 32), (196,)),
    "784-256-10": (lambda: _two_layers(784, 256), (784,)),
    "convolutions": (_convolutions, (1, 28, 28)),
}


class Timed(torch.optim.SGD):
    """Notes when each step ends."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, lr=0.1)
        self.ends: list[float] = []

    def step(self, closure: None = None) -> None:
        super().step()
        self.ends.append(time.process_time())


def ours(model: torch.nn.Module, optimizer: Timed, x: torch.Tensor, y: torch.Tensor) -> None:
    """`train_privately`, of examples that all are in each batch."""
    options = {"steps": TIMES, "q": 1.0, "C": 1.0, "sigma": 1.0, "batch_size": BATCH}
    ledger = Ledger(None, epsilon=1e9, method="rdp")
    train_privately(model, optimizer, cross_entropy, (x, y), ledger, **options)  # type: ignore[arg-type]


def opacus_(mode: str) -> Callable[[torch.nn.Module, Timed, torch.Tensor, torch.Tensor], None]:
    """Opacus's steps, by gradients of samples or by ghost clipping."""

    def train(model: torch.nn.Module, optimizer: Timed, x: torch.Tensor, y: torch.Tensor) -> None:
        import opacus

        ghost = {"grad_sample_mode": "ghost", "criterion": torch.nn.CrossEntropyLoss()} if mode == "ghost" else {}
        wrapped, private, *found = opacus.PrivacyEngine().make_private(
            module=model, optimizer=optimizer, noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False,
            data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH), **ghost,
        )  # fmt: skip
        criterion = found[0] if ghost else torch.nn.CrossEntropyLoss()
        for _ in range(TIMES):
            private.zero_grad()
            criterion(wrapped(x), y).backward()
            private.step()

    return train


WAYS = {"ours": ours, "Opacus, gradients": opacus_("hooks"), "Opacus, ghost": opacus_("ghost")}


def measured(network: str, way: str) -> tuple[float, float]:
    """Milliseconds of the best of some steps, and megabytes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, shape = NETWORKS[network]
    small = torch.nn.Linear(2, 2)  # what is imported and begun once
    WAYS[way](small, Timed(small.parameters()), torch.randn(BATCH, 2), torch.zeros(BATCH, dtype=torch.int64))
    model, x, y = make(), torch.randn(BATCH, *shape), torch.randint(0, 2, (BATCH,))
    optimizer, before = Timed(model.parameters()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    WAYS[way](model, optimizer, x, y)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1e3 * float(np.diff(optimizer.ends).min()), (most - before) / 1024


def main() -> None:
    print("| batch of 256 | " + " | ".join(WAYS) + " |\n|---|" + "---:|" * len(WAYS))
    for network in sys.argv[1:] or NETWORKS:
        cells = []
        for way in WAYS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                cells.append("{:.1f} ms, {:.0f} MB".format(*pool.apply(measured, (network, way))))
        print(f"| {network} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
