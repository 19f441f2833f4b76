# SPDX-License-Identifier: Apache-2.0
"""Reports that meet in torch.distributed: every rank is a client, and no server is needed. It needs torch."""

from ldpkernels.distributed.means import mean

__all__ = ["mean"]
