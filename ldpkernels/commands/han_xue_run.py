# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl han-xue` at work."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

import torch

from ldpkernels.commands import han_xue_picture, options
from ldpkernels.commands.program import Outcome
from ldpkernels.common.arguments import is_name
from ldpkernels.federated import adult, data, han_xue, han_xue_privacy, own, runs, workers
from ldpkernels.federated.dp_gan import Recipe
from ldpkernels.federated.han_xue import Config, State, World
from ldpkernels.federated.workers import Workers


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
        han_xue_picture.draw(Path(args.out) / "samples.png", world, state)
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
