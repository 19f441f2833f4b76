# SPDX-License-Identifier: Apache-2.0
"""Every kernel of one GPU backend on small, awkward tensors: what compute-sanitizer watches (benchmarks/gpu/run.py).

Each tensor should be an allocation of its own (PYTORCH_NO_CUDA_MEMORY_CACHING=1), so that one step outside is seen.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import ldpkernels
import ldpkernels.updates
from benchmarks.gpu.operations import KEYS, OPERATIONS, Operation, on
from ldpkernels import capabilities
from ldpkernels.dtypes import DTYPES
from ldpkernels.inputs.spans import span_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=("cuda", "triton"), help="whose kernels to run")
    parser.add_argument(
        "--start", default="0/1", metavar="I/N",
        help="begin so far into the operations: N tools side by side then share what Triton compiles",
    )  # fmt: skip
    parser.add_argument("--rehearse", action="store_true", help="a few operations on the CPU, by Triton's interpreter")
    options = parser.parse_args()
    device = "cpu" if options.rehearse else "cuda"
    if options.backend not in ldpkernels.backends():
        parser.exit(3, f"the {options.backend} backend is not available here\n")
    calls = 0
    for name, operation in turned(list(OPERATIONS.items()), options.start):
        if options.backend not in capabilities.able(operation.kernel, device):
            continue
        if options.rehearse and name != "majority_vote":
            continue
        for dtype in operation.dtypes:
            for key in KEYS.values():
                with ldpkernels.backend(options.backend):
                    operation.call(on(device, operation.make(dtype)), key)
                wait(device)
                calls += 1
    if options.backend == "triton":
        ranges_and_tallies(torch.device(device))
        whole_vectors(device)
    print(f"{options.backend}: {calls} calls")


def turned(operations: list[tuple[str, Operation]], start: str) -> list[tuple[str, Operation]]:
    """All of them, from the one that is I/N of the way."""
    part, parts = map(int, start.split("/"))
    first = part * len(operations) // parts
    return operations[first:] + operations[:first]


def ranges_and_tallies(device: torch.device) -> None:
    """What has no operation of its own."""
    from ldpkernels.triton.quantiles import quantiles
    from ldpkernels.triton.summary import summarize
    from ldpkernels.triton.tally import BitTally, ByteTally

    sizes = (1, 15, 2047, 2049) if device.type == "cpu" else (1, 15, 2047, 65_537, 200_001)
    tensors = [torch.randn(n).to(kind).to(device) for n in sizes for kind in (torch.float32, torch.bfloat16)]
    kinds = [DTYPES[str(t.dtype).removeprefix("torch.")] for t in tensors]
    spans = span_table([t.data_ptr() for t in tensors], [0] * len(tensors), [t.numel() for t in tensors], kinds)
    finite = np.array([sum(one.finite for one in summarize(spans, device))])
    quantiles(spans, np.zeros(len(tensors), np.int64), finite, np.array([0.01, 0.99]), device)
    for tally in (BitTally(1003, device), ByteTally(1003, device)):
        tally.add([torch.ones(1003, dtype=torch.uint8, device=device) for _ in range(20)])
    wait(device.type)


def whole_vectors(device: str) -> None:
    """Their host waits, so that no graph has them and they are no operations."""
    sizes = (33, 5) if device == "cpu" else (70_001, 33)
    parts = [torch.randn(n).to(kind).to(device) for n in sizes for kind in (torch.float32, torch.bfloat16)]
    n = 2 * sum(sizes)
    law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=n, clients=1000, bits=26)
    with ldpkernels.backend("triton"):
        for key in list(KEYS.values())[: 1 if device == "cpu" else 2]:
            ldpkernels.perturb_vector(parts, mechanism="gaussian", sigma=1.0, norm=1.0, generator=key)
            ldpkernels.perturb_vector(parts, 8.0, norm=1.0, generator=key)
            ldpkernels.updates.encode(parts, law, ldpkernels.key(1), generator=key)
    wait(device)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
