# SPDX-License-Identifier: Apache-2.0
"""The epsilon that a mechanism shows, held against the epsilon that it claims.

An audit draws from a mechanism under two neighbouring inputs, picks the event that tells them apart best on one half
of the draws, and bounds its probabilities on the other half (Clopper and Pearson, 1934). The result is a lower bound on
the true epsilon that is wrong with probability 1e-6. A bound above the claim is proof of a leak; one below it is no
proof of privacy, which docs/mechanisms has. `audit_client` does so with everything that leaves a client of yours.
"""

from ldpkernels.audit.client import ClientAudit, audit_client
from ldpkernels.audit.game import GameResult, vector_game
from ldpkernels.audit.measure import AuditFailure, AuditResult, clopper_pearson, measure
from ldpkernels.audit.model import ModelAudit, audit_model

__all__ = [
    "AuditFailure",
    "AuditResult",
    "ClientAudit",
    "GameResult",
    "ModelAudit",
    "audit_client",
    "audit_model",
    "clopper_pearson",
    "measure",
    "vector_game",
]
