# SPDX-License-Identifier: Apache-2.0
"""What the papers' pages share: runs that are kept as they finish, and Markdown with marked tables made of them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.results import facts_table, filled, table

RESULTS = Path(__file__).parent / "results"

__all__ = ["RESULTS", "Cell", "Cells", "Job", "Page", "by_run", "left_open", "percent", "spread", "table"]

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

    A name says all that decides the result, the seed too. A cell says what was run, when and where. Several processes
    may fill one file: each adds its cell to what it finds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cells = self._read()

    def _read(self) -> dict[str, Cell]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def all(self) -> dict[str, Cell]:
        """The runs that are kept, by name."""
        return dict(self._cells)

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
        cell |= {"seconds": round(time.perf_counter() - started, 1)} | {k: facts[k] for k in ("date", "CPU", "torch")}
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._cells = {**self._read(), job.name: cell}
            scratch = self.path.with_suffix(".new")
            scratch.write_text(json.dumps(self._cells, indent=1) + "\n")
            os.replace(scratch, self.path)
        shutil.rmtree(unfinished, ignore_errors=True)


@dataclass(frozen=True)
class Page:
    """A page of results/: its cells, the runs that it is planned to have, and what makes its tables and its picture."""

    cells: Cells
    jobs: list[Job]
    tables: Callable[[dict[str, Cell]], dict[str, str]]
    draw: Callable[[dict[str, Cell], Path], None]

    @property
    def name(self) -> str:
        """The stem of the page's files."""
        return self.cells.path.stem

    def missing(self) -> list[Job]:
        """The planned runs that are not kept."""
        kept = self.cells.all()
        return [job for job in self.jobs if job.name not in kept]

    def write(self) -> None:
        """Put the tables into the page, whose words are those of results/, and draw the picture."""
        cells = self.cells.all()
        tables = {**self.tables(cells), "not-run": not_run(self.missing()), "where-and-when": facts_table(facts(cells))}
        path = self.cells.path.with_suffix(".md")
        path.write_text(filled((RESULTS / path.name).read_text(), tables))
        self.draw(cells, path.with_suffix(".png"))


def facts(cells: dict[str, Cell]) -> dict[str, str]:
    """Where and when the cells were run."""
    found = {name: ", ".join(sorted({c[name] for c in cells.values()})) for name in ("CPU", "torch")}
    dates = sorted(c["date"] for c in cells.values())
    minutes = sum(c["seconds"] for c in cells.values()) / 60
    return {"date": f"{dates[0]} to {dates[-1]}", **found, "in all": f"{len(cells)} runs, {minutes:.0f} minutes"}


def not_run(waiting: Sequence[Job]) -> str:
    """What is planned and has no cell, by name and minutes: runs of several seeds on one line."""
    seeds: dict[str, list[tuple[str, float]]] = {}
    for job in waiting:
        run, _, seed = job.name.rpartition(" seed=")
        seeds.setdefault(run, []).append((seed, job.minutes))
    if not seeds:
        return "Of the runs that were planned for this page none is missing."
    lines = [
        f"- {run}, seed {', '.join(seed for seed, _ in found)}: {sum(minutes for _, minutes in found):.1f} minutes"
        for run, found in seeds.items()
    ]
    total = sum(job.minutes for job in waiting)
    heading = f"Planned, and waiting for a machine: {len(waiting)} runs, {total:,.0f} minutes of a core."
    return heading + "\n\n" + "\n".join(lines)


def by_run(cells: dict[str, Cell], runs: Iterable[Any], **usual: Any) -> dict[Any, list[Cell]]:
    """The cells of each run with seed 0 (and what is `usual`), in the order of their seeds."""
    kept: dict[Any, list[Cell]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.name in cells:
            kept.setdefault(replace(run, seed=0, **usual), []).append(cells[run.name])
    return kept


def percent(value: float | None) -> str:
    """A fraction as the papers print it; nothing where there is none."""
    return "" if value is None else f"{100 * value:.2f}%"


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
