# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels`: importing this registers every operation."""

from ldpkernels.ops import cells, clipped_noise, ordinal_cldp, two_point, votes

__all__ = ["cells", "clipped_noise", "ordinal_cldp", "two_point", "votes"]
