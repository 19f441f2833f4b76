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
FAILED = 1e-6  # of one test, at either end


def run(source: str, test: str) -> list[tuple[str, float, str]]:
    """The p-values of one test on one source; below .005 or above .995 dieharder takes more samples, to the end."""
    feed = subprocess.Popen([sys.executable, "-m", "tests.streams.sources", source], stdout=subprocess.PIPE)
    command = ["dieharder", "-g", "200", "-d", test, "-c", ",", "-D", "test_name", "-D", "ntuple", "-D", "pvalues",
               "-D", "assessment", "-Y", "1", *TESTS[test]]  # fmt: skip
    done = subprocess.run(command, stdin=feed.stdout, capture_output=True, text=True, check=True)
    feed.kill()
    feed.wait()
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 3]
    return [(f"{name.strip()} {tuple_}".strip(), float(p), verdict.strip()) for name, tuple_, p, verdict in rows]


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
        "| stream | p-values | least | greatest | failed |",
        "|---|---:|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    failed = 0
    for source in [args.only] if args.only else SOURCES:
        found = []
        for test in QUICK if args.quick else TESTS:
            found += run(source, test)
        bad = [one for one in found if one[2] == "FAILED" or one[1] < FAILED or one[1] > 1 - FAILED]
        values = [p for _, p, _ in found]
        lines.append(f"| {source} | {len(found)} | {min(values):.2g} | {max(values):.4g} | {len(bad)} |")
        print(lines[-1], flush=True)
        failed += len(bad)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
