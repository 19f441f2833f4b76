# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels`: importing this registers every operation, and every question of launch/proved.py."""

from ldpkernels.ops import known_vectors, questions
from ldpkernels.ops.clipped_noise import clipped_noised_sum
from ldpkernels.ops.define import named
from ldpkernels.ops.keys import fresh_key, torch_key
from ldpkernels.ops.ordinal_cldp import ordinal_cldp_, ordinal_cldp_sample
from ldpkernels.ops.votes import majority_vote
from ldpkernels.ops.weightwise import OPERATIONS, two_point_threshold

__all__ = [
    "OPERATIONS",
    "clipped_noised_sum",
    "fresh_key",
    "known_vectors",
    "majority_vote",
    "named",
    "ordinal_cldp_",
    "ordinal_cldp_sample",
    "questions",
    "torch_key",
    "two_point_threshold",
]
