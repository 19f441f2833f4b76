# SPDX-License-Identifier: Apache-2.0
"""Han and Xue's global model with either of its two sources replaced: real samples, or a better model's labels.

The global model learns from generated samples and from the vote's labels. Where it is below the paper's, this says
what each of them costs. Everything else is the paper's variant, in full, with a GAN in each of five parties.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.papers.common import Cell, Job
from benchmarks.papers.han_xue_plan import config_of, dataset_of, finish, full
from ldpkernels.federated import han_xue, parties

PREFIX = "samples or labels "  # of the names of these cells
SEEDS = 3
PARTIES = 5
TEACHER = 2**62  # what the world's key is folded into for the model of all real examples


@dataclass(frozen=True)
class Ablation:
    """A run of the paper's variant with a GAN in each party, and what is swapped in it."""

    dataset: str
    seed: int = 0
    minutes: float = 24.0  # of a quiet core

    @property
    def name(self) -> str:
        """The key of the run's cell."""
        return f"{PREFIX}{self.dataset} n={PARTIES} seed={self.seed}"


def plan() -> list[Ablation]:
    """The runs of the dataset whose global model is furthest below the paper's."""
    return [Ablation("fashion-mnist", seed) for seed in range(SEEDS)]


def jobs(root: str, workers: int | None) -> list[Job]:
    """The runs as jobs."""
    return [Job(a.name, a.minutes, functools.partial(compute, a, root, workers)) for a in plan()]


class Real(han_xue.World):
    """The parties of a world, who label and learn from their real examples as if they had generated them."""

    def begin(self) -> han_xue.State:
        """After generators that are not needed."""
        return han_xue.State(makers=[{}] * self.config.parties)

    def samples(self, state: han_xue.State) -> torch.Tensor:
        return self.dataset.train_x[torch.cat(self.shards)]


def compute(a: Ablation, root: str, workers: int | None, folder: Path) -> Cell:
    """Run it: accuracies of the global model, and how often the vote is right."""
    torch.set_num_threads(1)
    dataset = dataset_of(a.dataset, root)
    config = config_of(replace(full(a.dataset, PARTIES, "gan"), seed=a.seed))
    world, real = han_xue.World(dataset, config), Real(dataset, config)
    ended = finish(world, workers, folder / "generated", a.name)
    of_real = finish(real, workers, folder / "real", f"{a.name}, real samples", real.begin(), 3)
    assert ended.keep is not None
    assert of_real.keep is not None

    x, y = real.samples(of_real), dataset.train_y[torch.cat(real.shards)]
    key = world.key.fold_in(TEACHER)
    teacher = parties.build(world.global_kind, world.shape, dataset.classes, key, epochs=config.epochs)
    teacher.fit(x.flatten(1).numpy(), y.numpy())
    told, known = (predicted(teacher, some) for some in (world.samples(ended), dataset.test_x))
    relabelled, _ = han_xue.round_(replace(ended, labels=told, accuracy=None), world)
    return {
        "dataset": a.dataset,
        "seed": a.seed,
        "standalone": list(ended.standalone),
        "generated, vote": ended.accuracy,
        "generated, teacher": relabelled.accuracy,
        "real, vote": of_real.accuracy,
        "teacher": float((known == dataset.test_y).float().mean()),
        "vote is the teacher's": agreement(ended, told),
        "vote is right of real": agreement(of_real, y),
        "kept of generated": float(ended.keep.float().mean()),
        "kept of real": float(of_real.keep.float().mean()),
        "ran": {"config": asdict(config), "examples of a party": world.examples},
    }


def predicted(model: parties.Model, x: torch.Tensor) -> torch.Tensor:
    """The labels that a model gives to samples."""
    return torch.as_tensor(model.predict(x.flatten(1).numpy()))


def agreement(state: han_xue.State, labels: torch.Tensor) -> float:
    """The share of the kept samples whose label is this one."""
    assert state.labels is not None
    return float((state.labels == labels)[state.keep].float().mean())
