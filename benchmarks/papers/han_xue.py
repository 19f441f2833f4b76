# SPDX-License-Identifier: Apache-2.0
"""Han and Xue's tables 1 and 2 and their figures 4, 6 and 8, rerun, and the same for the sound variant.

    python -m benchmarks.papers.han_xue adult --data DIR
    python -m benchmarks.papers.han_xue mnist --data DIR
    python -m benchmarks.papers.han_xue fashion-mnist --data DIR

Finished cells are kept in the JSON file; --only REGEX runs some of them, --dry writes the page from what is there. A
cell of the sound variant is labelled twice: by exact votes, and by GNMax with the eps of the generators.
"""

from __future__ import annotations

import dataclasses
import functools
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Cell, Cells, Job, not_run, parser_of, write_markdown
from benchmarks.papers.han_xue_page import FULL_EPOCHS, PAPER, SIGMAS, draw, glance, picture_of, sections
from benchmarks.papers.han_xue_words import INTRODUCTION, TABLE_3

DELTA = 1e-5
QUERIES = 1000  # samples that GNMax labels
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

    @property
    def name(self) -> str:
        kind = "sound" if self.sound else "paper"
        reach = f"T={self.steps}" + (f" {self.generators or 'gan+dcgan'} all samples" if self.full else "")
        return f"{self.dataset} {kind} n={self.parties} sigma={self.sigma:g} {reach} seed={self.seed}"


def full(dataset: str, parties: int, generators: str, *, baseline: bool = False, sound: bool = False) -> Setting:
    """A run in the paper's own size."""
    steps = PAPER[dataset]["schedule"][0]
    return Setting(dataset, sound, parties, 1.0, steps, 0, baseline, generators, full=True)


def config_of(s: Setting) -> Any:
    from ldpkernels.federated import han_xue
    from ldpkernels.federated.dp_gan import Recipe

    recipe = Recipe(s.steps, PAPER[s.dataset]["schedule"][1], sigma=s.sigma, sound=s.sound)
    _, _, samples, epochs = (0, 0, None, FULL_EPOCHS) if s.full else OURS[s.dataset]
    kinds = tuple(s.generators.split("+")) if s.generators else ()
    return han_xue.Config(
        parties=s.parties, recipe=recipe, samples=samples, local_epochs=epochs, epochs=epochs, baseline=s.baseline,
        generators=kinds, chunk=500, seed=s.seed,
    )  # fmt: skip


def dataset_of(name: str, root: str) -> Any:
    from ldpkernels.federated import adult, data

    return adult.load(root) if name == "adult" else data.load(name, root)


def minutes(s: Setting) -> float:
    """Of a quiet core."""
    if s.dataset == "adult":
        return 1.2 * s.parties / 5
    if s.full and s.sound:
        return 55.0 * s.parties / 5  # its gradients of single examples
    steps = s.steps * s.parties * (1e-4 if s.generators in ("gan", "vae") else 7e-4)
    return (6.0 if s.full else 1.5) + steps


def jobs(dataset: str, root: str, workers: int | None, folder: Path, name: str, seed: int = 0) -> list[Job]:
    """The runs of a dataset as jobs; the folder is that of the pictures."""
    settings = [dataclasses.replace(s, seed=s.seed + seed) for s in cells_of(dataset)]
    plan = [(s, folder / picture_of(dataclasses.asdict(s), f"{name}-{dataset}")) for s in settings]
    return [Job(s.name, minutes(s), functools.partial(compute, s, root, at, workers)) for s, at in plan]


def compute(s: Setting, root: str, picture: Path, workers: int | None, folder: Path) -> Cell:
    """Run it."""
    import torch

    from ldpkernels.accounting import han_xue_eq18
    from ldpkernels.commands import han_xue_picture
    from ldpkernels.federated import han_xue, han_xue_privacy, runs
    from ldpkernels.federated.workers import Workers, available

    torch.set_num_threads(1)
    started, config = cpu_seconds(), config_of(s)
    world = han_xue.World(dataset_of(s.dataset, root), config)
    with Workers(min(workers or available(), s.parties), world) as crew:
        state, _ = runs.run(
            lambda state: han_xue.round_(state, world, workers=crew),
            han_xue.State(),
            han_xue.rounds(config),
            folder=folder,
            resume=True,
            described={"dataset": s.dataset, "config": dataclasses.asdict(config)},
            label=s.name,
        )
    assert state.keep is not None
    assert state.labels is not None
    q = config.recipe.batch / world.examples
    cell: Cell = {
        **dataclasses.asdict(s),
        "examples": world.examples,
        "standalone": list(state.standalone),
        "global": state.accuracy,
        "baseline_accuracy": state.baseline,
        "kept": float(state.keep.float().mean()),
        "labels": torch.bincount(state.labels[state.keep].long(), minlength=world.dataset.classes).tolist(),
        "eq18": han_xue_eq18(q, s.sigma, s.steps, DELTA).claimed,
        "digest": digest(state.makers),
        "ran": {"config": dataclasses.asdict(config), "examples of a party": world.examples},
    }
    if s.sound:
        eps = han_xue_privacy.generators(config, world.examples).result.epsilon
        cell |= {"eps": eps} | gnmax(state, world, eps)
    if s.parties == 5 and s.sigma == 1 and s.seed == 0:
        han_xue_picture.draw(str(picture), world, state)
    return cell | {"CPU seconds": round(cpu_seconds() - started, 1)}


