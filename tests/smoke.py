# SPDX-License-Identifier: Apache-2.0
"""What an installed wheel must do with NumPy alone: `python -I tests/smoke.py`, with neither torch nor pytest."""

import platform
import sys
from pathlib import Path

import numpy as np

import ldpkernels

FLAGS = {"avx2": {"avx2", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}


def main():
    assert Path(__file__).parents[1] not in Path(ldpkernels.__file__).parents, "the source tree, not the wheel"
    information = Path("/proc/cpuinfo")
    if information.exists():  # a build that misses what the machine has would be right, and slow
        x86 = platform.machine() in ("x86_64", "AMD64")  # an emulated processor shows the host's flags
        flags = set(information.read_text().split()) if x86 else set()
        expected = {name for name, needed in FLAGS.items() if needed <= flags}
        expected |= {"neon"} if platform.machine() == "aarch64" else set()
        assert expected <= set(ldpkernels.backends()), f"{expected} here, and {ldpkernels.backends()} found"
    weights = {"a": np.linspace(-2, 2, 10_007, dtype=np.float32), "b": np.ones((3, 5))}
    found = set()
    for name in ldpkernels.backends():
        with ldpkernels.backend(name):
            noised = {k: v.copy() for k, v in weights.items()}
            ldpkernels.perturb_(noised, 0.0, 1.0, eps=1.0, generator=ldpkernels.key(7))
            found.add(b"".join(v.tobytes() for v in noised.values()))
    assert len(found) == 1, "backends differ"
    upload = ldpkernels.report(weights, 0.0, 1.0, eps=1.0).to_bytes()
    assert ldpkernels.aggregate([upload, upload])["b"].shape == (3, 5)
    assert "torch" not in sys.modules
    print(f"ldpkernels {ldpkernels.__version__}: {', '.join(ldpkernels.backends())}")


if __name__ == "__main__":
    main()
