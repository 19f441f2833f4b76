# SPDX-License-Identifier: Apache-2.0
"""Run the CPU benchmarks, print their tables, check the targets and draw the pictures (`make bench`)."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import re
import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import torch

import ldpkernels
from benchmarks import machine, picture, results
from benchmarks.pairs import Pairs
from benchmarks.results import Case, Row, Target, Work
from benchmarks.suites import SUITES, Suite

LONGEST = 0.5  # seconds that a row is run for in a sweep, or three times
TARGETS = """\
Each ratio of speeds is measured in pairs: one and the other in turn, in slices of 100 ms, so that both meet the machine
in the same state. Measured is the median over the pairs in which other processes used less than a tenth of the cores,
if there were five such; varied are the quartiles.
"""
METHOD = """\
Every sweep runs every row once, for half a second or three times, whichever is longer. A row's time is the least of all
its runs: other processes and the machine's other guests can only add to it. "spread" is how much slower the slowest
sweep was than the fastest: differences below it are noise. bytes/s counts what the task must read and write
(`aggregate`: the reports' bytes). The peers do the same work on the same tensors, as their benchmark has it.
"memory" is the most that the process took during one call, beyond what it had before.
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="A sweep takes about a minute. Let nothing else run: the report says what others used.",
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for the results (out/bench)")
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES), help="what to measure (everything)")
    text = "also store them as NAME.md, .json, .png and .svg; suites after the first append their own names"
    parser.add_argument("--save", type=Path, metavar="NAME", help=text)
    parser.add_argument("--sweeps", type=int, default=5, help="times to run the whole suite (5)")
    parser.add_argument("--elements", type=int, default=1 << 24, help="weights of the large tensor (2^24)")
    text = "seconds that each benchmark waits, at most, for others to leave the cores (0)"
    parser.add_argument("--patience", type=float, default=0, metavar="SECONDS", help=text)
    parser.add_argument("--match", default="", metavar="REGEX", help="only rows whose group and name match, no targets")
    parser.add_argument(
        "--redraw", type=Path, metavar="JSON", help="measure nothing: tables and picture of stored results"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.redraw:
        stored = json.loads(options.redraw.read_text())
        rows, found = [Row(**row) for row in stored["rows"]], [Target(**target) for target in stored["targets"]]
        write(options, SUITES[stored.get("suite", "two-point")], stored["machine"], rows, found)
        return
    for name in options.suite:
        suite = SUITES[name]
        pairs = Pairs(5 + 10 * options.patience)
        if not options.match:
            suite.targets(pairs, options.elements)
        write(options, suite, *measure(options, suite), pairs.found)


def write(
    options: argparse.Namespace, suite: Suite, facts: dict[str, str], rows: list[Row], found: list[Target]
) -> None:
    """Print, and write files: the first suite's have plain names, the others append their own."""
    text = report(suite, facts, rows, found)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    suffix = "" if suite.name == next(iter(SUITES)) else f"-{suite.name}"
    stem = f"{options.out / 'results'}{suffix}"
    Path(f"{stem}.md").write_text(text)
    results.write_json(Path(f"{stem}.json"), facts, rows, found, suite=suite.name)
    picture.draw(Path(f"{stem}.png"), suite, facts, rows)
    print(f"written: {stem}.md, .json, .png, .svg")
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        for kind in (".md", ".json", ".png", ".svg"):
            shutil.copyfile(f"{stem}{kind}", f"{options.save}{suffix}{kind}")
        print(f"stored: {options.save}{suffix}.md, .json, .png, .svg")


def measure(options: argparse.Namespace, suite: Suite) -> tuple[dict[str, str], list[Row]]:
    """Where and when, and the rows: every sweep times every case once."""
    facts = machine.describe()
    rows: dict[tuple[str, str], Row] = {}
    shares = []
    for number in range(1, options.sweeps + 1):
        start, others, timed = time.monotonic(), machine.OthersShare(), 0
        for case in suite.cases(options.elements):
            if re.search(options.match, f"{case.group} {case.row}"):
                empty = Row(case.group, case.row, case.kind, case.elements, case.bytes)
                run(case, rows.setdefault((case.group, case.row), empty), options.patience)
                timed += 1
        share = others.percent()
        shares.append("unknown" if share is None else f"{share:.0f}%")
        took = time.monotonic() - start
        words = f"{timed} rows, {took:.0f} s, others had {shares[-1]} of the cores"
        print(f"{suite.name}, sweep {number}/{options.sweeps}: {words}", flush=True)
    facts["sweeps"] = str(options.sweeps)
    facts["others' share of the cores"] = ", ".join(shares)
    return facts, list(rows.values())


def run(case: Case, row: Row, patience: float) -> None:
    """Time a case: the least of its runs goes into the row."""
    threads = torch.get_num_threads()
    torch.set_num_threads(case.threads or threads)
    with ldpkernels.backend(case.backend) if case.backend else nullcontext():
        work = case.make()
        work()
        if case.memory:
            row.peak = peak_bytes(work)
        machine.OthersShare.wait(patience)
        gc.disable()
        times, end = list[float](), time.perf_counter() + LONGEST
        while len(times) < 3 or time.perf_counter() < end:
            before = time.perf_counter()
            work()
            times.append(time.perf_counter() - before)
        gc.enable()
    torch.set_num_threads(threads)
    row.sweeps.append(min(times))


def peak_bytes(work: Work) -> int | None:
    """The most memory of the process during one call beyond that before it; Linux counts, after a reset."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that taking it anew counts
        Path("/proc/self/clear_refs").write_text("5")
        before = Path("/proc/self/status").read_text()
        work()
        after = Path("/proc/self/status").read_text()
        most, had = (re.search(rf"{name}:\s*(\d+)", text) for name, text in (("VmHWM", after), ("VmRSS", before)))
        return None if most is None or had is None else 1024 * max(0, int(most[1]) - int(had[1]))
    except (OSError, AttributeError):  # not Linux, not glibc
        return None


def report(suite: Suite, facts: dict[str, str], rows: list[Row], found: list[Target]) -> str:
    parts = [f"# {suite.title} on the CPU", results.facts_table(facts)]
    if found:
        parts.append("## Targets\n\n" + TARGETS + "\n" + results.target_table(found))
    parts.append("## Measured\n\n" + METHOD + "\n" + results.group_tables(rows, suite.peers))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
