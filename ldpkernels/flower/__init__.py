# SPDX-License-Identifier: Apache-2.0
"""Flower: a mod for its ClientApp and a strategy for its ServerApp, for `pip install ldpkernels[flower]`.

- `LdpMod`: what a client's training changed leaves as a report; a ledger stops the client at its budget.
- `LdpFedAvg`: the rounds; `SecureSum` has the reports added by SecAgg+.
- `engine`: LDP-FL's driver with its clients on Flower's nodes.

docs/integrations/flower.md is the way in. Importing this package imports Flower, and no torch.
"""

from ldpkernels.flower.checkpoint import CheckpointError
from ldpkernels.flower.mod import LdpMod
from ldpkernels.flower.secure import SecureSum
from ldpkernels.flower.strategy import LdpFedAvg

__all__ = ["CheckpointError", "LdpFedAvg", "LdpMod", "SecureSum"]
