# SPDX-License-Identifier: Apache-2.0
"""Run the CPU benchmarks, print their tables, check the targets and draw the pictures (`make bench`)."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import machine, picture, results
from benchmarks.results import Row, Target
from benchmarks.suites import SUITES, Suite

HERE = Path(__file__).parent
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
    text = "also store them as NAME.md, NAME.json and NAME.png; suites after the first append their own names"
    parser.add_argument("--save", type=Path, metavar="NAME", help=text)
    parser.add_argument("--sweeps", type=int, default=5, help="times to run the whole suite (5)")
    parser.add_argument("--elements", type=int, default=1 << 24, help="weights of the large tensor (2^24)")
    text = "seconds that each benchmark waits, at most, for others to leave the cores (0)"
    parser.add_argument("--patience", type=float, default=0, metavar="SECONDS", help=text)
    parser.add_argument(
        "--match", default="", metavar="EXPRESSION", help="run only these tests (as pytest -k), no targets"
    )
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
        found = [] if options.match else suite.targets(options.elements, options.patience)
        write(options, suite, *measure(options, suite), found)


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
    print(f"written: {stem}.md, .json, .png")
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        for kind in (".md", ".json", ".png"):
            shutil.copyfile(f"{stem}{kind}", f"{options.save}{suffix}{kind}")
        print(f"stored: {options.save}{suffix}.md, .json, .png")


def measure(options: argparse.Namespace, suite: Suite) -> tuple[dict[str, str], list[Row]]:
    facts = machine.describe()
    rows: dict[tuple[str, str], Row] = {}
    shares = []
    for number in range(1, options.sweeps + 1):
        start, others = time.monotonic(), machine.OthersShare()
        found = sweep(options, suite)
        for group, seconds, info in found:
            row = rows.setdefault(
                (group, info["row"]), Row(group, info["row"], info["kind"], info["elements"], info["bytes"])
            )
            row.sweeps.append(seconds)
            row.peak = info.get("peak")
        share = others.percent()
        shares.append("unknown" if share is None else f"{share:.0f}%")
        took = time.monotonic() - start
        print(
            f"{suite.name}, sweep {number}/{options.sweeps}: {len(found)} rows, {took:.0f} s, "
            f"others had {shares[-1]} of the cores",
            flush=True,
        )
    facts["sweeps"] = str(options.sweeps)
    facts["others' share of the cores"] = ", ".join(shares)
    return facts, list(rows.values())


def sweep(options: argparse.Namespace, suite: Suite) -> list[tuple[str, float, dict]]:
    """Every benchmark once: group, least time and extra_info."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "benchmark.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [
            *(str(HERE / file) for file in suite.files),
            f"--elements={options.elements}",
            f"--patience={options.patience}",
            f"--benchmark-json={output}",
            "-k",
            options.match,
        ]
        command += ["--benchmark-disable-gc", "--benchmark-min-rounds=3", "--benchmark-max-time=0.5"]
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the benchmarks failed:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
        found = json.loads(output.read_text())["benchmarks"]
    return [(b["group"], b["stats"]["min"], b["extra_info"]) for b in found]


def report(suite: Suite, facts: dict[str, str], rows: list[Row], found: list[Target]) -> str:
    parts = [f"# {suite.title} on the CPU", results.facts_table(facts)]
    if found:
        parts.append("## Targets\n\n" + TARGETS + "\n" + results.target_table(found))
    parts.append("## Measured\n\n" + METHOD + "\n" + results.group_tables(rows, suite.peers))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
