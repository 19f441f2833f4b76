# SPDX-License-Identifier: Apache-2.0
"""All the papers' tables, as far as so many minutes go: `python benchmarks/papers/all.py --data DIR --minutes 60`.

Cells that cost least are run first, whatever table they belong to; each says what it costs before it starts. What is
there is not run again, a cell that was killed goes on from its last round, and what would not end in time is not begun:
run it again with more minutes. Every page lists what has not been run; so does the last output here.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

if not __package__:  # called by its path: the same by its name
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [inherited])])
    os.environ["PYTHONSAFEPATH"] = "1"  # not what the working folder has by that name (from Python 3.11 on)
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.papers.all", *sys.argv[1:]])

from benchmarks.papers import han_xue, ldp_fed, ldp_fed_runs, ldp_fl, ldp_fl_page
from benchmarks.papers.common import HERE, Cells, Job
from benchmarks.papers.han_xue_page import PAPER


class Table(NamedTuple):
    """A file of cells, its jobs, and what writes its page."""

    cells: Cells
    jobs: list[Job]
    write: Callable[[], None]


def tables(root: str, out: Path, workers: int, only: str | None, dry: bool = False) -> list[Table]:
    """Every table of this folder."""

    def cells(name: str) -> Cells:
        return Cells(out / f"{name}.json", only, dry)

    fl, fed = cells("ldp-fl"), cells("ldp-fed-fashion-mnist")
    found = [
        Table(fl, ldp_fl.jobs(root, workers), lambda: ldp_fl_page.write(fl, out, "ldp-fl")),
        Table(fed, ldp_fed_runs.jobs(root, workers), lambda: ldp_fed.write(fed, out, "ldp-fed-fashion-mnist")),
    ]
    parties = cells("han-xue")
    plan = [job for dataset in PAPER for job in han_xue.jobs(dataset, root, workers, out, "han-xue")]
    found.append(Table(parties, plan, lambda: han_xue.write(parties, out, "han-xue")))
    return found


def cheapest_first(found: list[Table]) -> list[tuple[Job, Table]]:
    """What is missing, by cost."""
    missing = [(job, table) for table in found for job in table.cells.missing(table.jobs)]
    return sorted(missing, key=lambda pair: (pair[0].minutes, pair[0].name))


def main() -> None:
    from ldpkernels.federated.workers import available

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", required=True, help="the folder that torchvision was given as root")
    parser.add_argument("--minutes", type=float, required=True, help="begin nothing that would not end in so many")
    parser.add_argument("--out", type=Path, default=HERE / "results", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--only", metavar="REGEX", help="only cells whose name matches")
    parser.add_argument("--workers", type=int, metavar="N", help="processes a cell is spread over (default: all cores)")
    args = parser.parse_args()
    if not args.minutes >= 0:
        parser.error(f"--minutes {args.minutes} must be 0 or more")
    workers = args.workers or available()
    args.out.mkdir(parents=True, exist_ok=True)
    found, end = tables(args.data, args.out, workers, args.only), time.monotonic() + 60 * args.minutes
    for job, table in cheapest_first(found):
        if time.monotonic() + 60 * job.minutes / workers > end:
            break
        table.cells.compute(job)
        table.write()
    waiting = cheapest_first(found)
    print(f"\n{len(waiting)} cells are not run, {sum(job.minutes for job, _ in waiting):.0f} minutes of a quiet core:")
    for job, _ in waiting:
        print(f"{job.minutes:8.1f}  {job.name}")


if __name__ == "__main__":
    main()
