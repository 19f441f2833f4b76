# SPDX-License-Identifier: Apache-2.0
"""Type checkers agree with a user's script, and refuse every wrong line of another."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.typing import user

FOLDER = Path(user.__file__).parent
ROOT = FOLDER.parents[1]
SCRIPTS = [str(FOLDER / "user.py"), str(FOLDER / "wrong.py")]


def test_right_uses_check_and_wrong_ones_do_not():
    """By basedpyright, which brings its Node.js along: pyright's own package downloads one. `make lint` asks mypy."""
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("no basedpyright")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", *SCRIPTS]
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout
    errors = [one for one in json.loads(said)["generalDiagnostics"] if one["severity"] == "error"]
    found = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors}
    lines = (FOLDER / "wrong.py").read_text().splitlines()
    wrong = {("wrong.py", i) for i, line in enumerate(lines, 1) if "  # type: ignore[" in line}
    assert len(wrong) >= 40
    assert found == wrong, said


def test_right_uses_run():
    user.torch_user()
    user.numpy_user()
    user.ranges_and_vectors()
    user.sums_and_votes()
    user.claims()
