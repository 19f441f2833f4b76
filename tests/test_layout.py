# SPDX-License-Identifier: Apache-2.0
"""What has to hold for those who work on one file, or run one."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ldpkernels
from ldpkernels.common.optional import LOWEST_PYTHON, LOWEST_TORCH, refuse_old_torch, require

ROOT = Path(__file__).resolve().parent.parent


def test_the_examples_of_single_files_run_alone():
    """Were a module imported twice, the classes that it defines would not be those that the package returns."""
    files = ["ldpkernels/calls/reports.py", "ldpkernels/accounting/ledger.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


def test_tests_and_benchmarks_import_nothing_by_path():
    """They are packages: who moves a file finds who needs it."""
    ways = ("sys." + "path.", "spec_from_" + "file_location", "run" + "py")
    files = [p for folder in ("tests", "benchmarks") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", "")]
    found = [f"{p.relative_to(ROOT)}: {way}" for p in files if p.is_file() for way in ways if way in p.read_text()]
    assert found == []


def test_files_that_are_named_are_there():
    """In comments, docstrings and pages: who moves a file finds who speaks of it."""
    folders = ("csrc", "ldpkernels", "tests", "benchmarks", "docs", "examples", "release")
    named = re.compile(rf"(?<![\w/.-])(?:{'|'.join(folders)})/[\w/-]+\.(?:pyi?|h|cuh?|cpp|md|json)\b")
    text = {".py", ".pyi", ".h", ".cu", ".cuh", ".cpp", ".md", ".yml", ".toml", ".txt", ""}
    files = [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    found = [
        (path, name)
        for path in files
        if path.is_file() and path.suffix in text
        for name in named.findall(path.read_text())
    ]
    assert len(found) > 300
    lost = sorted({f"{path.relative_to(ROOT)}: {name}" for path, name in found if not (ROOT / name).exists()})
    assert lost == []


def test_the_version_stands_in_one_place():
    assert importlib.metadata.version("ldpkernels") == ldpkernels.__version__


OLD_TORCH = """
import torch
import ldpkernels
torch.__version__ = "2.10.1+cu126"
x = torch.ones(9)
try:
    ldpkernels.perturb_(x, 0.0, 1.0, 1.0)
except ImportError as error:
    print(error)
assert bool((x == 1).all())
"""


def test_a_torch_that_is_too_old_is_refused_before_anything_is_written():
    done = subprocess.run([sys.executable, "-c", OLD_TORCH], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "ldpkernels needs torch 2.11 or newer, and this is 2.10.1+cu126: upgrade torch\n"
    for version in ("2.11.0", "2.13.0a0+git1234", "3.0"):
        refuse_old_torch(version)
    asked = set(re.findall(r"torch>=([\d.]+)", (ROOT / "pyproject.toml").read_text()))
    assert asked == {".".join(map(str, LOWEST_TORCH))}


def test_an_extra_that_an_older_python_leaves_out_is_named(monkeypatch):
    (asked,) = re.findall(r"flwr.*python_version >= '([\d.]+)'", (ROOT / "pyproject.toml").read_text())
    assert asked == ".".join(map(str, LOWEST_PYTHON["flower"]))
    monkeypatch.setitem(LOWEST_PYTHON, "flower", (3, 99))
    with pytest.raises(ImportError, match=r"a client needs missing_package, which needs Python 3\.99: this is 3\.\d+$"):
        require("missing_package", "flower", "a client")