def cpu_seconds() -> float:
    """Of this process and of the workers that it has closed."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def digest(makers: Any) -> str:
    """Equal for generators that are equal to the bit."""
    import hashlib

    parts = [value.numpy().tobytes() for maker in makers for _, value in sorted(maker.items())]
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def gnmax(state: Any, world: Any, eps: float) -> Cell:
    """The same samples, some of them, labelled with the noise that costs eps; and a global model of these."""
    from ldpkernels.federated import han_xue
    from ldpkernels.votes import vote_epsilon

    low, high = 0.1, 1e5
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if vote_epsilon(QUERIES, middle, delta=DELTA).epsilon <= eps else (middle, high)
    config = dataclasses.replace(world.config, vote_sigma=high, queries=QUERIES, baseline=False, epochs=20)
    noisy = han_xue.World(world.dataset, config)
    chosen = noisy.queried(len(state.votes[0]))
    state = dataclasses.replace(state, votes=[v[chosen] for v in state.votes], labels=None, keep=None, accuracy=None)
    for _ in range(2):
        state, _ = han_xue.round_(state, noisy)
    votes = vote_epsilon(QUERIES, high, delta=DELTA).epsilon
    return {"vote sigma": high, "vote eps": votes, "global gnmax": state.accuracy}


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
    ]


def main() -> None:
    parser = parser_of(__doc__ or "", "han-xue")
    parser.add_argument("dataset", choices=tuple(PAPER))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cells = Cells(args.out / f"{args.name}.json", args.only, args.dry)
    plan = jobs(args.dataset, args.data, args.workers, args.out, args.name, args.seed)
    cells.fill(plan, lambda: write(cells, args.out, args.name))


def write(cells: Cells, folder: Path, name: str) -> None:
    """The page of all the datasets, and its figure."""
    found = list(cells.all().values())
    parts = [INTRODUCTION, f"## Table 1\n\n{glance(found)}"]
    parts.append("## Figures 6 and 8: accuracy over sigma, with 5, 10 and 20 parties")
    parts.append(f"![Global, standalone and baseline over sigma]({name}.png)")
    for dataset in PAPER:
        ours = [c for c in found if c["dataset"] == dataset]
        if ours:
            parts += sections(dataset, ours, reduced(dataset, ours), f"{name}-{dataset}")
    parts.append(f"## Table 3: two other methods\n\n{TABLE_3}")
    planned = [s for dataset in PAPER for s in cells_of(dataset) if s.name not in cells.all()]
    parts.append(
        f"## What was not run\n\n{not_run([f'{s.name}: {minutes(s):.0f} minutes of a core' for s in planned])}"
    )
    write_markdown(folder / f"{name}.md", "Han and Xue, rerun", parts, cells.facts())
    draw(found, folder / f"{name}.png")


def reduced(dataset: str, found: list[Cell]) -> str:
    """What was cut, in words."""
    steps, batch, examples = PAPER[dataset]["schedule"]
    ours, sound, samples, epochs = OURS[dataset]
    if samples is None:
        return f"Nothing: T = {steps:,}, B = {batch}, N = {examples:,} in each of five parties, all its samples."
    whole = (
        f"Nothing of the runs with T = {steps:,}: all samples, {FULL_EPOCHS} epochs of every network. Of the others: "
        if any(c.get("full") for c in found)
        else ""
    )
    return (
        f"{whole}T = {ours:,} steps, and {sound:,} for the sound variant, where the paper has {steps:,}; {samples:,} "
        f"samples a party where it has {examples:,}; {epochs} epochs of every network. B = {batch} and "
        f"N = {examples:,} are its own."
    )


if __name__ == "__main__":
    main()
