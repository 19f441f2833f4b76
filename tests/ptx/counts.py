# SPDX-License-Identifier: Apache-2.0
"""Instructions of Triton's PTX that are executed for each element, as JSON: `python -m tests.ptx.counts [--arch 90]`.

They are counted by the machine, of all threads of two calls, of which one has twice the elements of the other: what is
left is without the launch's and a program's beginnings. `make cost` holds them.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # it is read when triton is imported
os.environ.setdefault("TRITON_CACHE_DIR", str(Path(__file__).resolve().parents[2] / "build" / "ptx-cache"))

import torch
import triton

import ldpkernels
from benchmarks.gpu.operations import KEYS
from ldpkernels import launch
from tests.ptx import device

SIZE, STRETCH = 1 << 14, 1 << 16
SUMS = "clipped sums, another row"
Call = Callable[[int], object]


def calls() -> Iterator[tuple[str, Call]]:
    """Calls of so many elements, by the names of the machine-code page."""

    def weights(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.linspace(-1.3, 1.3, n).to(dtype)

    def of_weights(function: Callable[..., object], mechanism: str, dtype: torch.dtype, cipher: str, n: int) -> object:
        return function(weights(n, dtype), 0.0, 1.0, 1.0, mechanism=mechanism, generator=KEYS[cipher])

    fp32 = torch.float32
    for cipher in KEYS:
        for mechanism in ("two-point", "sign", "piecewise", "hybrid"):
            perturbed = partial(of_weights, ldpkernels.perturb_, mechanism, fp32, cipher)
            yield f"{mechanism}, values float32, {cipher}", perturbed
        reported = partial(of_weights, ldpkernels.report, "two-point", fp32, cipher)
        yield f"two-point, bits float32, {cipher}", reported
        narrow = partial(of_weights, ldpkernels.perturb_, "two-point", torch.bfloat16, cipher)
        yield f"two-point, values bfloat16, {cipher}", narrow

        def cldp(n: int, cipher: str = cipher) -> object:
            return ldpkernels.cldp_(weights(n), 1e-3, 1.0, 4, generator=KEYS[cipher])

        yield f"ordinal cldp, float32, {cipher}", cldp

    def sums(n: int) -> object:
        """Rows of a whole stretch, of which there are more."""
        rows = weights(n // SIZE * STRETCH).reshape(-1, STRETCH)
        return ldpkernels.clipped_noised_sum(rows, 1.0, 1.0, generator=KEYS["philox"])

    def rotated(n: int) -> object:
        return launch.rotate(weights(n), KEYS["philox"])

    yield f"{SUMS}, float32, philox", sums
    yield "rotation, float32, philox", rotated


def executed(call: Call, n: int) -> int:
    """How many instructions a call executes, of all threads."""
    before = {name: program.instructions() for name, program in device.record.programs.items()}
    call(n)
    return sum(p.instructions() - before.get(name, 0) for name, p in device.record.programs.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--arch", type=int, default=90)
    device.install(parser.parse_args().arch)
    counts = {}
    os.environ["LDPKERNELS_PROVE"] = "never"
    with device.taking_tensors_of_the_host(), ldpkernels.backend("triton"):
        for name, call in calls():
            small, large = executed(call, SIZE), executed(call, 2 * SIZE)
            size = STRETCH if name.startswith(SUMS) else SIZE
            counts[name] = {"instructions": round((large - small) / size, 2)}
    print(json.dumps({"triton": triton.__version__, "kernels": counts}))


if __name__ == "__main__":
    main()
