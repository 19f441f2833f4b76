# SPDX-License-Identifier: Apache-2.0
"""The runs of Han and Xue's tables: the paper's figures, what each run is, what it costs, and which there are."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Paper(NamedTuple):
    """What the paper prints for a dataset."""

    table_1: tuple[float, float, float]  # baseline, standalone, global
    table_2: dict[float, float]  # the global model's accuracy by sigma
    steps: int
    batch: int
    examples: int  # of each of five parties


PAPER = {
    "adult": Paper((0.8474, 0.8246, 0.8281), {1: 0.8281, 1.5: 0.8236, 3: 0.8147, 5: 0.8109}, 1000, 256, 7814),
    "mnist": Paper((0.9920, 0.9816, 0.9828), {1: 0.9828, 1.5: 0.9819, 3: 0.9789, 5: 0.9677}, 10_000, 128, 12_000),
    "fashion-mnist": Paper(
        (0.9250, 0.8760, 0.8894), {1: 0.8894, 1.5: 0.8779, 3: 0.8702, 5: 0.8647}, 10_000, 128, 12_000
    ),
}
SIGMAS = (1.0, 1.5, 3.0, 5.0)  # of its table 2
LESS_NOISE = ((0.57, 400), (0.635, 1000))  # sigma and steps of sound images at an eps of 6.7, of T = 10,000's sigma = 1
FULL_EPOCHS = 10  # of every network in the runs with the paper's T and all of the samples
# Ours: steps, steps of the sound variant, samples a party (None: as many as examples), epochs. Adult is in full; images
# are cut to what two shared cores do in minutes.
OURS = {"adult": (1000, 1000, None, 5), "mnist": (1000, 400, 6000, 3), "fashion-mnist": (1000, 400, 6000, 3)}


@dataclass(frozen=True)
class Setting:
    """One run."""

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
        """The key of the run's cell, which says all that decides its result."""
        kind = "sound" if self.sound else "paper"
        reach = f"T={self.steps}" + (f" {self.generators or 'gan+dcgan'} all samples" if self.full else "")
        wide = " wide" if self.wide else ""
        return f"{self.dataset} {kind} n={self.parties} sigma={self.sigma:g} {reach}{wide} seed={self.seed}"

    @property
    def minutes(self) -> float:
        """What the run costs a quiet core."""
        if self.dataset == "adult":
            return 1.2 * self.parties / 5
        if self.full and self.sound:
            return 45.0 * self.parties / 5  # its gradients of single examples
        steps = self.steps * self.parties * (1e-4 if self.generators in ("gan", "vae") else 7e-4)
        return (6.0 if self.full else 1.5) + steps + (12.0 if self.wide else 0.0)

    @property
    def picture(self) -> str:
        """The file with samples of a run of five parties; runs in the paper's own size have one for each kind."""
        of = f"-{self.generators}".replace("+", "-") if self.full and self.generators else ""
        return f"han-xue-{self.dataset}-{'sound' if self.sound else 'paper'}{of}.png"


def full(dataset: str, parties: int, generators: str, **changes: Any) -> Setting:
    """A run in the paper's own size."""
    plain = Setting(dataset, False, parties, 1.0, PAPER[dataset].steps, 0, generators=generators, full=True)
    return dataclasses.replace(plain, **changes)


def seeds(settings: list[Setting], count: int) -> list[Setting]:
    """Every setting with seeds 0 to count - 1; the first trains a baseline where the setting says so."""
    return [
        dataclasses.replace(s, seed=seed, baseline=s.baseline and seed == 0) for s in settings for seed in range(count)
    ]


def runs_of(dataset: str) -> list[Setting]:
    """The runs of a dataset. The loss's noise changes no weight, so few sigmas of the paper's variant are run."""
    paper, sound = OURS[dataset][:2]
    first = Setting(dataset, False, 5, 1.0, paper, 0, baseline=True)
    few = [dataclasses.replace(first, parties=n, baseline=False) for n in (10, 20)]
    ours = [Setting(dataset, True, 5, sigma, sound, 0) for sigma in SIGMAS]
    ours += [Setting(dataset, True, n, 1.0, sound, 0) for n in (10, 20)]
    if dataset == "adult":
        sigmas = [dataclasses.replace(first, sigma=sigma, baseline=False) for sigma in SIGMAS[1:]]
        return [*seeds([first], 5), *seeds([*few, *ours], 3), *sigmas]
    several = [full(dataset, 5, "gan", baseline=True)]
    if dataset == "fashion-mnist":
        several.append(full(dataset, 5, "dcgan", wide=True, baseline=True))
    wholes = [full(dataset, n, "gan") for n in (10, 20)]
    wholes += [full(dataset, 5, kinds) for kinds in ("vae", "gan+dcgan", "dcgan")]
    wholes.append(full(dataset, 5, "gan", sound=True))
    shorter, longer = (Setting(dataset, True, 5, sigma, steps, 0) for sigma, steps in LESS_NOISE)
    return [*seeds(several, 5), *seeds([*wholes, *ours, longer], 3), first, *few, shorter]


def plan() -> list[Setting]:
    """All the runs."""
    return [s for dataset in PAPER for s in runs_of(dataset)]


def config_of(s: Setting) -> Any:
    """The configuration of a run."""
    from ldpkernels.federated import han_xue, parties
    from ldpkernels.federated.dp_gan import Recipe

    recipe = Recipe(s.steps, PAPER[s.dataset].batch, sigma=s.sigma, sound=s.sound)
    _, _, samples, epochs = (0, 0, None, FULL_EPOCHS) if s.full else OURS[s.dataset]
    kinds = tuple(s.generators.split("+")) if s.generators else ()
    return han_xue.Config(
        parties=s.parties, recipe=recipe, samples=samples, local_epochs=epochs, epochs=epochs, baseline=s.baseline,
        generators=kinds, chunk=500, seed=s.seed, models=parties.WIDE if s.wide else (),
        global_model="cnn-3-wide" if s.wide else "",
    )  # fmt: skip


def dataset_of(name: str, root: str) -> Any:
    """The examples of a dataset, from torchvision's root."""
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
