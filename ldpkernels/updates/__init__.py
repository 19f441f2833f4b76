# SPDX-License-Identifier: Apache-2.0
"""Whole updates with others' help: a public rotation, shares of noise under secure aggregation.

- `rotate_`, `rotate_back_`: a random rotation, whose signs come from a public key.
- `encode`, `decode`: a client's integers for a secure sum, and the mean of the clients from it.
- `report_code`, `mean_of_codes`: an update in some 11 bits, for a server that nobody trusts.
- `widened`, `narrowed`: a norm that follows the clients' median, by one more number in an update.

The laws say what each is worth: `ldpkernels.DistributedGaussian`, `DistributedSkellam`, `ProjectedCode`.
"""

from ldpkernels.updates.following import narrowed, widened
from ldpkernels.updates.projected import mean_of_codes, report_code
from ldpkernels.updates.rotation import rotate_, rotate_back_
from ldpkernels.updates.secure_sum import decode, encode

__all__ = ["decode", "encode", "mean_of_codes", "narrowed", "report_code", "rotate_", "rotate_back_", "widened"]
