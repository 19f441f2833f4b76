# SPDX-License-Identifier: Apache-2.0
"""Run the CPU benchmarks, print their table, check the targets and draw the picture (`make bench`)."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import pairs
import picture
import results
from results import Row, Target

HERE = Path(__file__).parent
PEERS = {
    "torch eager, bernoulli": lambda row: row.name.startswith("torch eager, bernoulli"),
    "torch.compile": lambda row: row.name.startswith("torch.compile"),
    "mul_": lambda row: row.name.startswith("mul_"),
    "read": lambda row: row.name.startswith("read"),
}
TARGETS = """\
Each ratio of speeds is measured in pairs: one and the other in turn, in slices of 100 ms, so that both meet the machine
in the same state. Measured is the median over the pairs in which other processes used less than a tenth of the cores,
if there were five such; varied are the quartiles.
"""
METHOD = """\
Every sweep runs every row once, for half a second or three times, whichever is longer. A row's time is the least of all
its runs: other processes and the machine's other guests can only add to it. "spread" is how much slower the slowest
sweep was than the fastest: differences below it are noise. bytes/s counts what the task must read and write
(`aggregate`: the reports' bytes). The peers do the same work on the same tensors, as benchmarks/peers.py has it.
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="A sweep takes about a minute. Let nothing else run: the report says what others used.",
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for the results (out/bench)")
    parser.add_argument("--save", type=Path, metavar="NAME", help="also store them as NAME.md, NAME.json and NAME.png")
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
        facts, rows = stored["machine"], [Row(**row) for row in stored["rows"]]
        found = [Target(**target) for target in stored["targets"]]
    else:
        found = [] if options.match else pairs.targets(options.elements, options.patience)
        facts, rows = measure(options)
    text = report(facts, rows, found)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / "results"
    stem.with_suffix(".md").write_text(text)
    results.write_json(stem.with_suffix(".json"), facts, rows, found)
    picture.draw(stem.with_suffix(".png"), facts, rows)
    print(f"written: {stem}.md, {stem}.json, {stem}.png")
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".md", ".json", ".png"):
            shutil.copyfile(stem.with_suffix(suffix), f"{options.save}{suffix}")
        print(f"stored: {options.save}.md, .json, .png")


def measure(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    facts = machine.describe()
    rows: dict[tuple[str, str], Row] = {}
    shares = []
    for number in range(1, options.sweeps + 1):
        start, others = time.monotonic(), machine.OthersShare()
        found = sweep(options)
        for group, seconds, info in found:
            row = rows.setdefault(
                (group, info["row"]), Row(group, info["row"], info["kind"], info["elements"], info["bytes"])
            )
            row.sweeps.append(seconds)
        share = others.percent()
        shares.append("unknown" if share is None else f"{share:.0f}%")
        took = time.monotonic() - start
        print(
            f"sweep {number}/{options.sweeps}: {len(found)} rows, {took:.0f} s, others had {shares[-1]} of the cores",
            flush=True,
        )
    facts["sweeps"] = str(options.sweeps)
    facts["others' share of the cores"] = ", ".join(shares)
    return facts, list(rows.values())


def sweep(options: argparse.Namespace) -> list[tuple[str, float, dict]]:
    """Every benchmark once: group, least time and extra_info."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "benchmark.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "test_two_point.py")]
        command += [
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


def report(facts: dict[str, str], rows: list[Row], found: list[Target]) -> str:
    parts = ["# The two-point mechanism on the CPU", results.facts_table(facts)]
    if found:
        parts.append("## Targets\n\n" + TARGETS + "\n" + results.target_table(found))
    parts.append("## Measured\n\n" + METHOD + "\n" + results.group_tables(rows, PEERS))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
