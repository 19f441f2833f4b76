# SPDX-License-Identifier: Apache-2.0
"""The command line of `ldpkernels fl han-xue`."""

from __future__ import annotations

import argparse

from ldpkernels.commands import federated_options, options
from ldpkernels.commands.options import Commands, count
from ldpkernels.commands.program import Outcome
from ldpkernels.common.arguments import is_name

# Steps and batch, the paper's where it has them, and epochs of networks: a party of the digits has 323 examples, and
# takes as many steps in 40 epochs as one with ten times the examples takes in four.
SCHEDULE = {
    "digits": (1000, 64, 40), "adult": (1000, 256, 5), "mnist": (10000, 128, 5), "fashion-mnist": (10000, 128, 5)
}  # fmt: skip


def add_parser(algorithms: Commands) -> None:
    """Add the command line of `fl han-xue`."""
    parser = algorithms.add_parser(
        "han-xue",
        help="Han and Xue: parties' models of different types label synthetic samples, on which a global one learns",
        description="Han and Xue (2020), end to end. Each party trains a model of its own type and a generator of "
        "synthetic samples (Algorithm 1); all models vote on the label of each sample; samples with a close vote are "
        "dropped; the global model is trained on the rest. As the paper has it, neither samples nor labels are "
        "differentially private: --sound and --vote-sigma make them so. A report at the end says for each part what "
        "is protected.",
        epilog="example: ldpkernels fl han-xue --dataset adult --data DIR --parties 5 --sigma 1.0 --out DIR",
    )
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", choices=tuple(SCHEDULE), default="digits", help="default digits, of scikit-learn")
    data.add_argument(
        "--data",
        metavar="DIR",
        help="the folder that holds adult (adult.data, adult.test), MNIST/raw, FashionMNIST/raw. Or your own: "
        "package.module:function, which gives four tensors or two torch Datasets",
    )
    data.add_argument(
        "--span", type=options.number(), nargs=2, metavar=("LO", "HI"),
        help="the range of the numbers in your own examples, as everybody knows it (0 1 of some images): never take it "
        "from the examples. Numbers outside are clipped to it. Images with --sound need it",
    )  # fmt: skip
    data.add_argument("--parties", type=count, default=5, metavar="N", help="parties that the data is dealt to (5)")
    federated_options.add_split(data)
    gan = parser.add_argument_group("generators (Algorithm 1)")
    gan.add_argument("--sigma", type=float, default=1.0, help="noise, in units of C (default 1)")
    gan.add_argument("--C", type=float, default=1.0, help="bound of a loss, or with --sound of a gradient (default 1)")
    gan.add_argument("--steps", type=count, metavar="T", help="steps (default: the paper's; 1000, or 10000 for images)")
    gan.add_argument("--batch", type=count, metavar="B", help="batch size (default: the paper's 256, images 128)")
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
    gan.add_argument(
        "--samples", type=count, help="samples a party generates (default: as many as the smallest party has examples)"
    )
    vote = parser.add_argument_group("local models and vote")
    vote.add_argument(
        "--models", nargs="+", default=[], metavar="KIND",
        help="logistic, forest, svm, tree, network, cnn-1 to cnn-5, cnn-1-wide to cnn-5-wide: dealt to the parties in "
        "turn (default: the first five; cnn-1 to cnn-5 for images). Or your own: package.module:function, which "
        "builds one",
    )  # fmt: skip
    vote.add_argument(
        "--global-model", default="", metavar="KIND",
        help="of the same kinds: the global model and the baseline (default: network; cnn-3 for images)",
    )  # fmt: skip
    vote.add_argument(
        "--vote-sigma", type=float, metavar="S", help="noise on each count of votes (GNMax; default none)"
    )
    vote.add_argument("--queries", type=count, metavar="Q", help="samples that are labelled, at random (default: all)")
    vote.add_argument("--local-epochs", type=count, help="epochs of the parties' networks (default 5; digits: 40)")
    run = parser.add_argument_group("run")
    run.add_argument("--epochs", type=count, help="epochs of the global model and the baseline (default 5; digits: 40)")
    run.add_argument("--no-baseline", action="store_true", help="do not train the baseline on all real data")
    run.add_argument(
        "--device", default="cpu",
        help="where generators and networks are trained, such as cuda (default cpu)",
    )  # fmt: skip
    federated_options.add_delta(run)
    federated_options.add_reproducible(run)
    federated_options.add_output(parser, "metrics.csv, samples.png, privacy.txt and a checkpoint")
    parser.set_defaults(main=main, command="fl han-xue")


def main(args: argparse.Namespace) -> Outcome:
    """Check what can be checked without torch, then run."""
    federated_options.check(args)
    if args.dataset == "adult" and args.data is None:
        raise ValueError("dataset 'adult' is read from disk: give the folder that holds adult/ (--data DIR)")
    own = is_name(args.data)
    if args.span is not None and not own:
        raise ValueError(f"--span is for data of your own (--data MODULE:FUNCTION), not dataset {args.dataset!r}")
    if args.span is not None and not args.span[0] < args.span[1]:
        raise ValueError(f"--span {args.span[0]:g} {args.span[1]:g} must be two numbers, the lower first")
    steps, batch, epochs = SCHEDULE["digits" if own else args.dataset]
    args.dataset = args.data if own else args.dataset
    defaults = {"steps": steps, "batch": batch, "epochs": epochs, "local_epochs": epochs}
    for name, default in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    from ldpkernels.commands import han_xue_run

    return han_xue_run.federate(args)
