# SPDX-License-Identifier: Apache-2.0
"""What has to hold for those who work on one file, or run one."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("file", ["ldpkernels/reports.py", "ldpkernels/accounting/ledger.py"])
def test_the_examples_of_a_single_file_run_alone(file):
    """Were its module imported twice, the classes that it defines would not be those that the package returns."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


def test_tests_and_benchmarks_import_nothing_by_path():
    """They are packages: who moves a file finds who needs it."""
    ways = ("sys." + "path", "spec_from_" + "file_location", "run" + "py")
    files = [p for folder in ("tests", "benchmarks") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", "")]
    found = [f"{p.relative_to(ROOT)}: {way}" for p in files if p.is_file() for way in ways if way in p.read_text()]
    assert found == []
