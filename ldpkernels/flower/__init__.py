# SPDX-License-Identifier: Apache-2.0
"""Flower: a mod for its ClientApp and a strategy for its ServerApp, for `pip install ldpkernels[flower]`.

- `LdpMod`: what a client's training changed leaves as a report; a ledger stops the client at its budget.
- `numpy_client`: a mod between `LdpMod` and apps of Flower's older interface, with a `client_fn`.
- `LdpFedAvg`: the rounds, of reports, of secure sums, or of a server that is trusted.
- `NoReportsError`: a run whose model has seen nothing.
- `rehearsed`: a ClientApp as a function, for an audit of everything that leaves it.
- `engine`: LDP-FL's driver with its clients on Flower's nodes.

docs/integrations/flower.md is the way in. Importing this package imports Flower, and no torch.
"""

from ldpkernels.common.optional import require

require("flwr", "flower", "ldpkernels.flower")  # before the first module that imports it

from ldpkernels.flower.checkpoint import CheckpointError  # noqa: E402
from ldpkernels.flower.mod import LdpMod  # noqa: E402
from ldpkernels.flower.numpy_client import numpy_client  # noqa: E402
from ldpkernels.flower.rehearsal import rehearsed  # noqa: E402
from ldpkernels.flower.rounds import NoReportsError  # noqa: E402
from ldpkernels.flower.strategy import LdpFedAvg  # noqa: E402

__all__ = ["CheckpointError", "LdpFedAvg", "LdpMod", "NoReportsError", "numpy_client", "rehearsed"]
