# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels audit --client`: all that leaves a client of yours, on two inputs, against what its ledger says."""

from __future__ import annotations

import argparse
import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from typing import cast

import numpy as np

from ldpkernels.audit import AuditResult, ClientAudit, audit_client
from ldpkernels.audit.runs import recorded
from ldpkernels.commands import options
from ldpkernels.commands.program import Outcome
from ldpkernels.common.plot import new_figure, save

_AGAIN = 100  # runs under each input in a new process


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
    client, data = _loaded(args.client, args.data)
    print(f"running {args.client} {args.runs} times under each input, and in two new processes", flush=True)
    audit = audit_client(
        client, *data, eps=args.eps, delta=args.delta, runs=args.runs, seed=args.seed, name=args.client
    )
    audit = replace(audit, findings=[*audit.findings, *_seeded(args.client, args.data)])
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


def _loaded(client: str, data: str) -> tuple[Callable[[object], object], tuple[object, object]]:
    """A client and its two inputs, of these names."""
    function, pair = options.found("--client", client), options.found("--data", data)
    if not callable(function):
        raise ValueError(f"--client {client}: that is a {type(function).__name__}, give a function of a data set")
    if callable(pair):
        try:
            pair = pair()
        except Exception as error:  # whatever the user's own code raises
            raise ValueError(f"--data {data}: {type(error).__name__}: {error}") from error
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(f"--data {data}: that is a {type(pair).__name__}, give a pair")
    return cast("Callable[[object], object]", function), (pair[0], pair[1])


def _seeded(client: str, data: str) -> list[str]:
    """Sentences about noise that comes again in every new process, as its seed is set where a module is imported."""
    seen = []
    for _ in range(2):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
            seen.append(alone.submit(_values, client, data).result())
    return [
        f"two new processes gave the same {len(values)} values of {path}, one after the other: its seed comes again in "
        "every process"
        for path, values in seen[0].items()
        if values == seen[1].get(path) and 2 * sum(map(bytes.__eq__, values[::2], values[1::2])) < len(values) // 2
    ]


def _values(client: str, data: str) -> dict[str, list[bytes]]:
    """What each part was in a process's first runs under the first input: of those that hold several numbers."""
    function, inputs = _loaded(client, data)
    runs, _ = recorded(function, inputs, _AGAIN, seed=0)
    paths = [path for path, field in runs[0].answer.fields.items() if field.numbers.size > 1]
    return {path: [one.answer.fields[path].digest for one in runs if path in one.answer.fields] for path in paths}


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
