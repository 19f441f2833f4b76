# SPDX-License-Identifier: Apache-2.0
"""What an import costs, and what a client without torch can do."""

import subprocess
import sys

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


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_everything_of_numpy_works_where_torch_is_not_installed():
    done = run(WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    assert 0.999 < float(done.stdout) <= 1.0


def test_arrays_import_nothing_heavy():
    done = run(IMPORTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_command_line_has_help():
    for arguments in ([], ["verify"], ["demo"], ["audit"], ["account"], ["fl"], ["fl", "ldp-fl"]):
        command = [sys.executable, "-m", "ldpkernels", *arguments, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "usage: python -m ldpkernels" in done.stdout
