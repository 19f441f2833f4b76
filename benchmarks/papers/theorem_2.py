# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's Theorem 2, with its constants: how far a mean of reports is off, as bounded and as measured."""

from __future__ import annotations

import math

from benchmarks.papers.common import table as markdown_table


def mean_error_bound(eps: float, radius: float, clients: int, beta: float) -> float:
    """The distance that the mean of a weight's reports passes with a probability of at most beta.

    The paper states O(r sqrt(-log beta) / (eps sqrt n)) and proves equation (9), Bernstein's inequality, whose
    constants are used here: with A = ((e^eps + 1) / (e^eps - 1))^2 and B = e^eps / (e^eps - 1) it is the positive root
    of n x^2 = log(2 / beta) (2 r^2 A + 4/3 x r B). It is for one weight: for all d of a model take beta / d.

    >>> round(mean_error_bound(eps=1.0, radius=0.075, clients=100, beta=0.05), 4)
    0.0471
    >>> round(mean_error_bound(eps=1.0, radius=0.075, clients=10_000, beta=0.05), 5)
    0.00444
    """
    variance = 1 / math.tanh(eps / 2) ** 2
    step = -1 / math.expm1(-eps)
    log = math.log(2 / beta)
    linear = 4 / 3 * step * log / clients
    return radius * (linear + math.sqrt(linear**2 + 8 * variance * log / clients)) / 2


def table() -> str:
    """The bound of the mean's error beside what is measured, in units of the radius; fixed keys."""
    import torch

    import ldpkernels

    beta, weights, body = 0.05, torch.zeros(21_840), []
    for eps in (0.3, 1.0, 4.0):
        for clients in (20, 100, 500):
            reports = ldpkernels.Aggregate()
            for i in range(clients):
                reports.add(ldpkernels.report({"w": weights}, 0.0, 1.0, eps, generator=ldpkernels.key(i)))
            off = reports.mean()["w"].abs().sort().values
            measured = float(off[int((1 - beta) * len(off))])
            bound, worst = (mean_error_bound(eps, 1.0, clients, b) for b in (beta, beta / len(off)))
            ratio = f"{bound / measured:.2f}"
            found = [f"{v:.3f}" for v in (bound, measured, worst, float(off[-1]))]
            body.append([f"{eps:g}", str(clients), *found[:2], ratio, *found[2:]])
    heads = ["eps", "n", "bound of one weight", "measured", "ratio", "bound of all 21,840", "measured, the worst"]
    return markdown_table(heads, body)
