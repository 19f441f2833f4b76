# SPDX-License-Identifier: Apache-2.0
"""Local differential privacy for model updates, at memory speed, with guarantees that are proved in integers.

`perturb_(model, C, R, eps)` in an existing training loop is the two-point mechanism of LDP-FL; `report` and `aggregate`
are the same with one bit a weight on the wire. Importing this package imports no torch.
"""

from ldpkernels._backends import backend, backends
from ldpkernels._ranges import ranges
from ldpkernels.clipped_noise import ClippedInfo, clipped_noised_mean, clipped_noised_sum
from ldpkernels.dp_sgd import dp_sgd_step
from ldpkernels.keys import Key, key, secure_key
from ldpkernels.perturb import perturb_, report, two_point_threshold
from ldpkernels.reports import Aggregate, Report, aggregate
from ldpkernels.two_point import TwoPoint

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "ClippedInfo",
    "Key",
    "Report",
    "TwoPoint",
    "aggregate",
    "backend",
    "backends",
    "clipped_noised_mean",
    "clipped_noised_sum",
    "dp_sgd_step",
    "key",
    "perturb_",
    "ranges",
    "report",
    "secure_key",
    "two_point_threshold",
]
