# SPDX-License-Identifier: Apache-2.0
"""The options that the commands of `ldpkernels fl` share. Importing this imports no torch."""

from __future__ import annotations

import argparse

from ldpkernels.commands import options
from ldpkernels.common.arguments import is_name
from ldpkernels.common.optional import require


def add_run(parser: argparse.ArgumentParser, *, datasets: tuple[str, ...], clients: int, rounds: int) -> None:
    """Add the options of data, run and output."""
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", choices=datasets, default=datasets[0], help=f"default {datasets[0]}")
    data.add_argument(
        "--data",
        metavar="DIR",
        help="the folder that torchvision was given as root: it holds MNIST/raw, FashionMNIST/raw, "
        "cifar-10-batches-py (the digits come with scikit-learn). Or your own: package.module:function, which gives "
        "four tensors or two torch Datasets",
    )
    data.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="your own network: what this function without arguments builds"
    )
    data.add_argument("--clients", type=options.integer(1), default=clients, metavar="N", help=f"default {clients}")
    add_split(data)
    run = parser.add_argument_group("run")
    run.add_argument("--rounds", type=options.integer(1), default=rounds, metavar="T", help=f"default {rounds}")
    run.add_argument("--device", default="cpu", help="where to train, such as cuda (default cpu)")
    add_reproducible(run)
    add_output(parser, "metrics.csv, accuracy.png and a checkpoint")


def add_split(data: argparse._ActionsContainer) -> None:
    """Add the options of how training examples are dealt."""
    data.add_argument(
        "--skew",
        type=options.number(above=0),
        metavar="A",
        help="deal classes unevenly, by a Dirichlet distribution of concentration A; default: alike for all",
    )
    data.add_argument(
        "--uneven",
        type=options.number(above=0),
        metavar="A",
        help="deal unequal numbers of examples, by a Dirichlet distribution of concentration A over clients or parties",
    )


def add_mean(parser: argparse._ActionsContainer) -> None:
    """Add the options of who counts how much in a round's mean."""
    parser.add_argument(
        "--weigh",
        choices=("alike", "examples"),
        default="alike",
        help="clients in the mean: alike (default, the paper's), or by the numbers of their examples, public then",
    )
    parser.add_argument(
        "--dropout",
        type=options.number(least=0, below=1),
        default=0.0,
        metavar="P",
        help="part of the selected clients that fail before their upload (default 0)",
    )


def add_reproducible(run: argparse._ArgumentGroup) -> None:
    """Add the options that a run's figures depend on beside its settings."""
    run.add_argument(
        "--seed",
        type=options.seed,
        default=0,
        help="what data split, weights and noise follow from: a run is a simulation, its noise no secret (default 0)",
    )
    run.add_argument(
        "--threads",
        type=options.integer(1, 1024),
        default=1,
        help="threads of torch on the CPU (default 1; the results depend on it)",
    )
    run.add_argument(
        "--workers",
        type=options.integer(1),
        metavar="N",
        help="processes of so many threads that clients or parties are spread over (default: as many as there are "
        "cores for; the results do not depend on it)",
    )


def add_output(parser: argparse.ArgumentParser, kept: str) -> None:
    """Add the options of what a run leaves behind."""
    out = parser.add_argument_group("output")
    out.add_argument("--out", type=options.run_folder, metavar="DIR", help=f"keep {kept} there")
    out.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    out.add_argument("--quiet", action="store_true", help="no progress bars")
    options.add_json(out)


def add_training(
    parser: argparse.ArgumentParser, *, defaults: tuple[int, int, float], otherwise: str | None = None
) -> None:
    """Add the options of a client's training; `otherwise` tells of datasets that have other defaults."""
    epochs, batch, rate = defaults
    local = parser.add_argument_group("local training", otherwise)
    local.add_argument("--epochs", type=options.integer(1), metavar="E", help=f"local epochs (default {epochs})")
    local.add_argument("--batch", type=options.integer(1), metavar="B", help=f"batch size (default {batch})")
    rates = options.number(above=0, below=1e30)  # torch takes what fp32 holds
    local.add_argument("--rate", type=rates, metavar="G", help=f"learning rate (default {rate:g})")
    local.add_argument(
        "--together",
        choices=("yes", "no"),
        help="all clients of a round at once (torch.func.vmap), or one after another by torch's own steps; default: "
        "whatever is faster, with chains of convolutions in C++",
    )
    local.add_argument(
        "--buffers",
        choices=("keep",),
        help="keep: the network's floating-point buffers are constants, which all have (default: they are refused)",
    )
    parser.set_defaults(training=defaults)


def add_ledger(parser: argparse.ArgumentParser) -> None:
    """Add the options of a budget that is kept in a file."""
    ledger = parser.add_argument_group("privacy budget")
    ledger.add_argument(
        "--ledger", type=options.writable, metavar="FILE", help="account for a client of every round in this file"
    )
    ledger.add_argument(
        "--budget", type=options.number(above=0), metavar="EPS", help="the total that no round may pass (with --ledger)"
    )
    add_delta(ledger)


def add_delta(group: argparse._ArgumentGroup) -> None:
    """Add the option of the delta of what is printed."""
    delta = options.number(above=0, below=1)
    group.add_argument("--delta", type=delta, default=1e-5, help="delta of every total (default 1e-5)")


def check(args: argparse.Namespace) -> None:
    """Refuse what argparse cannot see in one option alone, before torch is imported."""
    for package in ("torch", "tqdm"):
        require(package, "federated", "the command")
    if args.resume and args.out is None:
        raise ValueError("--resume goes on from the checkpoint in --out: give --out DIR")


def take_own_data(args: argparse.Namespace) -> bool:
    """Whether --data names a function of the user's; its name becomes that of the dataset then."""
    named = is_name(args.data)
    if named:
        args.dataset = args.data
        if args.model is None and args.network is None:
            raise ValueError(f"--data {args.data} needs a network for it: give --model MODULE:FUNCTION, or --network")
    if args.model is not None and args.network is not None:
        raise ValueError("--model and --network both name the network: give one of them")
    return named


def check_ledger(args: argparse.Namespace) -> None:
    """Refuse --ledger without --budget, and --budget without --ledger."""
    if args.ledger is None and args.budget is not None:
        raise ValueError("--budget needs --ledger FILE: a budget that is not kept in a file binds nobody")
    if args.ledger is not None and args.budget is None:
        raise ValueError("--ledger needs --budget EPS: the total that no round may pass")
