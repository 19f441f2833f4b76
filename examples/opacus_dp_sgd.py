# SPDX-License-Identifier: Apache-2.0
"""DP-SGD on scikit-learn's digits: Opacus computes the gradients by sample, ldpkernels clips, adds and noises them.

    python examples/opacus_dp_sgd.py --sigma 1.0

`train(..., with_opacus=True)` is the same with Opacus's own optimizer. At sigma = 0 both give the same weights, which
tests/test_dp_sgd.py checks; with noise they have the same law. It needs opacus and scikit-learn.
"""

from __future__ import annotations

import argparse

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits

import ldpkernels


def digits():
    """1797 pictures of 8 x 8 and their labels."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y)


def train(steps, rate, C, sigma, seed=0, with_opacus=False, noise="gaussian"):
    """Poisson-sampled DP-SGD; the trained network."""
    x, y = digits()
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    model = GradSampleModule(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    expected = rate * len(x)
    theirs = DPOptimizer(optimizer, noise_multiplier=sigma, max_grad_norm=C, expected_batch_size=expected)
    sampling = torch.Generator().manual_seed(seed)
    key = ldpkernels.key(seed)
    for step in range(steps):
        batch = torch.rand(len(x), generator=sampling) < rate
        theirs.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        if with_opacus:
            theirs.step()
        else:
            ldpkernels.dp_sgd_step(
                model, optimizer, C, sigma, batch_size=expected, generator=key.fold_in(step), noise=noise
            )
    return network


def main():
    """Train and print the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier (default 1)")
    parser.add_argument("--C", type=float, default=1.0, help="bound of a sample's gradient (default 1)")
    parser.add_argument("--steps", type=int, default=200, help="steps (default 200)")
    parser.add_argument("--rate", type=float, default=0.1, help="sampling rate (default 0.1)")
    args = parser.parse_args()
    x, y = digits()
    network = train(args.steps, args.rate, args.C, args.sigma, noise="discrete")
    accuracy = (network(x).argmax(1) == y).float().mean()
    print(f"accuracy on the training data after {args.steps} steps at sigma = {args.sigma}: {accuracy:.3f}")


if __name__ == "__main__":
    main()
