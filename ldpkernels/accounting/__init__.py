# SPDX-License-Identifier: Apache-2.0
"""Accounting that tells the truth: what is lost, to whom, between which neighbours, under which assumptions.

Every figure is an upper bound: what is cut off, rounded or searched is rounded against us. Importing this package
imports neither torch nor scipy; the computations need `pip install ldpkernels[accounting]`.
"""

from ldpkernels.accounting.claims import han_xue_eq18, ldp_fed_claim, ldp_fl_claim
from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    Mechanism,
    MetricEvent,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    SkellamEvent,
    event_from_dict,
    event_of,
    to_replace_one,
)
from ldpkernels.accounting.ledger import BudgetExceeded, Ledger, LedgerError
from ldpkernels.accounting.local import local_epsilon, local_table, sampled_gaussian, subsample_pure, subsampled_epsilon
from ldpkernels.accounting.metric import CldpResult, ScheduledRound, cldp, rounds_per_layer, schedule
from ldpkernels.accounting.neighbours import CENTRAL, LOCAL, SHUFFLED, SILO, SUMMED, Relation, Scope, Unit, View
from ldpkernels.accounting.records import Claim, PrivacyResult
from ldpkernels.accounting.shuffle import clients_needed, shuffle_epsilon

__all__ = [
    "CENTRAL",
    "LOCAL",
    "SHUFFLED",
    "SILO",
    "SUMMED",
    "BudgetExceeded",
    "Claim",
    "CldpResult",
    "ConcentratedEvent",
    "Event",
    "GaussianEvent",
    "Ledger",
    "LedgerError",
    "Mechanism",
    "MetricEvent",
    "PrivacyResult",
    "PureEvent",
    "RandomizedResponseEvent",
    "Relation",
    "SampledGaussianEvent",
    "ScheduledRound",
    "Scope",
    "ShuffledEvent",
    "SkellamEvent",
    "Unit",
    "View",
    "cldp",
    "clients_needed",
    "composed_epsilon",
    "event_from_dict",
    "event_of",
    "han_xue_eq18",
    "ldp_fed_claim",
    "ldp_fl_claim",
    "local_epsilon",
    "local_table",
    "rounds_per_layer",
    "sampled_gaussian",
    "schedule",
    "shuffle_epsilon",
    "subsample_pure",
    "subsampled_epsilon",
    "to_replace_one",
]
