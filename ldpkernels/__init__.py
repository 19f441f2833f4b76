# SPDX-License-Identifier: Apache-2.0
"""Local differential privacy for model updates, at memory speed, with guarantees that are proved in integers.

`perturb_(model, C, R, eps)` in an existing training loop is the two-point mechanism of LDP-FL; `report` and `aggregate`
are the same with one bit a weight on the wire. Importing this package imports no torch.
"""

import ldpkernels.updates  # noqa: F401  # a plan's calls name it
from ldpkernels.calls.adaptive_ranges import ranges
from ldpkernels.calls.cldp import cldp_, cldp_sample
from ldpkernels.calls.clipped_noise import ClippedInfo, clipped_noised_mean, clipped_noised_sum
from ldpkernels.calls.dp_sgd import dp_sgd_step
from ldpkernels.calls.expectation import Expected, expected
from ldpkernels.calls.loading import load
from ldpkernels.calls.perturb import Prepared, perturb_, prepare, report, two_point_threshold
from ldpkernels.calls.reports import Aggregate, Report, aggregate
from ldpkernels.calls.vector import perturb_vector
from ldpkernels.calls.votes import Vote, majority_vote, noisy_vote, vote_counts, vote_epsilon
from ldpkernels.common.capabilities import backend, backends
from ldpkernels.common.keys import Key, key, secure_key
from ldpkernels.laws.adaptive_clipping import AdaptiveClipping
from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.laws.distributed import DistributedGaussian, DistributedSkellam
from ldpkernels.laws.hybrid import Hybrid
from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.ordinal_cldp import OrdinalCLDP
from ldpkernels.laws.piecewise import Piecewise
from ldpkernels.laws.privunitg import PrivUnitG
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.laws.registry import best_mechanism
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.laws.vector_gaussian import VectorGaussian
from ldpkernels.planning import plan

__version__ = "0.1.0"

__all__ = [
    "AdaptiveClipping",
    "Aggregate",
    "CentralGaussian",
    "ClippedInfo",
    "DistributedGaussian",
    "DistributedSkellam",
    "Expected",
    "Hybrid",
    "KOfD",
    "Key",
    "OrdinalCLDP",
    "Piecewise",
    "Prepared",
    "PrivUnitG",
    "ProjectedCode",
    "Report",
    "TwoPoint",
    "VectorGaussian",
    "Vote",
    "aggregate",
    "backend",
    "backends",
    "best_mechanism",
    "cldp_",
    "cldp_sample",
    "clipped_noised_mean",
    "clipped_noised_sum",
    "dp_sgd_step",
    "expected",
    "key",
    "load",
    "majority_vote",
    "noisy_vote",
    "perturb_",
    "perturb_vector",
    "plan",
    "prepare",
    "ranges",
    "report",
    "secure_key",
    "two_point_threshold",
    "vote_counts",
    "vote_epsilon",
]
