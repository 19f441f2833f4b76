# SPDX-License-Identifier: Apache-2.0
"""`python -m ldpkernels fl han-xue`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ldpkernels.commands import federated_options

DATASETS = ("digits", "adult", "mnist", "fashion-mnist")
# Steps and batch, the paper's where it has them.
_PAPER = {"digits": (1000, 64), "adult": (1000, 256), "mnist": (10000, 128), "fashion-mnist": (10000, 128)}


def add_parser(algorithms: Any) -> None:
    """The command line of `fl han-xue`."""
    parser = algorithms.add_parser(
        "han-xue",
        help="Han and Xue: parties' models of different types label synthetic samples, on which a global one learns",
        description="Han and Xue (2020), end to end. Each party trains a model of its own type and a generator of "
        "synthetic samples (Algorithm 1); all models vote on the label of each sample; samples with a close vote are "
        "dropped; the global model is trained on the rest. As the paper has it, neither samples nor labels are "
        "differentially private: --sound and --vote-sigma make them so. A report at the end says for each part what "
        "is protected.",
        epilog="example: python -m ldpkernels fl han-xue --dataset adult --data DIR --parties 5 --sigma 1.0 --out DIR",
    )
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", choices=DATASETS, default="digits", help="default digits, of scikit-learn")
    data.add_argument(
        "--data",
        metavar="DIR",
        help="the folder that holds adult (adult.data, adult.test), MNIST/raw, FashionMNIST/raw",
    )
    data.add_argument("--parties", type=int, default=5, metavar="N", help="parties that the data is dealt to (5)")
    gan = parser.add_argument_group("generators (Algorithm 1)")
    gan.add_argument("--sigma", type=float, default=1.0, help="noise, in units of C (default 1)")
    gan.add_argument("--C", type=float, default=1.0, help="bound of a loss, or with --sound of a gradient (default 1)")
    gan.add_argument("--steps", type=int, metavar="T", help="steps (default: the paper's; 1000, or 10000 for images)")
    gan.add_argument("--batch", type=int, metavar="B", help="batch size (default: the paper's; 256, or 128 for images)")
    gan.add_argument(
        "--sound", action="store_true", help="clip and noise gradients by example, on Poisson samples: private"
    )
    gan.add_argument(
        "--loss", choices=("squares", "log"),
        help="of a discriminator; log is the paper's equation (4), which clipping stalls (default squares, and log "
        "with --sound)",
    )  # fmt: skip
    gan.add_argument("--rate", type=float, default=1e-3, metavar="G", help="learning rate of Adam (default 0.001)")
    gan.add_argument(
        "--generators", nargs="+", choices=("gan", "dcgan", "vae"), default=[], metavar="KIND",
        help="gan, dcgan, vae: dealt to the parties in turn (default: gan vae; gan dcgan for images)",
    )  # fmt: skip
    gan.add_argument("--samples", type=int, help="samples a party generates (default: as many as its examples)")
    vote = parser.add_argument_group("local models and vote")
    vote.add_argument(
        "--models", nargs="+", default=[], metavar="KIND",
        help="logistic, forest, svm, tree, network, cnn-1 to cnn-5: dealt to the parties in turn (default: the first "
        "five; the last five for images)",
    )  # fmt: skip
    vote.add_argument(
        "--vote-sigma", type=float, metavar="S", help="noise on each count of votes (GNMax; default none)"
    )
    vote.add_argument("--queries", type=int, metavar="Q", help="samples that are labelled, at random (default: all)")
    vote.add_argument("--local-epochs", type=int, default=5, help="epochs of the parties' networks (default 5)")
    run = parser.add_argument_group("run")
    run.add_argument("--epochs", type=int, default=5, help="epochs of the global model and the baseline (default 5)")
    run.add_argument("--no-baseline", action="store_true", help="do not train the baseline on all real data")
    run.add_argument("--delta", type=float, default=1e-5, help="delta of every epsilon (default 1e-5)")
    run.add_argument("--seed", type=int, default=0, help="what data split, weights and noise follow from (default 0)")
    run.add_argument("--threads", type=int, default=1, help="threads of torch (default 1; the results depend on it)")
    out = parser.add_argument_group("output")
    out.add_argument("--out", metavar="DIR", help="keep metrics.csv, samples.png, privacy.txt and a checkpoint there")
    out.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    out.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=federated_options.guarded("fl han-xue", main))


def main(args: argparse.Namespace) -> int:
    """Run, print, draw; the exit status."""
    from ldpkernels.federated import han_xue_privacy

    config, world = prepared(args)
    state = federate(args, config, world)
    mean = sum(state.standalone) / len(state.standalone)
    print(f"\n{'baseline':>12}  {'-' if state.baseline is None else format(state.baseline, '.4f')}")
    print(f"{'standalone':>12}  {mean:.4f}  (" + ", ".join(f"{a:.4f}" for a in state.standalone) + ")")
    print(f"{'global':>12}  {state.accuracy:.4f}\n")
    assert state.keep is not None
    parts = [str(part) for part in han_xue_privacy.report(config, world.examples, len(state.keep))]
    print("What is protected:\n- " + "\n- ".join(parts))
    if args.out:
        from ldpkernels.commands import han_xue_picture

        han_xue_picture.draw(str(Path(args.out) / "samples.png"), world, state)
        (Path(args.out) / "privacy.txt").write_text("\n".join(parts) + "\n")
        print(f"\nkept: {args.out}/metrics.csv, samples.png, privacy.txt, checkpoint.pt")
    return 0


def prepared(args: argparse.Namespace) -> tuple[Any, Any]:
    """What the options say, and the data dealt to the parties."""
    import torch

    from ldpkernels.federated import adult, data, han_xue
    from ldpkernels.federated.dp_gan import Recipe

    torch.set_num_threads(args.threads)
    steps, batch = (
        ours if ours is not None else paper
        for ours, paper in zip((args.steps, args.batch), _PAPER[args.dataset], strict=True)
    )
    config = han_xue.Config(
        parties=args.parties,
        recipe=Recipe(steps, batch, args.C, args.sigma, args.sound, args.loss, args.rate),
        generators=tuple(args.generators),
        models=tuple(args.models),
        vote_sigma=args.vote_sigma,
        queries=args.queries,
        samples=args.samples,
        local_epochs=args.local_epochs,
        epochs=args.epochs,
        baseline=not args.no_baseline,
        delta=args.delta,
        seed=args.seed,
    )
    if args.dataset == "adult":
        if args.data is None:
            raise ValueError("dataset 'adult' is read from disk: give the folder that holds adult/ (--data DIR)")
        return config, han_xue.World(adult.load(args.data), config)
    return config, han_xue.World(data.load(args.dataset, args.data), config)


def federate(args: argparse.Namespace, config: Any, world: Any) -> Any:
    """The run: its last state."""
    from ldpkernels.federated import han_xue, runs

    print(
        f"{config.parties} parties with {world.examples:,} examples each; generators: {', '.join(world.kinds)}; "
        f"models: {', '.join(world.model_kinds)}.",
        flush=True,
    )
    started = time.perf_counter()
    state, rows = runs.run(
        lambda state: han_xue.round_(state, world),
        han_xue.State(),
        han_xue.rounds(config),
        folder=args.out,
        resume=args.resume,
        described={"algorithm": "han-xue", "config": config, "dataset": args.dataset, "threads": args.threads},
        label="han-xue",
        progress=not args.quiet,
    )
    print(f"{time.perf_counter() - started:.0f} seconds.\n")
    told = [row for row in rows if row["accuracy"] is not None or str(row["part"]).startswith("vote")]
    print(runs.table(told, {"part": "s", "accuracy": ".4f"}))
    return state
