# SPDX-License-Identifier: Apache-2.0
"""Whether the package that was laid out is the one that runs, and what this machine is: facts.json in this folder."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import ldpkernels
from benchmarks import machine
from ldpkernels.common import gpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="without a device, beside an installation",
    )
    options = parser.parse_args()
    ours = Path.cwd() in Path(ldpkernels.__file__).parents
    assert ours or options.rehearse, f"another ldpkernels is in the way: {ldpkernels.__file__}"
    x = np.linspace(-2, 2, 10_007, dtype=np.float32)
    expected = ldpkernels.two_point_threshold(x, 0.0, 1.0, 1.0)
    for name in ldpkernels.backends():
        if name not in ("cuda", "triton"):
            with ldpkernels.backend(name):
                assert (ldpkernels.two_point_threshold(x, 0.0, 1.0, 1.0) == expected).all(), name
    facts = machine.describe() | {"GPU backends": ", ".join(_gpu_backends())}
    if importlib.util.find_spec("triton"):
        import triton

        facts["Triton"] = triton.__version__
    if torch.cuda.is_available():
        asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        facts["driver"] = answer.stdout.strip() or "nvidia-smi failed"
    Path("facts.json").write_text(json.dumps(facts))
    for fact in facts.items():
        print(*fact, sep=": ")
    if torch.cuda.is_available() or options.rehearse:
        return 0
    print("no CUDA device: the build works, and everything else needs one")
    return 3


def _gpu_backends() -> list[str]:
    found = [name for name in ("cuda", "triton") if name in ldpkernels.backends()]
    return [name for name in found if name != "cuda" or gpu.runs_cuda(0)]


if __name__ == "__main__":
    sys.exit(main())
