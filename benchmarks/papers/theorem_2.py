# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's Theorem 2: the error of a mean, as bounded and as measured."""

from __future__ import annotations

from benchmarks.papers.common import table as markdown_table


def table() -> str:
    """The bound of the mean's error beside what is measured, in units of the radius; fixed keys."""
    import torch

    import ldpkernels
    from benchmarks.papers.mean_error import mean_error_bound

    beta, weights, body = 0.05, torch.zeros(21_840), []
    for eps in (0.3, 1.0, 4.0):
        for clients in (20, 100, 500):
            reports = ldpkernels.Aggregate()
            for i in range(clients):
                reports.add(ldpkernels.report({"w": weights}, 0.0, 1.0, eps, generator=ldpkernels.key(i)))
            off = reports.mean()["w"].abs().sort().values
            measured = float(off[int((1 - beta) * len(off))])
            bound, worst = (mean_error_bound(eps, 1.0, clients, b) for b in (beta, beta / len(off)))
            body.append(
                [
                    f"{eps:g}",
                    str(clients),
                    f"{bound:.3f}",
                    f"{measured:.3f}",
                    f"{bound / measured:.2f}",
                    f"{worst:.3f}",
                    f"{float(off[-1]):.3f}",
                ]
            )
    heads = ["eps", "n", "bound of one weight", "measured", "ratio", "bound of all 21,840", "measured, the worst"]
    return markdown_table(heads, body)
