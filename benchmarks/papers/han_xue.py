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
from pathlib import Path
from typing import Any

from benchmarks.papers import han_xue_ablation as ablation
from benchmarks.papers import han_xue_baseline as baseline
from benchmarks.papers.common import Cell, Cells, Job, not_run, parser_of, write_markdown
from benchmarks.papers.han_xue_figures import draw
from benchmarks.papers.han_xue_page import FULL_EPOCHS, PAPER, glance, picture_of, sections
from benchmarks.papers.han_xue_plan import OURS, Setting, cells_of, config_of, dataset_of, finish, minutes
from benchmarks.papers.han_xue_words import FIGURES, INTRODUCTION, SAMPLES_OR_LABELS, TABLE_3

DELTA = 1e-5
QUERIES = 1000  # samples that GNMax labels


def jobs(dataset: str, root: str, workers: int | None, folder: Path, name: str, seed: int = 0) -> list[Job]:
    """The runs of a dataset as jobs; the folder is that of the pictures."""
    settings = [dataclasses.replace(s, seed=s.seed + seed) for s in cells_of(dataset)]
    plan = [(s, folder / picture_of(dataclasses.asdict(s), f"{name}-{dataset}")) for s in settings]
    runs = [Job(s.name, minutes(s), functools.partial(compute, s, root, at, workers)) for s, at in plan]
    return [*runs, *baseline.jobs(dataset, root, seed), *ablation.jobs(dataset, root, workers, seed)]


def compute(s: Setting, root: str, picture: Path, workers: int | None, folder: Path) -> Cell:
    """Run it."""
    import torch

    from ldpkernels.accounting import han_xue_eq18
    from ldpkernels.commands import han_xue_picture
    from ldpkernels.federated import han_xue, han_xue_privacy

    torch.set_num_threads(1)
    started, config = cpu_seconds(), config_of(s)
    world = han_xue.World(dataset_of(s.dataset, root), config)
    state = finish(world, workers, folder, s.name)
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
    if s.parties == 5 and s.sigma == 1 and s.seed == 0 and not s.wide:
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


def main() -> None:
    parser = parser_of(__doc__ or "", "han-xue")
    parser.add_argument("dataset", choices=tuple(PAPER))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cells = Cells(args.out / f"{args.name}.json", args.only, args.dry)
    plan = jobs(args.dataset, args.data, args.workers, args.out, args.name, args.seed)
    cells.fill(plan, lambda: write(cells, args.out, args.name))


def runs_of(cells: dict[str, Cell]) -> list[Cell]:
    """The cells of the tables: all but those that swap samples or labels; baselines are with their runs."""
    return [c for name, c in baseline.joined(cells).items() if not name.startswith(ablation.PREFIX)]


def write(cells: Cells, folder: Path, name: str) -> None:
    """The page of all the datasets, and its figure."""
    found = runs_of(cells.all())
    parts = [INTRODUCTION, f"## Table 1\n\n{glance(found)}"]
    parts.append("## Figures 6 and 8: accuracy over sigma, with 5, 10 and 20 parties")
    parts.append(f"![Global, standalone and baseline over sigma]({name}.png)\n\n{FIGURES}")
    for dataset in PAPER:
        ours = [c for c in found if c["dataset"] == dataset]
        if ours:
            parts += sections(dataset, ours, reduced(dataset, ours), f"{name}-{dataset}")
        swapped = [c for n, c in cells.all().items() if n.startswith(ablation.PREFIX) and c["dataset"] == dataset]
        if swapped:
            parts.append(f"### Samples or labels\n\n{SAMPLES_OR_LABELS}\n\n{ablation.table(swapped)}")
    parts.append(f"## Table 3: two other methods\n\n{TABLE_3}")
    planned = [j for dataset in PAPER for j in jobs(dataset, "", 1, folder, name) if j.name not in cells.all()]
    waiting = not_run([(j.name, j.minutes) for j in planned])
    parts.append(f"## What was not run\n\n{waiting}")
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
