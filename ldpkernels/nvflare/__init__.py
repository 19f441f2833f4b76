# SPDX-License-Identifier: Apache-2.0
"""NVFLARE: a filter for a client's results and its twin for the server, for `pip install ldpkernels[nvflare]`.

- `LdpFilter`: of a task's result nothing leaves but a report; a ledger stops the client at its budget.
- `LdpDecoder`: a report becomes the numbers that a workflow averages.

docs/integrations/nvflare.md is the way in. Importing this package imports NVFLARE, and no torch.
"""

from ldpkernels.common.optional import require

require("nvflare", "nvflare", "ldpkernels.nvflare")  # before the first module that imports it

from ldpkernels.nvflare.filters import LdpDecoder, LdpFilter  # noqa: E402

__all__ = ["LdpDecoder", "LdpFilter"]
