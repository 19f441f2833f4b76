# SPDX-License-Identifier: Apache-2.0
"""What each source of Han and Xue's global model costs, and what may bring it nearer to the paper's.

Either source is replaced: real samples for generated ones, or a better model's labels for the vote's. Two tries follow.
In one, networks twice as wide label real samples, which is about the most that generators can reach. In the other,
discriminators have the losses of equation (4), and the global model more epochs.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.papers.common import Cell, Job, table
from benchmarks.papers.han_xue_plan import FULL_EPOCHS, config_of, dataset_of, finish, full
from ldpkernels.federated import han_xue, parties

OF = "fashion-mnist"  # the dataset whose global model is furthest below the paper's
PARTIES = 5
SWAPPED, WIDE, LOG = "samples or labels ", "real images, wide ", "log losses "  # of the names of these cells
LABELS = {WIDE: "real images, networks twice as wide", LOG: "GANs with the losses of equation (4)"}
EPOCHS = (FULL_EPOCHS, 20, 30)  # of the global model
TEACHER = 2**62  # what the world's key is folded into for the model of all real examples


def jobs(root: str, workers: int | None) -> list[Job]:
    """These runs as jobs."""
    planned = [(SWAPPED, swap, 24.0, seed) for seed in range(3)]
    planned += [(WIDE, by_real, 18.0, 0), (LOG, by_log, 18.0, 0)]
    return [
        Job(name(kind, seed), minutes, functools.partial(compute, seed, root, workers, name(kind, seed)))
        for kind, compute, minutes, seed in planned
    ]


def name(kind: str, seed: int) -> str:
    """The key of a cell, which is of the paper's variant, in full, with a GAN in each party that has a generator."""
    return f"{kind}{OF} n={PARTIES} seed={seed}"


def config_by(name: str, seed: int) -> han_xue.Config:
    """The configuration of the run of this name."""
    config = config_of(replace(full(OF, PARTIES, "gan"), seed=seed, wide=name.startswith(WIDE)))
    return replace(config, recipe=replace(config.recipe, loss="log")) if name.startswith(LOG) else config


class Real(han_xue.World):
    """The parties of a world, who label and learn from their real examples as if they had generated them."""

    def begin(self) -> han_xue.State:
        """After generators that are not needed."""
        return han_xue.State(makers=[{}] * self.config.parties)

    def samples(self, state: han_xue.State) -> torch.Tensor:
        return self.dataset.train_x[torch.cat(self.shards)]


def swap(seed: int, root: str, workers: int | None, label: str, folder: Path) -> Cell:
    """Accuracies of the global model of each source, and how often the vote is right."""
    torch.set_num_threads(1)
    dataset, config = dataset_of(OF, root), config_by(label, seed)
    world, real = han_xue.World(dataset, config), Real(dataset, config)
    ended = finish(world, workers, folder / "generated", label)
    of_real = finish(real, workers, folder / "real", f"{label}, real samples", real.begin(), 3)
    assert ended.keep is not None
    assert of_real.keep is not None

    x, y = real.samples(of_real), dataset.train_y[torch.cat(real.shards)]
    key = world.key.fold_in(TEACHER)
    teacher = parties.build(world.global_kind, world.shape, dataset.classes, key, epochs=config.epochs)
    teacher.fit(x.flatten(1).numpy(), y.numpy())
    told, known = (predicted(teacher, some) for some in (world.samples(ended), dataset.test_x))
    relabelled, _ = han_xue.round_(replace(ended, labels=told, accuracy=None), world)
    return {
        **described(seed, ended, world),
        "generated, vote": ended.accuracy,
        "generated, teacher": relabelled.accuracy,
        "real, vote": of_real.accuracy,
        "teacher": float((known == dataset.test_y).float().mean()),
        "vote is the teacher's": agreement(ended, told),
        "vote is right of real": agreement(of_real, y),
        "kept of generated": float(ended.keep.float().mean()),
        "kept of real": float(of_real.keep.float().mean()),
    }


def by_real(seed: int, root: str, workers: int | None, label: str, folder: Path) -> Cell:
    """The global model of real images with the vote's labels."""
    torch.set_num_threads(1)
    world = Real(dataset_of(OF, root), config_by(label, seed))
    ended = finish(world, workers, folder, label, world.begin(), 3)
    return {**described(seed, ended, world), "by epochs": {str(world.config.epochs): ended.accuracy}}


def by_log(seed: int, root: str, workers: int | None, label: str, folder: Path) -> Cell:
    """The global model of the same samples, by its epochs."""
    torch.set_num_threads(1)
    world = han_xue.World(dataset_of(OF, root), config_by(label, seed))
    ended, found = finish(world, workers, folder, label), {}
    for epochs in EPOCHS:
        longer = han_xue.World(world.dataset, replace(world.config, epochs=epochs))
        found[str(epochs)] = han_xue.round_(replace(ended, accuracy=None), longer)[0].accuracy
    return {**described(seed, ended, world), "by epochs": found}


def described(seed: int, ended: han_xue.State, world: han_xue.World) -> Cell:
    """What ran, how its parties do alone, and how much the vote kept."""
    assert ended.keep is not None
    ran = {"config": asdict(world.config), "examples of a party": world.examples}
    kept = float(ended.keep.float().mean())
    return {"dataset": OF, "seed": seed, "standalone": list(ended.standalone), "kept": kept, "ran": ran}


def predicted(model: parties.Model, x: torch.Tensor) -> torch.Tensor:
    """The labels that a model gives to samples."""
    return torch.as_tensor(model.predict(x.flatten(1).numpy()))


def agreement(state: han_xue.State, labels: torch.Tensor) -> float:
    """The share of the kept samples whose label is this one."""
    assert state.labels is not None
    return float((state.labels == labels)[state.keep].float().mean())


def tries(cells: dict[str, Cell]) -> str:
    """The two tries: what is labelled, and the global model by its epochs."""
    rows = []
    for kind, label in LABELS.items():
        if cell := cells.get(name(kind, 0)):
            found = [f"{cell['by epochs'][e]:.4f}" if e in cell["by epochs"] else "" for e in map(str, EPOCHS)]
            rows.append([label, f"{fmean(cell['standalone']):.4f}", f"{cell['kept']:.1%}", *found])
    heads = [f"global, {epochs} epochs" for epochs in EPOCHS]
    return table(["samples and labels", "standalone", "kept by the vote", *heads], rows)
