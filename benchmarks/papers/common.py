# SPDX-License-Identifier: Apache-2.0
"""What the reruns of the papers' tables share: cells that are kept as they finish, and the files that are committed."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.results import facts_table
from benchmarks.results import table as markdown_table

HERE = Path(__file__).parent
__all__ = [
    "Cells",
    "Job",
    "facts_table",
    "markdown_table",
    "not_run",
    "parser_of",
    "percent",
    "spread",
    "write_markdown",
]

Cell = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A cell before it is run: its name, minutes of one quiet core, and what computes it.

    `compute` gets a folder for checkpoints: a cell that was killed goes on from its last round.
    """

    name: str
    minutes: float
    compute: Callable[[Path], Cell]


class Cells:
    """Finished runs by name, in a JSON file: a table that was interrupted goes on where it stopped.

    A name says all that decides the result, the seed too. A cell says what was run, when and where; give another file
    (or delete one) to run everything anew. Several processes may fill one file: each adds its cell to what it finds.
    """

    def __init__(self, path: Path, only: str | None = None, dry: bool = False) -> None:
        self.path, self._only, self._dry = path, re.compile(only) if only else None, dry
        self._cells = self._read()

    def _read(self) -> dict[str, Cell]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def missing(self, plan: Iterable[Job]) -> list[Job]:
        """The jobs that have no cell and that --only does not leave out."""
        return [j for j in plan if j.name not in self._cells and not (self._only and not self._only.search(j.name))]

    def fill(self, plan: Iterable[Job], write: Callable[[], None]) -> None:
        """Compute the cells that are missing; write the page after each of them."""
        for job in [] if self._dry else self.missing(plan):
            self.compute(job)
            write()
        if self._cells:
            write()

    def compute(self, job: Job) -> None:
        """Run one job and keep its cell; what another process has kept meanwhile is not run again."""
        self._cells = self._read()
        if job.name in self._cells:
            return
        print(f"--- {job.name} (about {job.minutes:.1f} minutes of a quiet core)", flush=True)
        unfinished = self.path.parent / ".unfinished" / hashlib.sha256(job.name.encode()).hexdigest()[:16]
        started = time.perf_counter()
        cell = job.compute(unfinished)
        facts = machine.describe()
        cell |= {"seconds": round(time.perf_counter() - started, 1), "date": facts["date"], "CPU": facts["CPU"]}
        cell["torch"] = facts["torch"]
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._cells = {**self._read(), job.name: cell}
            scratch = self.path.with_suffix(".new")
            scratch.write_text(json.dumps(self._cells, indent=1) + "\n")
            os.replace(scratch, self.path)
        shutil.rmtree(unfinished, ignore_errors=True)

    def all(self) -> dict[str, Cell]:
        return dict(self._cells)

    def facts(self) -> dict[str, str]:
        """Where and when the cells were run, of all of them."""
        cells = list(self._cells.values())
        facts = {name: ", ".join(sorted({c[name] for c in cells})) for name in ("CPU", "torch")}
        dates = sorted(c["date"] for c in cells)
        minutes = sum(c["seconds"] for c in cells) / 60
        return {"date": f"{dates[0]} to {dates[-1]}", **facts, "in all": f"{len(cells)} runs, {minutes:.0f} minutes"}


def parser_of(description: str, results: str) -> argparse.ArgumentParser:
    """The options of every table."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--data", metavar="DIR", help="the folder that torchvision was given as root")
    parser.add_argument("--out", type=Path, default=HERE / "results", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--name", default=results, help="of the files written (default: %(default)s)")
    parser.add_argument("--only", metavar="REGEX", help="run only the cells whose name matches; the kept ones stay")
    parser.add_argument("--dry", action="store_true", help="run nothing: write the tables from what is kept")
    parser.add_argument("--seed", type=int, default=0, help="added to every cell's own (default 0)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes a cell is spread over (default: all cores)")
    return parser


def spread(values: Sequence[float]) -> str:
    """The mean of the seeds as the papers print it, and the deviation of one of them where there are several."""
    if len(values) < 2:
        return percent(values[0]) if values else ""
    return f"{percent(statistics.fmean(values))} ± {100 * statistics.stdev(values):.2f} ({len(values)} seeds)"


def left_open(differences: Sequence[float]) -> float:
    """How far the mean of so many seeds' differences may be off (Student's t, 95%).

    >>> round(left_open([0.13, 0.27, 0.26]), 2)
    0.19
    """
    t = {2: 12.71, 3: 4.31, 4: 3.19, 5: 2.78}.get(len(differences), 2.58)
    return t * statistics.stdev(differences) / math.sqrt(len(differences))


def not_run(waiting: Sequence[tuple[str, float]]) -> str:
    """What is planned and has no cell, by name and minutes, for the page: runs of several seeds on one line."""
    seeds: dict[str, list[tuple[str, float]]] = {}
    for name, minutes in waiting:
        run, _, seed = name.rpartition(" seed=")
        seeds.setdefault(run, []).append((seed, minutes))
    if not seeds:
        return "Nothing: every planned run is here."
    lines = [
        f"- {run}, seed {', '.join(seed for seed, _ in found)}: {sum(minutes for _, minutes in found):.1f} minutes"
        for run, found in seeds.items()
    ]
    total = sum(minutes for _, minutes in waiting)
    heading = f"Planned, and waiting for a machine: {len(waiting)} runs, {total:,.0f} minutes of a core."
    return heading + "\n\n" + "\n".join(lines)


def percent(value: float | None) -> str:
    """A fraction as the papers print it; nothing where there is none."""
    return "" if value is None else f"{100 * value:.2f}%"


def write_markdown(path: Path, title: str, sections: Sequence[str], facts: dict[str, str]) -> None:
    """The page that is committed."""
    path.write_text("\n\n".join([f"# {title}", *sections, "## Where and when", facts_table(facts)]) + "\n")
