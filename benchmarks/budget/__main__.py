# SPDX-License-Identifier: Apache-2.0
"""Test accuracy over a client's total epsilon, for every mechanism and trust: a table and a picture.

Every run has the same clients, updates and rounds, and differs in how the mean of the updates reaches the server. What
was measured is appended to a file as it comes, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks import machine
from benchmarks.budget import page, runs
from benchmarks.budget.means import SIMULATORS
from benchmarks.budget.runs import Cell
from benchmarks.budget.task import TASKS, Federation, Task
from ldpkernels.federated import data
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.workers import Workers, available
from ldpkernels.planning import TRUSTS, Candidate

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budget", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", choices=TASKS, default="digits", help="digits needs no file (default)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder that holds MNIST/raw, as torchvision lays it")
    parser.add_argument("--clients", type=int, nargs="+", default=[1000], help="in a round; some of them are trained")
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS), help="totals for one client")
    parser.add_argument(
        "--trust", choices=TRUSTS, nargs="+", default=list(TRUSTS), help="who is trusted (each in turn)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--workers", type=int, default=available(), help="processes (one for each core)")
    parser.add_argument("--shrink", action="store_true", help="the server shrinks every noisy mean (James and Stein)")
    parser.add_argument("--redraw", action="store_true", help="run nothing: table and picture of what was stored")
    parser.add_argument("--out", type=Path, default=Path("out/budget"), help="folder of results (out/budget)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    task = replace(TASKS[options.dataset], shrink=options.shrink)
    for clients in options.clients:
        if clients < 1 or clients % task.trained:
            sys.exit(f"--clients {clients} must be a multiple of the {task.trained} that are trained in a round")
    try:
        dataset = data.load(task.dataset, options.data)
    except (ValueError, OSError) as error:
        sys.exit(f"--dataset {task.dataset}: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    store = Store(options.out / f"{task.dataset}.jsonl", task)
    if not options.redraw:
        measure(options, task, dataset, store)
    if not any(cell.mechanism == "no noise" for cell in store.found):
        sys.exit(f"{store.path} has no results: leave --redraw out")
    weights = sum(w.numel() for w in Federation(task, dataset, 0).start.values())
    facts = {**machine.describe(), "task": f"{task}", "weights": f"{weights:,}"}
    print(page.write(options.out, task, weights, facts, store.found))


def measure(options: argparse.Namespace, task: Task, dataset: Dataset, store: Store) -> None:
    """Plan, then run what was not run before."""
    started = time.monotonic()
    with Workers(options.workers, (task, dataset)) as workers:
        wanted = [
            (clients, epsilon, trust)
            for clients in options.clients
            for epsilon in options.epsilon
            for trust in options.trust
        ]
        missing = [one for one in wanted if one not in store.plans]
        for one, found in zip(missing, workers.map(runs.planned, None, missing), strict=True):
            store.keep_plan(one, found)
            print(f"planned: {one[0]:,} clients, epsilon = {one[1]:g}, {one[2]}", file=sys.stderr, flush=True)
        cells = [cell for cell in cells_of(options, task, store) if cell not in store.found]
        items = [(cell, store.plans.get(cell[1:4], {}).get(cell.mechanism)) for cell in cells]
        for number, (cell, accuracy) in enumerate(zip(cells, workers.map(runs.run, None, items), strict=True), 1):
            store.keep(cell, accuracy)
            if number % 50 == 0 or number == len(cells):
                seconds = time.monotonic() - started
                print(f"{number}/{len(cells)} runs, {seconds:.0f} s", file=sys.stderr, flush=True)


def cells_of(options: argparse.Namespace, task: Task, store: Store) -> Iterator[Cell]:
    """Seed by seed, so that whatever has been run is a whole picture."""
    for seed in range(options.seeds):
        yield Cell(task.dataset, 0, float("inf"), "", "no noise", seed)
        for clients in options.clients:
            for epsilon in options.epsilon:
                for trust in options.trust:
                    for name in store.plans[clients, epsilon, trust]:
                        if name in SIMULATORS and not run_elsewhere(trust, name):
                            yield Cell(task.dataset, clients, epsilon, trust, name, seed)


def run_elsewhere(trust: str, name: str) -> bool:
    """Counts that a protocol adds are those that a shuffler leaves; of shuffled Gaussian noise nothing is proved."""
    return (trust, name) in (("secure-aggregation", "two-point"), ("shuffled", "gaussian"))


class Store:
    """What was planned and measured, a line each; lines of another task are refused."""

    def __init__(self, path: Path, task: Task) -> None:
        self.path, self.task = path, json.loads(json.dumps(asdict(task)))
        self.plans: dict[tuple[int, float, str], dict[str, Candidate]] = {}
        self.found: dict[Cell, float] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # torn by a kill: it is run again
            if row["task"] != self.task:
                sys.exit(f"{path} has results of another task ({row['task']}): move it away, or give another --out")
            self.found[Cell(*row["cell"])] = row["accuracy"]

    def keep_plan(self, one: tuple[int, float, str], found: dict[str, Candidate]) -> None:
        self.plans[one] = found

    def keep(self, cell: Cell, accuracy: float) -> None:
        self.found[cell] = accuracy
        with self.path.open("a") as file:
            file.write(json.dumps({"cell": cell, "accuracy": accuracy, "task": self.task}) + "\n")


if __name__ == "__main__":
    main()
