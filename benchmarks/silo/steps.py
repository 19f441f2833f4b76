# SPDX-License-Identifier: Apache-2.0
"""A step of DP-SGD, ours beside Opacus's: processor time of one core, and how much the process grew.

Each in a process of its own. Clipping, noise and the optimizer's step are in it, drawing a batch is not.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable

import torch

from ldpkernels import dp_sgd_step
from ldpkernels.trainers.linear import clipped_sum

BATCH, TIMES = 256, 12
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


def ours(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """What `train_privately` does: sums without gradients for chains of linear layers, `torch.func` else."""
    optimizer, whose = torch.optim.SGD(model.parameters(), lr=0.1), torch.arange(BATCH)
    chain = all(not isinstance(one, torch.nn.Conv2d) for one in model.modules())

    def of_one(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    by_example = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, 0))

    def step() -> None:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        total = clipped_sum(model, cross_entropy, (x, y), whose, BATCH, 1.0) if chain else None
        none = {name: p.new_zeros((0, *p.shape)) for name, p in weights.items()}
        grads = none if total else by_example(weights, x, y)
        dp_sgd_step(model, None, 1.0, 1.0, batch_size=BATCH, grads=grads)
        for name, p in model.named_parameters():
            if total:
                p.grad += total[name] / BATCH
        optimizer.step()

    return step


def opacus_(mode: str) -> Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], Callable[[], object]]:
    """Opacus's step, by gradients of samples or by ghost clipping."""

    def make(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
        import opacus

        ghost = {"grad_sample_mode": "ghost", "criterion": torch.nn.CrossEntropyLoss()} if mode == "ghost" else {}
        found = opacus.PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0,
            data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH),
            max_grad_norm=1.0, poisson_sampling=False, **ghost,
        )  # fmt: skip
        wrapped, optimizer, criterion = *found[:2], found[2] if ghost else torch.nn.CrossEntropyLoss()

        def step() -> None:
            optimizer.zero_grad()
            criterion(wrapped(x), y).backward()
            optimizer.step()

        return step

    return make


WAYS = {"ours": ours, "Opacus, gradients": opacus_("hooks"), "Opacus, ghost": opacus_("ghost")}


def measured(network: str, way: str) -> tuple[float, float]:
    """Milliseconds of the best of some steps, and megabytes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, shape = NETWORKS[network]
    step = WAYS[way](make(), torch.randn(BATCH, *shape), torch.randint(0, 2, (BATCH,)))
    before, spent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(TIMES):
        started = time.process_time()
        step()
        spent.append(time.process_time() - started)
    return 1e3 * min(spent), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    print("| batch of 256 | " + " | ".join(WAYS) + " |\n|---|" + "---:|" * len(WAYS))
    for network in NETWORKS:
        cells = []
        for way in WAYS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                cells.append("{:.1f} ms, {:.0f} MB".format(*pool.apply(measured, (network, way))))
        print(f"| {network} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
