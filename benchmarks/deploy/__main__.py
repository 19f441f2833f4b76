# SPDX-License-Identifier: Apache-2.0
"""Plan, write the app, run it in Flower's simulation: for every trust and total, beside benchmarks.budget.

Runs are kept as they end, and what is kept is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import ldpkernels
from benchmarks.budget import runs
from benchmarks.deploy import page, task
from benchmarks.deploy.node import DONE
from benchmarks.papers.common import Cell, Cells, Job
from ldpkernels.accounting import Ledger
from ldpkernels.planning import Candidate
from ldpkernels.planning.app import PACKAGE, has_app, write_app

ROOT = Path(__file__).parents[2]
HIDDEN = ("shuffled", "secure-aggregation")  # one of the sum's clients may collude
LIMIT = 3600  # seconds that a run may take
REPORTS = re.compile(r"^round \d+: reports=(\d+) skipped=0 failures=0 silent=0", re.M)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deploy", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder that holds MNIST/raw, as torchvision lays it")
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(page.EPSILONS), help="totals for one client")
    parser.add_argument("--trust", choices=page.TRUSTS, nargs="+", default=list(page.TRUSTS), help="who is trusted")
    parser.add_argument("--seeds", type=int, default=page.SEEDS, help="runs of each (%(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--out", type=Path, default=Path("out/deploy.json"), help="kept runs (%(default)s)")
    parser.add_argument("--page", type=Path, help="Markdown whose marked tables are filled from the kept runs")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cells = Cells(options.out)
    if options.data is not None:
        end = time.monotonic() + 60 * options.minutes
        for job in jobs(str(options.data.absolute()), options.trust, options.epsilon, options.seeds):
            if time.monotonic() > end:
                break
            cells.compute(job)
    if not cells.all():
        sys.exit(f"{options.out} has no runs: give --data DIR")
    print(page.write(options.out, cells.all(), options.page))


def jobs(root: str, trusts: list[str], epsilons: list[float], seeds: int) -> Iterator[Job]:
    """Seed by seed, so that whatever has been run is a whole table."""
    torch.set_num_threads(1)
    for seed in range(seeds):
        for epsilon in epsilons:
            for trust in trusts:
                yield Job(page.name_of("app", trust, epsilon, seed), 2.0, partial(deployed, root, trust, epsilon, seed))
                work = partial(simulated, root, trust, epsilon, seed)
                yield Job(page.name_of("simulation", trust, epsilon, seed), 0.7, work)
        yield Job(page.name_of("simulation", "", 0.0, seed), 0.7, partial(simulated, root, "", 0.0, seed))


def chosen(trust: str, epsilon: float) -> Candidate:
    """The best candidate of the plan that has an app, as `ldpkernels plan --app` takes it."""
    found = ldpkernels.plan(
        epsilon,
        rounds=task.TASK.rounds,
        clients=task.TASK.clients - (trust in HIDDEN),
        weights=task.WEIGHTS,
        trust=trust,  # type: ignore[arg-type]
        radius=task.TASK.radius,
        norm=task.TASK.norm,
    )
    return next(one for one in found if has_app(one))


def simulated(root: str, trust: str, epsilon: float, seed: int, _: Path) -> Cell:
    """The budget simulation's accuracy at the same setting; without noise for no trust."""
    one = chosen(trust, epsilon) if trust else None
    name = one.name if one else "no noise"
    what = runs.Cell(task.TASK.dataset, task.TASK.clients, epsilon, trust, name, seed)
    return {"mechanism": name, "accuracy": runs.run((task.TASK, task.dataset(root)), None, (what, one))}


def deployed(root: str, trust: str, epsilon: float, seed: int, _: Path) -> Cell:
    """What the app reaches, what its ledgers say, and what a round takes."""
    one = chosen(trust, epsilon)
    with tempfile.TemporaryDirectory() as scratch:
        folder, ledgers = Path(scratch, "app"), Path(scratch, "ledgers")
        write_app(one, folder)
        own = "from benchmarks.deploy.task import accuracy, network, part, train\n"
        (folder / PACKAGE / "task.py").write_text(own)
        told = {task.DATA: root, task.SEED: str(seed), "LDP_LEDGERS": str(ledgers), "OMP_NUM_THREADS": "1"}
        told |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_worker_niceness": "0"}  # Ray's processes are as urgent as this one
        path = os.pathsep.join([str(folder), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.deploy.node"], cwd=scratch, text=True, timeout=LIMIT, check=False,
            stdout=subprocess.PIPE, env={**os.environ, **told, "PYTHONPATH": path},
        )  # fmt: skip
        said = [line for line in done.stdout.splitlines() if line.startswith(DONE)]
        if not said:
            raise RuntimeError(f"the app of {trust}, epsilon = {epsilon}, ended with {done.returncode}:\n{done.stdout}")
        found = json.loads(said[0].removeprefix(DONE))
        spent = [history(file, epsilon) for file in sorted(ledgers.iterdir())]
    return {
        **found,
        "mechanism": one.name,
        "accuracy": found["accuracies"][-1],
        "planned": one.epsilon,
        "spent": max(last for last, _ in spent),
        "ledgers": len(spent),
        "charged_rounds": min(rounds for _, rounds in spent),
        "reports": [int(count) for count in REPORTS.findall(done.stdout)],
        "load": round(os.getloadavg()[0], 1),
    }


def history(file: Path, budget: float) -> tuple[float, int]:
    """A ledger's total, and of how many rounds it is."""
    with Ledger(file, epsilon=budget) as ledger:
        return ledger.history[-1], len(ledger.history)


if __name__ == "__main__":
    main()
