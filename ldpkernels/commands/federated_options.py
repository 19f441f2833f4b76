# SPDX-License-Identifier: Apache-2.0
"""What the commands of `python -m ldpkernels fl` share. Importing this imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_run(parser: argparse.ArgumentParser, *, datasets: tuple[str, ...], clients: int, rounds: int) -> None:
    """The options of data, run and output."""
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", choices=datasets, default=datasets[0], help=f"default {datasets[0]}")
    data.add_argument(
        "--data",
        metavar="DIR",
        help="the folder that torchvision was given as root: it holds MNIST/raw, FashionMNIST/raw, "
        "cifar-10-batches-py (the digits come with scikit-learn)",
    )
    data.add_argument("--clients", type=int, default=clients, metavar="N", help=f"default {clients}")
    data.add_argument(
        "--skew",
        type=float,
        metavar="A",
        help="deal classes unevenly, by a Dirichlet distribution of concentration A; default: alike for all",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--rounds", type=int, default=rounds, metavar="T", help=f"default {rounds}")
    run.add_argument("--seed", type=int, default=0, help="what data split, weights and noise follow from (default 0)")
    run.add_argument("--device", default="cpu", help="where to train, such as cuda (default cpu)")
    run.add_argument(
        "--threads", type=int, default=1, help="threads of torch on the CPU (default 1; the results depend on it)"
    )
    out = parser.add_argument_group("output")
    out.add_argument("--out", metavar="DIR", help="keep metrics.csv, accuracy.png and a checkpoint there")
    out.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    out.add_argument("--quiet", action="store_true", help="no progress bars")


def add_training(parser: argparse.ArgumentParser, *, epochs: int, batch: int, rate: float) -> None:
    """The options of a client's training."""
    local = parser.add_argument_group("local training")
    local.add_argument("--epochs", type=int, default=epochs, metavar="E", help=f"local epochs (default {epochs})")
    local.add_argument("--batch", type=int, default=batch, metavar="B", help=f"batch size (default {batch})")
    local.add_argument("--rate", type=float, default=rate, metavar="G", help=f"learning rate (default {rate})")
    local.add_argument(
        "--together",
        choices=("yes", "no"),
        help="train all clients of a round at once (torch.func.vmap); default: whatever is faster",
    )


def add_ledger(parser: argparse.ArgumentParser) -> None:
    """The options of a budget that is kept in a file."""
    ledger = parser.add_argument_group("privacy budget")
    ledger.add_argument("--ledger", metavar="FILE", help="account for a client of every round in this file")
    ledger.add_argument("--budget", type=float, metavar="EPS", help="the total that no round may pass (with --ledger)")
    ledger.add_argument("--delta", type=float, default=1e-5, help="delta of the totals (default 1e-5)")


def guarded(command: str, run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command, ending with a message where a package is missing or what was asked for cannot be done."""

    def main(args: argparse.Namespace) -> int:
        try:
            import torch  # noqa: F401
            import tqdm  # noqa: F401
        except ImportError as missing:
            raise SystemExit(f"{command} needs {missing.name}: pip install 'ldpkernels[demo]'") from None
        from ldpkernels.accounting import BudgetExceeded, LedgerError
        from ldpkernels.federated.runs import CheckpointError

        try:
            return run(args)
        except (ValueError, OSError, ImportError, CheckpointError, BudgetExceeded, LedgerError) as error:
            raise SystemExit(f"{command}: {error}") from None

    return main


def local_of(args: argparse.Namespace) -> Any:
    """The client's training that the options describe."""
    from ldpkernels.federated.training import Local

    together = None if args.together is None else args.together == "yes"
    return Local(args.epochs, args.batch, args.rate, together)


def prepared(args: argparse.Namespace, network: str) -> tuple[Any, Any, list[Any]]:
    """The dataset, the network and the clients, on the device."""
    import dataclasses

    import torch

    import ldpkernels
    from ldpkernels.federated import data, networks, training

    torch.set_num_threads(args.threads)
    dataset = data.load(args.dataset, args.data)
    moved = {name: getattr(dataset, name).to(args.device) for name in ("train_x", "train_y", "test_x", "test_y")}
    dataset = dataclasses.replace(dataset, **moved)
    parts = data.deal(dataset.train_y.cpu(), args.clients, args.seed, skew=args.skew)
    clients = training.clients_of(dataset.train_x, dataset.train_y, parts, ldpkernels.key(args.seed))
    return dataset, networks.network(network, args.seed).to(args.device), clients


def opened_ledger(args: argparse.Namespace) -> Any:
    """The ledger of --ledger, or None."""
    if args.ledger is None:
        if args.budget is not None:
            raise ValueError("--budget needs --ledger FILE: a budget that is not kept in a file binds nobody")
        return None
    if args.budget is None:
        raise ValueError("--ledger needs --budget EPS: the total that no round may pass")
    from ldpkernels.accounting import Ledger

    return Ledger(args.ledger, epsilon=args.budget, delta=args.delta)


def draw_accuracy(path: Path, curves: dict[str, list[float]], title: str) -> None:
    """Accuracy over rounds, one line for each name; what has no noise is grey."""
    from ldpkernels.plot import new_figure, save

    figure, axis = new_figure(1, 1, width=6.4, height=4)
    for name, values in curves.items():
        plain = name == "no noise"
        style: Any = {"ls": "--", "color": "0.55", "zorder": 1} if plain else {"marker": "o", "ms": 4}
        axis.plot(range(1, len(values) + 1), [100 * v for v in values], label=name, **style)
    axis.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 102), title=title)
    axis.legend(frameon=False, loc="lower right")
    save(figure, str(path))
