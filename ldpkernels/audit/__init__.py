# SPDX-License-Identifier: Apache-2.0
"""The epsilon that a mechanism shows, compared with the epsilon that it claims.

An audit draws from a mechanism under two neighbouring inputs. On half of the draws it picks the event that tells the
inputs apart best, and on the other half it bounds the probabilities of that event (Clopper and Pearson, 1934). The
result is a lower bound on the true epsilon, wrong with probability 1e-6. A bound above the claim proves a leak. A bound
below it does not prove privacy: docs/mechanisms has the proofs. `audit_client` does the same with everything that
leaves a client of yours.
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
