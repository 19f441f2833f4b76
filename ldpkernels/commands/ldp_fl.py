# SPDX-License-Identifier: Apache-2.0
"""The command line of `ldpkernels fl ldp-fl`."""

from __future__ import annotations

import argparse

from ldpkernels.commands import federated_options, options
from ldpkernels.commands.options import Commands
from ldpkernels.commands.program import Outcome
from ldpkernels.common.optional import require

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")
# Local epochs, batch and learning rate. The rates are the paper's for clients of some hundred examples, whose epoch is
# some ten steps. A client of the digits has 16 examples and two steps an epoch: at .03, ten rounds are 20 small steps
# after which not even the run without noise has left chance.
TRAINING = {"digits": (4, 10, 0.5), "mnist": (1, 10, 0.03), "fashion-mnist": (1, 10, 0.03), "cifar10": (10, 10, 0.015)}


def add_parser(algorithms: Commands) -> None:
    """Add the command line of `fl ldp-fl`."""
    parser = algorithms.add_parser(
        "ldp-fl",
        help="LDP-FL: every weight perturbed by its client, averaged by the cloud",
        description="LDP-FL (Sun, Qian and Chen, IJCAI 2021), Algorithm 1. eps is the privacy of each weight of an "
        "upload on its own; the table's column of honest eps is what a client of every round loses in all.",
        epilog="example: ldpkernels fl ldp-fl --data DIR --dataset mnist --clients 100 --eps 1 --radius .075; the "
        "paper's CIFAR-10, by a small VGG with group normalisation and He's initial weights, is --dataset cifar10 "
        "--clients 500 --rounds 15 --eps 10 --adaptive",
    )
    federated_options.add_run(parser, datasets=DATASETS, clients=100, rounds=10)
    parser.add_argument("--fraction", type=float, default=1.0, help="fraction of clients in a round (default 1)")
    federated_options.add_mean(parser)
    parser.add_argument("--network", help="one of ldpkernels.federated.networks (default: the dataset's)")
    mechanism = parser.add_argument_group("mechanism")
    options.add_epsilon(mechanism, default=4.0, help="privacy parameter of each weight (default 4)")
    mechanism.add_argument(
        "--mechanism", choices=("two-point", "piecewise", "hybrid"), default="two-point", help="default two-point"
    )
    mechanism.add_argument("--no-noise", action="store_true", help="send weights as they are: no privacy, to compare")
    mechanism.add_argument("--center", type=float, metavar="C", help="center of all ranges (default: by layer)")
    mechanism.add_argument("--radius", type=float, metavar="R", help="radius of all ranges (default: by layer)")
    mechanism.add_argument(
        "--upload",
        choices=("weights", "updates"),
        default="weights",
        help="what is perturbed: the weights (default, Algorithm 1) or their change, which needs --radius",
    )
    mechanism.add_argument("--adaptive", action="store_true", help="new ranges from the averaged weights every round")
    mechanism.add_argument(
        "--ranges",
        choices=("minmax", "quantile", "noise-subtracted"),
        help="how adaptive ranges are chosen (default minmax, the paper's)",
    )
    mechanism.add_argument(
        "--growth", type=options.number(least=1), metavar="X", help="the most by which a radius grows in a round"
    )
    otherwise = (
        "The digits, whose clients have few examples, have defaults of their own: --epochs {} --batch {} --rate {:g}; "
        "CIFAR-10 has --epochs {} and the paper's --rate {:g}.".format(*TRAINING["digits"], *TRAINING["cifar10"][::2])
    )
    federated_options.add_training(parser, defaults=TRAINING["mnist"], otherwise=otherwise)
    parser.add_argument(
        "--engine",
        choices=("local", "flower"),
        default="local",
        help="where clients train: in processes of this command (default), or on the nodes of Flower's simulation on "
        "Ray; the results are the same to rounding, with --together no to the bit",
    )
    federated_options.add_ledger(parser)
    parser.set_defaults(main=main, command="fl ldp-fl")


def main(args: argparse.Namespace) -> Outcome:
    """Check what can be checked without torch, then run."""
    federated_options.check(args)
    federated_options.check_ledger(args)
    _check_engine(args)
    if args.upload == "updates" and args.radius is None:
        raise ValueError("--upload updates needs --radius: the initial weights do not tell how far a client will move")
    for name in ("ranges", "growth"):
        if getattr(args, name) is not None and not args.adaptive:
            raise ValueError(f"--{name} {getattr(args, name)} is for adaptive ranges: give --adaptive")
    args.training = TRAINING["mnist" if federated_options.take_own_data(args) else args.dataset]
    from ldpkernels.commands import fl_run

    return fl_run.run_ldp_fl(args)


def _check_engine(args: argparse.Namespace) -> None:
    if args.engine != "flower":
        return
    for package in ("flwr", "ray"):
        require(package, "flower", "--engine flower")
    if args.no_noise:
        raise ValueError("--no-noise sends weights as they are, and Flower's nodes send reports: use --engine local")
    if args.weigh != "alike":
        raise ValueError(f"--weigh {args.weigh}: Flower's nodes send reports that count alike: use --engine local")
    if args.device != "cpu":
        raise ValueError(f"--device {args.device}: Flower's nodes train on the CPU here: use --engine local")
