# SPDX-License-Identifier: Apache-2.0
"""What an import costs, and what a client without torch can do."""

import subprocess
import sys

import ldpkernels

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # any import of it fails
import numpy as np
import ldpkernels
from ldpkernels import accounting
w = {"a": np.full((4, 3), 0.1, np.float32), "b": np.zeros(5)}
upload = ldpkernels.report(w, 0.0, 1.0, eps=1.0).to_bytes()
mean = ldpkernels.aggregate([upload, upload])
assert mean["a"].shape == (4, 3) and mean["b"].dtype == np.float64
ldpkernels.perturb_(w, *ldpkernels.ranges(w), eps=1.0, generator=np.random.default_rng(0))
with ldpkernels.backend("reference"):
    ldpkernels.perturb_(w, 0.0, 1.0, eps=1.0, generator="secure")
print(ldpkernels.TwoPoint(1.0).effective_eps)
"""

IMPORTED = """
import sys
import numpy as np
import ldpkernels
ldpkernels.perturb_(np.zeros(9), 0.0, 1.0, eps=1.0)
with ldpkernels.backend("scalar"):
    ldpkernels.aggregate([ldpkernels.report(np.zeros(9), 0.0, 1.0, eps=1.0)])
print([m for m in ("torch", "triton", "scipy", "matplotlib", "dp_accounting") if m in sys.modules])
"""


def run(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_everything_of_numpy_works_where_torch_is_not_installed():
    done = run(WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    assert 0.999 < float(done.stdout) <= 1.0


def test_arrays_import_nothing_heavy():
    done = run(IMPORTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


EVERY_HELP = """
import contextlib, sys
sys.modules["cryptography"] = None  # of an extra: `pip install .` leaves it out, and the program failed
from ldpkernels.__main__ import main
for arguments in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main(arguments.split())
print([m for m in ("torch", "triton", "scipy", "sklearn", "matplotlib", "tqdm") if m in sys.modules])
"""


def test_the_command_line_has_help_that_imports_nothing_heavy():
    commands = ["", "verify", "audit", "demo", "account", "fl", "fl ldp-fl", "fl ldp-fed", "fl han-xue"]
    commands += [f"account {q}" for q in ("local", "shuffle", "subsample", "gaussian", "cldp", "claims")]
    helped = [f"{command} --help" for command in commands]
    done = run(EVERY_HELP, "--version", *helped)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    for command in commands:
        assert f"usage: ldpkernels {command}".rstrip() + " " in done.stdout


def test_the_module_runs_too():
    command = [sys.executable, "-m", "ldpkernels", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == f"ldpkernels {ldpkernels.__version__}\n", done.stderr


def test_verify_runs_on_arrays_alone():
    code = "import sys; sys.modules['torch'] = None; from ldpkernels.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = run(code, "verify", "--n", "1024", "--backend", "scalar")
    assert done.returncode == 0, done.stderr
    assert "float16" in done.stdout
    assert "bfloat16" not in done.stdout
    done = run(code, "verify", "--dtype", "bfloat16")
    assert done.returncode == 2
    assert done.stderr.startswith("ldpkernels verify: --dtype bfloat16: NumPy has no such dtype: pip install")
