# SPDX-License-Identifier: Apache-2.0
"""Every kernel of one GPU backend on small, awkward tensors: what compute-sanitizer watches (benchmarks/gpu/run.py).

They are the known questions of ldpkernels/launch/proved.py. Each tensor should be an allocation of its own
(PYTORCH_NO_CUDA_MEMORY_CACHING=1), so that one step outside is seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

import ldpkernels
from ldpkernels.common import capabilities
from ldpkernels.launch.proved import Subject, ask, subjects


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=("cuda", "triton"), help="whose kernels to run")
    parser.add_argument(
        "--start", default="0/1", metavar="I/N",
        help="begin so far into the questions: N tools side by side then share what Triton compiles",
    )  # fmt: skip
    parser.add_argument("--rehearse", action="store_true", help="a few questions on the CPU, by Triton's interpreter")
    options = parser.parse_args()
    device = torch.device("cpu") if options.rehearse else torch.device("cuda", torch.cuda.current_device())
    if options.backend not in ldpkernels.backends():
        parser.exit(3, f"the {options.backend} backend is not available here\n")
    asked, wrong = 0, 0
    for subject in turned(subjects(), options.start):
        if options.backend not in capabilities.able(subject.kernel, device.type, device.index):
            continue
        if options.rehearse and subject.kernel != "votes":
            continue
        answer = ask(options.backend, subject, device)
        asked, wrong = asked + 1, wrong + (answer.error is not None)
        if answer.error:
            print(f"{subject}: {answer.error}", flush=True)
    print(f"{options.backend}: {asked} questions, {wrong} wrong answers")
    parser.exit(int(wrong > 0))


def turned(asked: Sequence[Subject], start: str) -> Sequence[Subject]:
    """All of them, from the one that is I/N of the way."""
    part, parts = map(int, start.split("/"))
    first = part * len(asked) // parts
    return [*asked[first:], *asked[:first]]


if __name__ == "__main__":
    main()
