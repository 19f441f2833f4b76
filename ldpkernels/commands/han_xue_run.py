# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl han-xue` at work."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ldpkernels.commands import options
from ldpkernels.commands.program import Outcome
from ldpkernels.common.arguments import is_name
from ldpkernels.common.plot import new_figure, save
from ldpkernels.federated import adult, data, han_xue, han_xue_privacy, own, runs, workers
from ldpkernels.federated.adult import FEATURES
from ldpkernels.federated.dp_gan import Recipe
from ldpkernels.federated.han_xue import Config, State, World
from ldpkernels.federated.workers import Workers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def federate(args: argparse.Namespace) -> Outcome:
    """Run the command: train, print the table and what is protected, draw the samples."""
    torch.set_num_threads(args.threads)
    config = config_of(args)
    if is_name(args.data):
        dataset = own.named(args.data, args.span)
    else:
        dataset = adult.load(args.data) if args.dataset == "adult" else data.load(args.dataset, args.data)
    models = own.models(args.models, args.parties, args.seed)
    shards = data.deal(dataset.train_y, args.parties, args.seed, skew=args.skew, uneven=args.uneven)
    world = World(dataset, config, models, shards, device=options.device(args.device))
    described = {"algorithm": "han-xue", "config": config, "dataset": args.dataset, "threads": args.threads}
    if args.device != "cpu":
        described["device"] = args.device
    described |= {n: getattr(args, n) for n in ("skew", "uneven", "span") if getattr(args, n) is not None}
    if models is not None:
        described["models"] = args.models
    if is_name(args.data):
        described["fingerprint"] = own.fingerprint(dataset)
    parts = han_xue_privacy.report(config, world.examples, world.labelled, world.dataset)
    state, rows = rounds_of(args, world, described)
    mean = sum(state.standalone) / len(state.standalone)
    print(f"\n{'baseline':>12}  {'-' if state.baseline is None else format(state.baseline, '.4f')}")
    print(f"{'standalone':>12}  {mean:.4f}  (" + ", ".join(f"{a:.4f}" for a in state.standalone) + ")")
    print(f"{'global':>12}  {state.accuracy:.4f}\n")
    print("What is protected:\n- " + "\n- ".join(map(str, parts)))
    if args.out:
        draw(Path(args.out) / "samples.png", world, state)
        (Path(args.out) / "privacy.txt").write_text("\n".join(map(str, parts)) + "\n")
        print(f"\nkept: {args.out}/metrics.csv, samples.png, privacy.txt, checkpoint.pt")
    accuracies = {"baseline": state.baseline, "standalone": state.standalone, "global": state.accuracy}
    return Outcome({**described, **accuracies, "protected": parts, "rounds": rows})


def config_of(args: argparse.Namespace) -> Config:
    """The configuration, as the options have it."""
    return options.taken(
        args,
        Config,
        recipe=options.taken(args, Recipe, lr=args.rate),
        generators=tuple(args.generators),
        models=() if any(map(is_name, args.models)) else tuple(args.models),
        baseline=not args.no_baseline,
        chunk=max(100, args.steps // 20),  # a checkpoint holds all the parties' generators: some of them are enough
    )


def examples_of(world: World) -> str:
    """How many examples a party has, in words."""
    most = max(map(len, world.shards))
    return f"{world.examples:,}" + (f" to {most:,}" if most > world.examples else "")


def rounds_of(args: argparse.Namespace, world: World, described: dict[str, object]) -> tuple[State, list[runs.Row]]:
    """The last state, and a row for each round."""
    kinds = dict.fromkeys(map(world.model_kind, range(world.config.parties)))
    print(
        f"{world.config.parties} parties with {examples_of(world)} examples each; "
        f"generators: {', '.join(world.kinds)}; models: {', '.join(kinds)}.",
        flush=True,
    )
    started = time.perf_counter()
    count = min(args.workers or workers.available(args.threads), world.config.parties)
    count = 1 if world.device.type != "cpu" else count
    with Workers(count, world, threads=args.threads) if count > 1 else contextlib.nullcontext() as crew:
        state, rows = runs.run(
            lambda state: han_xue.round_(state, world, workers=crew),
            State(),
            han_xue.rounds(world.config),
            folder=args.out,
            resume=args.resume,
            described=described,
            label="han-xue",
            progress=not args.quiet,
        )
    print(f"{time.perf_counter() - started:.0f} seconds.\n")
    told = [row for row in rows if row["accuracy"] is not None or str(row["part"]).startswith("vote")]
    print(runs.table(told, {"part": "s", "accuracy": ".4f"}))
    return state, rows


_EACH = 16


def draw(path: str | Path, world: World, state: State) -> None:
    """A row for each kind of generator: the first party that has it, real on the left, synthetic on the right.

    Samples that are features are shown by class: the real ones by theirs, the synthetic ones by the vote's.
    """
    used = world.kinds[: world.config.parties]
    owners = [used.index(kind) for kind in dict.fromkeys(used)]
    images = len(world.shape) == 3 and world.shape[0] in (1, 3)
    figure, axes = new_figure(2 * len(owners), 1, width=9, height=(1.5 if images else 4.6) * len(owners))
    each, asked = world.config.samples or world.examples, world.config.queries is not None
    for row, party in enumerate(owners):
        shard = world.shards[party]
        voted = None if asked or state.labels is None else state.labels[party * each :][:each]
        sides = (
            (axes[2 * row], "real", world.dataset.train_x[shard], world.dataset.train_y[shard]),
            (
                axes[2 * row + 1],
                f"synthetic, {used[party]}",
                world.samples_of(state, party, _EACH if images else each),
                voted,
            ),
        )
        for axis, name, x, labels in sides:
            if images:
                _images(axis, x[:_EACH], f"party {party}: {name}", world)
            else:
                _features(axis, x, labels, f"party {party}: {name}", world)
    save(figure, path)


def _images(axis: Axes, x: torch.Tensor, title: str, world: World) -> None:
    assert world.span is not None
    low, high = world.span
    strip = torch.cat(list((x - low) / (high - low)), dim=2).clamp(0, 1)  # [channels, height, all widths]
    axis.imshow(strip.permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    _bare(axis, title)


def _features(axis: Axes, x: torch.Tensor, labels: torch.Tensor | None, title: str, world: World) -> None:
    """As many samples of each class, which the axis names; the first ones where there are no labels."""
    classes = world.dataset.classes
    some = (
        [(labels == c).nonzero().flatten()[: max(1, _EACH // classes)] for c in range(classes)]
        if labels is not None
        else []
    )
    x = x.flatten(1)[torch.cat(some) if some else slice(_EACH)]
    shown = axis.imshow(
        x.clamp(-3, 3).numpy(), cmap="coolwarm", vmin=-3, vmax=3, aspect="auto", interpolation="nearest"
    )
    _bare(axis, f"{title}: {x.shape[1]} features of {len(x)} samples, in deviations, cut at 3")
    axis.figure.colorbar(shown, ax=axis, pad=0.01, aspect=12)
    starts = [sum(map(len, some[:c])) for c in range(len(some))]
    axis.set_yticks(starts, [f"class {c}" if len(found) else "" for c, found in enumerate(some)], fontsize=7)
    for start in starts[1:]:
        axis.axhline(start - 0.5, color="k", linewidth=0.8)
    if world.dataset.name == "adult":
        first = {name.partition("=")[0]: i for i, name in reversed(list(enumerate(FEATURES)))}
        axis.set_xticks(list(first.values()), list(first), rotation=90, fontsize=6)


def _bare(axis: Axes, title: str) -> None:
    axis.grid(False)
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=8, loc="left")
