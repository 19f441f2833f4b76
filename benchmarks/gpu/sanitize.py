# SPDX-License-Identifier: Apache-2.0
"""Every kernel of one GPU backend on small, awkward tensors: what compute-sanitizer watches (benchmarks/gpu/run)."""

from __future__ import annotations

import argparse

import torch

import ldpkernels

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
KEYS = (ldpkernels.Key((7,)), ldpkernels.Key((1, 2, 3, 4)))
LENGTHS = (1, 7, 8, 33, 255, 257, 2049, 70_001)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=("cuda", "triton"), help="whose kernels to run")
    backend = parser.parse_args().backend
    if backend not in ldpkernels.backends():
        parser.exit(3, f"the {backend} backend is not available here\n")
    calls = 0
    with ldpkernels.backend(backend):
        for dtype in DTYPES:
            for key in KEYS:
                # Each tensor is an allocation of its own (PYTORCH_NO_CUDA_MEMORY_CACHING=1): one step outside is seen.
                tensors = [torch.ones(n, dtype=dtype, device="cuda") for n in LENGTHS]
                tensors += [t[1:] for t in [torch.ones(4097, dtype=dtype, device="cuda")]]  # not aligned to 16 bytes
                ldpkernels.report(tensors, 0.0, 1.0, 1.0, generator=key)
                ldpkernels.two_point_threshold(tensors[-1], 0.0, 1.0, 1.0)
                ldpkernels.perturb_(tensors, 0.0, 1.0, 1.0, generator=key)
                torch.cuda.synchronize()
                calls += 3
    print(f"{backend}: {calls} calls on {len(LENGTHS) + 1} tensors each")


if __name__ == "__main__":
    main()
