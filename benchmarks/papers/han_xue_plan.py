# SPDX-License-Identifier: Apache-2.0
"""The runs of Han and Xue's tables: what each is, what it costs, and in which order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.han_xue_page import FULL_EPOCHS, PAPER, SIGMAS

# Ours: steps, steps of the sound variant, samples a party (None: as many as examples), epochs. Adult is in full; images
# are cut to what two shared cores do in minutes.
OURS = {"adult": (1000, 1000, None, 5), "mnist": (1000, 400, 6000, 3), "fashion-mnist": (1000, 400, 6000, 3)}


@dataclass(frozen=True)
class Setting:
    dataset: str
    sound: bool
    parties: int
    sigma: float
    steps: int
    seed: int
    baseline: bool = False
    generators: str = ""  # kinds with a plus between; empty for the paper's mixture
    full: bool = False  # the paper's T, as many samples as examples, FULL_EPOCHS epochs of every network
    wide: bool = False  # local models, the global one and the baseline twice as wide

    @property
    def name(self) -> str:
        kind = "sound" if self.sound else "paper"
        reach = f"T={self.steps}" + (f" {self.generators or 'gan+dcgan'} all samples" if self.full else "")
        wide = " wide" if self.wide else ""
        return f"{self.dataset} {kind} n={self.parties} sigma={self.sigma:g} {reach}{wide} seed={self.seed}"


def full(dataset: str, parties: int, generators: str, *, baseline: bool = False, sound: bool = False) -> Setting:
    """A run in the paper's own size."""
    steps = PAPER[dataset]["schedule"][0]
    return Setting(dataset, sound, parties, 1.0, steps, 0, baseline, generators, full=True)


def wide(dataset: str, seed: int) -> Setting:
    """The same with the generators that do best and networks twice as wide."""
    return dataclasses.replace(full(dataset, 5, "dcgan", baseline=seed == 0), wide=True, seed=seed)


def config_of(s: Setting) -> Any:
    from ldpkernels.federated import han_xue, parties
    from ldpkernels.federated.dp_gan import Recipe

    recipe = Recipe(s.steps, PAPER[s.dataset]["schedule"][1], sigma=s.sigma, sound=s.sound)
    _, _, samples, epochs = (0, 0, None, FULL_EPOCHS) if s.full else OURS[s.dataset]
    kinds = tuple(s.generators.split("+")) if s.generators else ()
    return han_xue.Config(
        parties=s.parties, recipe=recipe, samples=samples, local_epochs=epochs, epochs=epochs, baseline=s.baseline,
        generators=kinds, chunk=500, seed=s.seed, models=parties.WIDE if s.wide else (),
        global_model="cnn-3-wide" if s.wide else "",
    )  # fmt: skip


def dataset_of(name: str, root: str) -> Any:
    from ldpkernels.federated import adult, data

    return adult.load(root) if name == "adult" else data.load(name, root)


def finish(
    world: Any, workers: int | None, folder: Path, label: str, state: Any = None, rounds: int | None = None
) -> Any:
    """Where the run of this world ends; from its start, or from a state that has so many rounds left."""
    from ldpkernels.federated import han_xue, runs
    from ldpkernels.federated.workers import Workers, available

    with Workers(min(workers or available(), world.config.parties), world) as crew:
        return runs.run(
            lambda state: han_xue.round_(state, world, workers=crew),
            state or han_xue.State(),
            rounds or han_xue.rounds(world.config),
            folder=folder,
            resume=True,
            described={"dataset": world.dataset.name, "config": dataclasses.asdict(world.config)},
            label=label,
        )[0]


def minutes(s: Setting) -> float:
    """Of a quiet core."""
    if s.dataset == "adult":
        return 1.2 * s.parties / 5
    if s.full and s.sound:
        return 45.0 * s.parties / 5  # its gradients of single examples
    steps = s.steps * s.parties * (1e-4 if s.generators in ("gan", "vae") else 7e-4)
    return (6.0 if s.full else 1.5) + steps + (12.0 if s.wide else 0.0)


def cells_of(dataset: str) -> list[Setting]:
    """In the order of their worth. The loss's noise changes no weight, so few sigmas of the paper's variant are run."""
    paper, sound = OURS[dataset][:2]
    first = Setting(dataset, False, 5, 1.0, paper, 0, baseline=True)
    if dataset != "adult":
        return [
            full(dataset, 5, "gan", baseline=True),
            first,
            Setting(dataset, True, 5, 1.0, sound, 0),
            Setting(dataset, True, 5, 5.0, sound, 0),
            Setting(dataset, False, 10, 1.0, paper, 0),
            *(Setting(dataset, True, 5, s, sound, 0) for s in SIGMAS[1:3]),
            Setting(dataset, False, 20, 1.0, paper, 0),
            *(Setting(dataset, True, n, 1.0, sound, 0) for n in (10, 20)),
            *(dataclasses.replace(full(dataset, 5, "gan"), seed=seed) for seed in (1, 2, 3, 4)),
            *(full(dataset, parties, "gan") for parties in (10, 20)),
            *(full(dataset, 5, kinds) for kinds in ("vae", "dcgan", "gan+dcgan")),
            full(dataset, 5, "gan", sound=True),
            *(dataclasses.replace(full(dataset, n, "gan"), seed=seed) for n in (10, 20) for seed in (1, 2)),
            *(dataclasses.replace(full(dataset, 5, kind), seed=seed) for kind in ("dcgan", "vae") for seed in (1, 2)),
            *(wide(dataset, seed) for seed in range(5) if dataset == "fashion-mnist"),
            *(Setting(dataset, True, 5, s, sound, seed) for s in SIGMAS for seed in (1, 2)),
            *(Setting(dataset, True, n, 1.0, sound, seed) for n in (10, 20) for seed in (1, 2)),
            *(dataclasses.replace(full(dataset, 5, "gan+dcgan"), seed=seed) for seed in (1, 2)),
            *(dataclasses.replace(full(dataset, 5, "gan", sound=True), seed=seed) for seed in (1, 2)),
        ]
    return [
        first,
        Setting(dataset, True, 5, 1.0, sound, 0),
        Setting(dataset, False, 5, 5.0, paper, 0),
        Setting(dataset, True, 5, 5.0, sound, 0),
        Setting(dataset, False, 10, 1.0, paper, 0),
        Setting(dataset, False, 20, 1.0, paper, 0),
        *(Setting(dataset, True, 5, s, sound, 0) for s in SIGMAS[1:3]),
        *(Setting(dataset, False, 5, 1.0, paper, seed) for seed in (1, 2, 3, 4)),
        Setting(dataset, True, 10, 1.0, sound, 0),
        *(Setting(dataset, False, 5, s, paper, 0) for s in SIGMAS[1:3]),
        Setting(dataset, True, 20, 1.0, sound, 0),
        *(Setting(dataset, False, n, 1.0, paper, seed) for n in (10, 20) for seed in (1, 2)),
        *(Setting(dataset, True, 5, s, sound, seed) for s in SIGMAS for seed in (1, 2)),
        *(Setting(dataset, True, n, 1.0, sound, seed) for n in (10, 20) for seed in (1, 2)),
    ]
