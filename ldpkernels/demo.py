# SPDX-License-Identifier: Apache-2.0
"""`python -m ldpkernels demo`: federated learning on scikit-learn's digits, every upload one bit a weight.

The clients train a small network from the server's weights, report it under the two-point mechanism, and the server
averages the reports: LDP-FL with adaptive ranges. The same clients without noise are the curve to compare with.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import ldpkernels


@dataclass(frozen=True)
class Curve:
    """Accuracy after each round."""

    name: str
    accuracy: list[float]


def add_parser(commands: Any) -> None:
    """The command line of `demo`."""
    parser = commands.add_parser(
        "demo",
        help="federated learning on scikit-learn's digits under local differential privacy",
        description="Trains one small network over many clients twice: with every weight reported under eps-local "
        "differential privacy as one bit, and without noise. Ends with a table and, with --out, a picture.",
        epilog="example: python -m ldpkernels demo --eps 2 --clients 200 --out demo.png",
    )
    parser.add_argument("--clients", type=int, default=100, help="clients, all in every round (default 100)")
    parser.add_argument(
        "--eps", type=float, default=4.0, help="privacy parameter of each weight in a round (default 4)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="communication rounds (default 15)")
    parser.add_argument("--seed", type=int, default=0, help="seed of data split, weights and noise (default 0)")
    parser.add_argument("--out", metavar="FILE", help="draw the picture (.png, .svg, .pdf)")
    parser.set_defaults(run=main)


def main(args: argparse.Namespace) -> int:
    """Train, print, draw; the exit status."""
    try:
        import sklearn  # noqa: F401
        import torch
        import tqdm  # noqa: F401
    except ImportError as missing:
        print(f"the demo needs {missing.name}: pip install 'ldpkernels[demo]'")
        return 2
    torch.set_num_threads(1)  # so small a network gains nothing from two, and loses much where cores are shared
    started = time.perf_counter()
    data = _digits(args.clients, args.seed)
    weights = sum(p.numel() for p in _network(args.seed).parameters())
    bits = (weights + 7) // 8
    print(f"{args.clients} clients, {weights} weights: an upload is {bits} bytes of bits instead of {4 * weights}.")
    private, sent = _federate(data, args, eps=args.eps)
    plain, _ = _federate(data, args, eps=None)
    print(f"\n{'round':>5} {'eps=' + format(args.eps, 'g'):>9} {'no noise':>9}")
    for i, (a, b) in enumerate(zip(private.accuracy, plain.accuracy, strict=True), 1):
        print(f"{i:5d} {a:9.1%} {b:9.1%}")
    print(f"\nOne upload is {sent} bytes with its header. {time.perf_counter() - started:.0f} seconds.")
    print(
        f"eps={args.eps:g} is the privacy of each weight on its own. All {weights} weights of one upload together are "
        f"{weights} x {args.eps:g} = {weights * args.eps:g} by basic composition: see docs/privacy.md."
    )
    if args.out:
        _draw(private, plain, args)
        print(f"picture: {args.out}")
    return 0


def _digits(clients: int, seed: int) -> Any:
    """A tenth for the test, the rest dealt to the clients."""
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    test = len(y) // 10
    if clients < 1 or clients > len(y) - test:
        raise SystemExit(f"--clients {clients} must be from 1 to {len(y) - test}, the number of training images")
    shards = [(x[test + i :: clients], y[test + i :: clients]) for i in range(clients)]
    return shards, (x[:test], y[:test])


def _network(seed: int) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def _federate(data: Any, args: argparse.Namespace, eps: float | None) -> tuple[Curve, int]:
    """Rounds of: train locally, report, average, new ranges."""
    import torch
    from tqdm import tqdm

    shards, (test_x, test_y) = data
    server = _network(args.seed)
    key = ldpkernels.key(args.seed)
    C, R = 0.0, {"0": 0.25, "2": 0.35}
    accuracy, sent = [], 0
    name = f"eps={eps:g}" if eps else "no noise"
    for round_ in tqdm(range(args.rounds), desc=name, unit="round"):
        total, exact = ldpkernels.Aggregate(), None
        for i, (x, y) in enumerate(shards):
            client = _train(server, x, y)
            if eps:
                noise = key.fold_in(round_ * len(shards) + i)
                upload = ldpkernels.report(client, C, R, eps, generator=noise)
                total.add(upload)
                sent = sent or len(upload.to_bytes())
            else:
                state = [p.detach().clone() for p in client.parameters()]
                exact = state if exact is None else [a + b for a, b in zip(exact, state, strict=True)]
        if exact is None:
            server.load_state_dict(total.mean())
        else:
            with torch.no_grad():
                for p, s in zip(server.parameters(), exact, strict=True):
                    p.copy_(s / len(shards))
        with torch.no_grad():
            accuracy.append(float((server(test_x).argmax(1) == test_y).float().mean()))
    return Curve(name, accuracy), sent


def _train(server: Any, x: Any, y: Any) -> Any:
    """Some epochs of gradient descent from the server's weights."""
    import copy

    import torch

    client = copy.deepcopy(server)
    optimizer = torch.optim.SGD(client.parameters(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(client(x), y).backward()
        optimizer.step()
    return client


def _draw(private: Curve, plain: Curve, args: argparse.Namespace) -> None:
    from ldpkernels._plot import new_figure, save

    figure, axis = new_figure(1, 1, width=6.4, height=4)
    rounds = range(1, args.rounds + 1)
    for curve, style in ((plain, {"color": "0.55", "ls": "--"}), (private, {"color": "C0", "marker": "o", "ms": 4})):
        axis.plot(rounds, [100 * a for a in curve.accuracy], label=curve.name, **style)
    axis.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 102))
    axis.set_title(f"Digits, {args.clients} clients, one bit a weight")
    axis.legend(frameon=False, loc="lower right")
    save(figure, args.out)
