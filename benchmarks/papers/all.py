# SPDX-License-Identifier: Apache-2.0
"""The papers' runs and pages, as far as so many minutes go: `python benchmarks/papers/all.py --data DIR --minutes 60`.

Cells that cost least are run first, whatever page they belong to; each says what it costs before it starts. What is
there is not run again, a cell that was killed goes on from its last round, and what would not end in time is not begun:
run it again with more minutes. Without --minutes nothing is run, and the pages' tables and pictures are made anew of
what is kept. Every page lists what has not been run; so does the last output here.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

if not __package__:  # called by its path: the same by its name
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [inherited])])
    os.environ["PYTHONSAFEPATH"] = "1"  # not what the working folder has by that name (from Python 3.11 on)
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.papers.all", *sys.argv[1:]])

from benchmarks.papers import (
    han_xue_runs,
    han_xue_tables,
    ldp_fed_runs,
    ldp_fed_tables,
    ldp_fl_figures,
    ldp_fl_others,
    ldp_fl_runs,
    ldp_fl_tables,
)
from benchmarks.papers.common import RESULTS, Cells, Job, Page

NAMES = ("ldp-fl", "ldp-fed-fashion-mnist", "han-xue")


def pages(root: str, out: Path, workers: int) -> list[Page]:
    """The page of each paper."""
    fl, fed, parties = (Cells(out / f"{name}.json") for name in NAMES)
    plan = [*ldp_fl_runs.jobs(root, workers), *ldp_fl_others.jobs(root)]
    return [
        Page(fl, plan, ldp_fl_tables.tables, ldp_fl_figures.draw),
        Page(fed, ldp_fed_runs.jobs(root, workers), ldp_fed_tables.tables, ldp_fed_tables.draw),
        Page(parties, han_xue_runs.jobs(root, workers, out), han_xue_tables.tables, han_xue_tables.draw),
    ]


def main() -> None:
    from ldpkernels.federated.workers import available

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="the folder that torchvision was given as root")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin nothing that would not end in so many (0)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--page", choices=NAMES, help="of one paper alone")
    parser.add_argument("--only", metavar="REGEX", default="", help="only cells whose name matches")
    parser.add_argument("--workers", type=int, metavar="N", help="processes a cell is spread over (default: all cores)")
    args = parser.parse_args()
    if not args.minutes >= 0:
        parser.error(f"--minutes {args.minutes} must be 0 or more")
    if args.minutes and not args.data:
        parser.error("--minutes needs --data, the folder of the datasets")
    workers = args.workers or available()
    args.out.mkdir(parents=True, exist_ok=True)
    found, end = pages(args.data or "", args.out, workers), time.monotonic() + 60 * args.minutes
    found = [page for page in found if args.page in (None, page.name)]
    waiting: list[tuple[Job, Page]] = [(job, page) for page in found for job in page.missing()]
    waiting = [(job, page) for job, page in waiting if re.search(args.only, job.name)]
    waiting.sort(key=lambda pair: (pair[0].minutes, pair[0].name))
    while waiting and time.monotonic() + 60 * waiting[0][0].minutes / workers <= end:
        job, page = waiting.pop(0)
        page.cells.compute(job)
        page.write()
    for page in found:
        if not args.minutes and page.cells.all():
            page.write()
    print(f"\n{len(waiting)} cells are not run, {sum(job.minutes for job, _ in waiting):.0f} minutes of a quiet core:")
    for job, _ in waiting:
        print(f"{job.minutes:8.1f}  {job.name}")


if __name__ == "__main__":
    main()
