# SPDX-License-Identifier: Apache-2.0
"""dieharder on every stream that mechanisms use: `make battery` (about an hour; `--quick` some minutes).

Prints a table, and writes it where --out says. dieharder comes from the system's packages.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.streams.sources import SOURCES

# birthdays, ranks of 32x32, bit strings, minimum distances, runs, serial and byte distributions.
TESTS = {"0": (), "2": (), "4": (), "5": (), "12": (), "15": (), "102": (), "200": ("-n", "4"), "204": ()}
QUICK = ("0", "2", "15", "204")
WEAK = 0.005  # of one test, at either end: asked again with more samples
FAILED = 1e-6
ROWS = {"15": 2, "102": 30}  # p-values of a test; of the others one


def run(source: str, test: str) -> list[tuple[str, list[float], str]]:
    """What one test says of one source: its names, their p-values and the last verdict.

    While one is below .005 or above .995 dieharder takes more samples and asks again, so that the last p-value counts.
    """
    feed = subprocess.Popen([sys.executable, "-m", "tests.streams.sources", source], stdout=subprocess.PIPE)
    command = ["dieharder", "-g", "200", "-d", test, "-c", ",", "-D", "test_name", "-D", "ntuple", "-D", "pvalues",
               "-D", "assessment", "-Y", "1", *TESTS[test]]  # fmt: skip
    done = subprocess.run(command, stdin=feed.stdout, capture_output=True, text=True, check=True)
    feed.kill()
    feed.wait()
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 3]
    width = ROWS.get(test, 1)
    asked = [rows[i::width] for i in range(width)]
    return [
        (f"{one[0][0].strip()} {one[0][1].strip()}", [float(p) for _, _, p, _ in one], one[-1][3].strip())
        for one in asked
    ]


def main() -> int:
    """Run, print, write; 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.streams.battery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four tests of each stream")
    parser.add_argument("--only", choices=SOURCES, help="one stream")
    parser.add_argument("--out", type=Path, help="write the table there, as Markdown")
    args = parser.parse_args()
    if shutil.which("dieharder") is None:
        raise SystemExit("dieharder is not installed: it is in Debian's package of this name")
    version = subprocess.run(["dieharder", "-l"], capture_output=True, text=True, check=False).stdout
    release = version.split("version")[1].split()[0]
    asked = "python -m tests.streams.battery" + (" --quick" if args.quick else "")
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, dieharder {release}, `{asked}`",
        "",
        "| stream | tests | least p | greatest p | failed | weak at first |",
        "|---|---:|---:|---:|---:|---|",
    ]
    print("\n".join(lines), flush=True)
    failed = 0
    for source in [args.only] if args.only else SOURCES:
        found = []
        for test in QUICK if args.quick else TESTS:
            found += run(source, test)
        last = [values[-1] for _, values, _ in found]
        bad = [one for one in found if one[2] == "FAILED" or not FAILED < one[1][-1] < 1 - FAILED]
        weak = [(name, values) for name, values, _ in found if not WEAK < values[0] < 1 - WEAK]
        again = ", ".join(f"{name}: {values[0]:.4g}, then {values[-1]:.4g}" for name, values in weak)
        lines.append(f"| {source} | {len(found)} | {min(last):.2g} | {max(last):.4g} | {len(bad)} | {again} |")
        print(lines[-1], flush=True)
        failed += len(bad)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
