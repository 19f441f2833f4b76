# SPDX-License-Identifier: Apache-2.0
"""The only dispatch: from checked tables to the kernels of the chosen backend. Importing it imports no torch.

There is a function for every shape of work: weights (`overwrite`, `report`, and `run` below them), rows
(`clipped_sums`), ballots (`majority_vote`), whole vectors on a grid (`quantise`, `add_noise`), rotated or by their
normals, masks (`add_masks`), ranges (`summaries`, `quantiles`), sums of reports (`tally`). Kernels of weights go by the
names of the registries: csrc/mechanisms/registry.h, ldpkernels/triton/registry.py, ldpkernels/reference/registry.py.
"""

from ldpkernels.inputs.flat import empty
from ldpkernels.launch.dispatch import (
    clipped_sums,
    clipped_sums_on_cpu,
    narrow_sum,
    next_key,
    overwrite,
    report,
    run,
    threads_for,
)
from ldpkernels.launch.server import majority_vote, quantiles, summaries, tally
from ldpkernels.launch.vectors import (
    add_masks,
    add_noise,
    copied,
    moved_normals,
    norm,
    normal_product,
    quantise,
    reflect,
    rotate,
)

__all__ = [
    "add_masks",
    "add_noise",
    "clipped_sums",
    "clipped_sums_on_cpu",
    "copied",
    "empty",
    "majority_vote",
    "moved_normals",
    "narrow_sum",
    "next_key",
    "norm",
    "normal_product",
    "overwrite",
    "quantiles",
    "quantise",
    "reflect",
    "report",
    "rotate",
    "run",
    "summaries",
    "tally",
    "threads_for",
]
