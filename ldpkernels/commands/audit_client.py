# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels audit --client`: everything that leaves a client of yours, on two inputs, beside what its ledger says."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import cast

import numpy as np

from ldpkernels.audit import AuditResult, ClientAudit, audit_client
from ldpkernels.commands import options
from ldpkernels.commands.program import Outcome
from ldpkernels.plot import new_figure, save


def add_options(parser: argparse.ArgumentParser) -> None:
    """What --client takes."""
    group = parser.add_argument_group("a whole client")
    group.add_argument(
        "--client",
        metavar="MODULE:NAME",
        help="audit client(data), which returns all that would leave, instead; of a Flower ClientApp that is "
        "ldpkernels.flower.rehearsed(app, strategy, arrays)",
    )
    group.add_argument(
        "--data",
        metavar="MODULE:NAME",
        help="its inputs: a pair that differs in one client's data, or a function that gives the pair",
    )
    group.add_argument("--runs", type=options.integer(100), default=2000, help="runs under each input (default 2000)")


def main(args: argparse.Namespace) -> Outcome:
    """Run the client, print what each part of its answers proves, and draw it where that is asked for."""
    if not args.client:
        raise ValueError("--data is for --client: give both")
    if not args.data:
        raise ValueError("--client needs --data MODULE:NAME, two inputs that differ in one client's data")
    client, data = options.found("--client", args.client), options.found("--data", args.data)
    if not callable(client):
        raise ValueError(f"--client {args.client}: that is a {type(client).__name__}, give a function of a data set")
    if callable(data):
        try:
            data = data()
        except Exception as error:  # whatever the user's own code raises
            raise ValueError(f"--data {args.data}: {type(error).__name__}: {error}") from error
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ValueError(f"--data {args.data}: that is a {type(data).__name__}, give a pair")
    print(f"running {args.client} {args.runs} times under each input", flush=True)
    function = cast("Callable[[object], object]", client)
    audit = audit_client(
        function, *data, eps=args.eps, delta=args.delta, runs=args.runs, seed=args.seed, name=args.client
    )
    print(f"\n{'what left':58} {'draws':>8} {'at least':>9} {'claimed':>8}")
    for result in sorted(audit.results, key=lambda r: (r.ok, -r.measured)):
        print(row(result))
    print(f"{'duration of a run, which is in no epsilon':58} {audit.times.n:8d} {audit.times.measured:9.4f} {'-':>8}")
    for sentence in audit.leaks:
        print(f"\nFAILED: {sentence}")
    for sentence in audit.remarks:
        print(f"\nNOTE: {sentence}")
    print(
        f"\n{args.client}: epsilon is at least {audit.measured:.4g} at delta = {audit.delta:g}; {audit.source}: "
        f"{audit.claimed:.4g}" + ("" if audit.ok else f". {len(audit.leaks)} leaks were seen")
    )
    if args.out:
        draw(audit, args.out)
        print(f"picture: {args.out}")
    return Outcome({**asdict(audit), "measured": audit.measured, "ok": audit.ok}, 0 if audit.ok else 1)


def row(result: AuditResult) -> str:
    """A line of the table."""
    name = result.name if len(result.name) <= 58 else f"{result.name[:55]}..."
    line = f"{name:58} {result.n:8d} {result.measured:9.4f} {result.claimed:8.4f}"
    return line if result.ok else line + "  <-- leaks"


def draw(audit: ClientAudit, path: str) -> None:
    """What each part proves beside what is claimed of it; what so many runs cannot prove is shaded."""
    shown = sorted([*audit.results, audit.times], key=lambda r: r.measured)[-20:]
    figure, (axis,) = new_figure(1, 1, width=8, height=1.6 + 0.3 * len(shown))
    at, right = np.arange(len(shown)), 1.3 * max(audit.reach, *(r.measured for r in shown))
    axis.barh(
        at, [r.measured for r in shown], color=["C0" if r.ok else "C3" for r in shown], label="measured: at least"
    )
    claims = [(i, r.claimed) for i, r in enumerate(shown) if math.isfinite(r.claimed)]
    for inside, marker in ((True, "|"), (False, ">")):
        some = [(i, min(c, right)) for i, c in claims if (c <= right) == inside]
        if some:
            label = "claimed" if inside else "claimed: beyond"
            axis.scatter(
                [c for _, c in some], [i for i, _ in some], s=160 if inside else 40, c="k", marker=marker, label=label
            )
    axis.axvspan(audit.reach, right, color="0.9", label=f"not to be seen in {audit.runs} runs")
    axis.set(yticks=at, yticklabels=[r.name for r in shown], xlim=(0, right), xlabel="epsilon of a run")
    axis.set_title(f"{audit.name}: {audit.source}, {audit.claimed:.4g}")
    figure.legend(frameon=False, loc="outside lower center", ncols=4)
    save(figure, path)
